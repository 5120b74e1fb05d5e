"""DEV. Building blocks of models: pure functions on arrays and weight records."""
