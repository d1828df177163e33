"""Erase random rectangles of images on their device."""
