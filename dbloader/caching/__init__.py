"""One cache of shards on each machine: which shards it keeps, its fetching process, and the stores that read it."""
