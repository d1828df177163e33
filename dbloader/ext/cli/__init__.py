"""The commands of what stands around the core."""
