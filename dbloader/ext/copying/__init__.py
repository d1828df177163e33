"""Copy stores, or some of their records, to another place."""
