"""One cache of shards on each machine: what to keep, the process that fetches, and the stores that read from it."""
