"""HOST. Requests, pages and slots: who runs in the next step."""
