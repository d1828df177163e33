"""Examine the bytes of image files, without torch."""
