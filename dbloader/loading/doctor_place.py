"""Look at what of a store's place may slow a training: its file system, size and server. Nothing is changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader._machine import available_memory, file_system
from dbloader.errors import StoreAccessError, StoreUnreachableError
from dbloader.loading.doctor import Finding, megabytes
from dbloader.stores.mongo.uri import is_mongo, parse
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb.*|lustre|ceph|gpfs|beegfs.*|glusterfs|pvfs2|afs|9p|virtiofs|ocfs2|gfs2|fuse(\..*)?"
)
_OLDEST_SERVER = (4, 2)  # docs/mongodb.md


def examine_place(place: str | os.PathLike[str], root: str | os.PathLike[str] = "/") -> list[Finding]:
    """Return what was found about the place of a store.

    A server that does not answer, or refuses the user, is a finding. ``root`` is the folder in which ``proc`` lies.

    Raises:
        PlaceError: The place is a URI of an unknown kind, or names no collection.
        StoreError: There is no store at the place, or it cannot be read.
    """
    if isinstance(place, str) and is_mongo(place):
        return [*_server(place)]
    from dbloader.stores.lmdb.page_cache import cached_fraction
    from dbloader.stores.lmdb.store import LMDBStore

    with open_store(place) as store:
        # Before the store is opened, which brings all of a small file into the page cache.
        cached = cached_fraction(place) if Path(place).is_file() else None
        assert isinstance(store, LMDBStore)
        nbytes = sum(Path(file).stat().st_size for file in store.files)  # raises if there is no store
    return [_file_system(store.place, Path(root)), *_file(store.place, nbytes, cached, Path(root))]


def _file_system(path: str, root: Path) -> Finding:
    kind = file_system(path, root)
    found = f"{path} is on {kind or 'an unknown one'}"
    if kind is not None and _NETWORK.fullmatch(kind):
        consequence = "reads wait for the network or another program, and LMDB's locks may not work"
        return Finding("file system", "warning", found, consequence, "copy the file to a local disk")
    if kind == "overlay":
        consequence = "the file is in a container's own layer, and goes with the container"
        return Finding("file system", "warning", found, consequence, "put it on a mounted volume")
    return Finding("file system", "ok", found)


def _file(path: str, nbytes: int, cached: float | None, root: Path) -> Iterator[Finding]:
    available = available_memory(root)
    fits = available is None or nbytes <= available
    if fits:
        yield Finding("file size", "ok", megabytes(nbytes))
    else:
        consequence = "not all of it stays in memory, so every epoch reads the disk"
        remedy = "take a machine with more memory, or smaller images (convert --short-side)"
        yield Finding("file size", "warning", f"{megabytes(nbytes)}, more than the memory", consequence, remedy)
    found = "unknown" if cached is None else f"{cached:.0%} of the file"
    if cached is None or cached > 0.99:
        yield Finding("page cache", "ok", found)
    else:
        consequence = "the next epoch reads the rest from the disk"
        yield Finding("page cache", "ok", found, consequence, f"dbloader warm {path}" if fits else "")


def _server(place: str) -> Iterator[Finding]:
    from pymongo import ReadPreference

    from dbloader.stores.mongo.connection import Connection

    parsed = parse(place)
    connection = Connection(parsed)
    try:
        admin = connection.client.admin
        hello: dict[str, Any] = connection.retry(
            lambda: admin.command("hello", read_preference=ReadPreference.NEAREST)  # no primary may be there
        )
        version = connection.retry(lambda: admin.command("buildInfo", read_preference=ReadPreference.NEAREST))
    except (StoreUnreachableError, StoreAccessError) as error:
        yield Finding("MongoDB", "problem", str(error), "the store cannot be read")  # the error has the remedy
        return
    finally:
        connection.close()
    old = tuple(version["versionArray"][:2]) < _OLDEST_SERVER
    consequence, remedy = ("dbloader needs version 4.2 or newer", "update the server") if old else ("", "")
    answers = f"{parsed.redacted} answers, version {version['version']}"
    yield Finding("MongoDB", "problem" if old else "ok", answers, consequence, remedy)
    yield _topology(hello)
    with open_store(place) as store:
        len(store)  # raises if there is no store


def _topology(hello: dict[str, Any]) -> Finding:
    if hello.get("msg") == "isdbgrid":
        return Finding("replica set", "ok", "a sharded cluster")
    if "setName" not in hello:
        consequence = "a training waits while this one server restarts"
        return Finding("replica set", "ok", "none, a standalone server", consequence)
    found = f"{hello['setName']}, with {len(hello.get('hosts', ()))} members"
    if "primary" in hello:
        return Finding("replica set", "ok", found)
    consequence = "reads wait until one is elected, and nothing can be written"
    return Finding("replica set", "problem", f"{found} and no primary", consequence, "start more members")
