"""HOST. Drafting tokens ahead of the model, and deciding when that pays."""
