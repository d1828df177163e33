"""Cache the shards of a store on each machine. One process, the fetcher, fetches and removes shards for all readers."""
