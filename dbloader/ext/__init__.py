"""What stands around the core. The core works without this folder, and imports it only by ``_extensions.py``."""
