"""Open or create the store at a place: an LMDB file, a folder of shards or a MongoDB collection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._extensions import extension
from dbloader._places import is_mongo
from dbloader.errors import OptionError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from dbloader.stores.base import Store
    from dbloader.stores.writer import Writer


def open_store(
    place: str | os.PathLike[str], *, cache: str | os.PathLike[str] | None = None, cache_bytes: int | None = None
) -> Store:
    """Return the store at a path or URI. The first read opens it.

    LMDBDataset describes ``cache`` and ``cache_bytes``.

    Raises:
        PlaceError: The place is a URI of an unknown kind, or a MongoDB URI without a collection.
        OptionError: ``cache`` is not a path. Or ``cache_bytes`` is below 1, or given without ``cache``.
    """
    if cache is not None:
        store: Store = extension("CachedStore")(place, cache, max_bytes=cache_bytes)
        return store
    if cache_bytes is not None:
        raise OptionError(f"cache_bytes needs a cache (cache=FOLDER), got {cache_bytes!r}")
    if is_mongo(place):
        from dbloader.stores.mongo.store import MongoStore

        return MongoStore(place)
    from dbloader.stores.lmdb.store import LMDBStore

    return LMDBStore(place)


def create_store(
    place: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False, resumable: bool = False
) -> Writer:
    """Return a writer of a new store; see Writer for the options.

    Raises:
        PlaceError: The place is a URI of an unknown kind, or a MongoDB URI without a collection.
        TypeError: The place is not a path, or an option is not True or False.
    """
    if is_mongo(place):
        from dbloader.stores.mongo.writer import MongoWriter

        return MongoWriter(place, overwrite=overwrite, resume=resume, resumable=resumable)
    from dbloader.stores.lmdb.writer import LMDBWriter

    return LMDBWriter(place, overwrite=overwrite, resume=resume, resumable=resumable)


def check_destination(place: str | os.PathLike[str], sources: Iterable[Store]) -> None:
    """Raise OptionError if a new store at a path or URI would replace or change one of its sources."""
    for source in sources:
        if source.is_at(place):
            raise OptionError(
                f"the new store would replace or change its own source {source.place}: name another place; after "
                "verifying the new store, you can remove the source"
            )
