"""Make whole batches of a dataset's samples: decoded in parts, put together once."""
