"""Measure how fast training data can be loaded, and examine a machine."""
