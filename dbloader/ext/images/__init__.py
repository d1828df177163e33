"""Thumbnails of images, and facts about records."""
