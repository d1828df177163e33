"""What stands around the core: the core works without this folder, and only ``dbloader/_extensions.py`` names it."""
