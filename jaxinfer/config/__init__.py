"""HOST. Frozen records: what the checkpoint says, what the user asked, what was decided."""
