"""Datasets of what other programs stored."""
