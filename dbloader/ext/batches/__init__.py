"""Replace damaged samples in batches, and give all ranks equal batches."""
