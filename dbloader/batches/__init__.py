"""Make batches of a dataset's samples. Threads or processes decode parts of a batch, which is then collated once."""
