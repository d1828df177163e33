"""Datasets of images that other programs stored."""
