"""Make stores from the samples of datasets, DataLoaders and generators."""
