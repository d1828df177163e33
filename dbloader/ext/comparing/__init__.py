"""Compare a store with its source, or with another store."""
