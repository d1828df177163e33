"""Measure the speed of a training's data, and examine a machine."""
