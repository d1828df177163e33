"""Batches in which other samples replace damaged ones, and equal batches on all ranks."""
