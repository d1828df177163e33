"""The commands that the core does not need."""
