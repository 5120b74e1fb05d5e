"""JOINT. Device state, compiled programs, and the step that runs them."""
