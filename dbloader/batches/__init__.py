"""Make whole batches of a dataset's samples: decode in parts, collate once."""
