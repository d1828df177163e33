"""Everything that the core does not need. Without this folder, the core still works: only _extensions.py imports it."""
