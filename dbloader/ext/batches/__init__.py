"""Replace damaged samples in batches."""
