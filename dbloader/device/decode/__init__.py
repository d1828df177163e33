"""Decode the images of a batch on a GPU, beside the training."""
