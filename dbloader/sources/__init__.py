"""Where records come from: a folder of images, or a listing that names them, as files or in a collection."""

from dbloader.sources.base import Entry, Problem, Source
from dbloader.sources.folder import EXTENSIONS, FolderSource, scan
from dbloader.sources.listing import ListingSource, read_listing

__all__ = [
    "EXTENSIONS",
    "Entry",
    "FolderSource",
    "ListingSource",
    "Problem",
    "Source",
    "read_listing",
    "scan",
]
