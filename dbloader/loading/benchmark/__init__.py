"""Measure how fast the images of a store are on this machine, and what limits them."""
