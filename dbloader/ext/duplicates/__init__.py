"""Find duplicate images in a store, or in two."""
