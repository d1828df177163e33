"""Verify a store, compare it with its source or another store, and find duplicate images."""
