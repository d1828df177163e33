"""Load batches: workers, prefetching, resuming."""
