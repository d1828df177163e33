"""Decode the images of a batch on a GPU, next to the training."""
