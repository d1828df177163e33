"""Samplers for shards, and for rare classes."""
