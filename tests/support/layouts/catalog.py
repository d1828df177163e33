"""All layouts, by name."""

from tests.support.layouts import archives, boxes, downloads, folders, listings, ordinary, pictures
from tests.support.layouts.base import LAYOUTS

__all__ = ["LAYOUTS", "archives", "boxes", "downloads", "folders", "listings", "ordinary", "pictures"]
