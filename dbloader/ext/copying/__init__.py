"""Copy stores, or some of their records, to another path or URI."""
