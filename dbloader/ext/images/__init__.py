"""Small pictures of images."""
