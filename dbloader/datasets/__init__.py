"""Serve the records of a store as samples, in place of torchvision's ImageFolder."""
