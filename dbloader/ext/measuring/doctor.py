"""Examine this machine and the place of a store, without a measurement. Find what stops or slows training.

Nothing is changed. In all functions ``root`` is the folder that contains ``proc``, ``sys`` and ``dev``.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dbloader._describe import size
from dbloader._machine import available_memory
from dbloader._places import is_mongo
from dbloader._version import __version__
from dbloader.errors import StoreAccessError, StoreUnreachableError
from dbloader.ext.measuring.file_system import file_system
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES = ("lmdb", "pymongo", "Pillow", "numpy", "simplejpeg")
# Free bytes in /dev/shm. Two workers of a DataLoader need room for 4 batches of 64 float images, 224 x 224 pixels each.
_LEAST_SHARED, _ENOUGH_SHARED = 4 * 64 * 3 * 224 * 224 * 4, 10**9
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb.*|lustre|ceph|gpfs|beegfs.*|glusterfs|pvfs2|afs|9p|virtiofs|ocfs2|gfs2|fuse(\..*)?"
)
_OLDEST_SERVER = (4, 2)  # docs/mongodb.md


@dataclass(frozen=True)
class Finding:
    """A fact about the machine or a store's place.

    The ``state`` of a fact that slows training or prevents some uses is ``"warning"``. If the fact prevents most uses,
    it is ``"problem"``. ``consequence`` is the effect on training, and ``remedy`` is what to do; both may be "".
    """

    name: str
    state: Literal["ok", "warning", "problem"]
    found: str
    consequence: str = ""
    remedy: str = ""


def examine_machine(root: str | os.PathLike[str] = "/") -> list[Finding]:
    """Examine this machine. Import torch if it is installed."""
    return [*_versions(), _shared_memory(Path(root)), *_cuda(Path(root)), *_file_limit()]


def _versions() -> Iterator[Finding]:
    yield Finding("Python", "ok", ".".join(map(str, sys.version_info[:3])))
    yield Finding("dbloader", "ok", __version__)
    for package in _PACKAGES:
        try:
            yield Finding(package, "ok", metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding(package, "problem", "not installed", "dbloader needs it", f"pip install {package}")


def _shared_memory(root: Path) -> Finding:
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError as error:
        consequence = "worker processes cannot start, because their locks are in /dev/shm"
        return Finding("/dev/shm", "problem", str(error.strerror), consequence, "mount a tmpfs there")
    free = status.f_bavail * status.f_frsize
    found = f"{size(status.f_blocks * status.f_frsize)}, {size(free)} free"
    if free >= _ENOUGH_SHARED:
        return Finding("/dev/shm", "ok", found)
    consequence = "workers of torch's DataLoader end with a bus error when their batches fill /dev/shm"
    remedy = "start the container with --shm-size=8g, or use create_loader, which needs little shared memory"
    return Finding("/dev/shm", "problem" if free < _LEAST_SHARED else "warning", found, consequence, remedy)


def _file_limit() -> Iterator[Finding]:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY:
        consequence = "stores, and the memory that worker processes share, cannot be larger"
        yield Finding("file limit", "warning", f"{size(limit)} (ulimit -f)", consequence, "ulimit -f unlimited")


def _cuda(root: Path) -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of CUDA does not load
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            consequence = "training and dbloader bench need torch; all else works; CUDA devices are unknown"
            yield Finding("torch", "warning", "not installed", consequence, "pip install torch")
        else:
            yield Finding("torch", "problem", f"cannot be imported: {error}", "no training runs", "install torch again")
        return
    yield Finding("torch", "ok", torch.__version__)
    with warnings.catch_warnings(record=True) as caught:  # torch warns if no device is usable
        warnings.simplefilter("always")
        devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    if not devices:
        found = f"no device, torch is made for {'CUDA ' + torch.version.cuda if torch.version.cuda else 'CPUs only'}"
        found += "".join(f" ({' '.join(str(one.message).split())})" for one in caught[:1])
        if not (root / "proc/driver/nvidia/version").exists():
            yield Finding("CUDA", "ok", found)
            return
        remedy = "install torch for the driver's CUDA, or check CUDA_VISIBLE_DEVICES"
        yield Finding("CUDA", "problem", found, "the training runs on CPUs, though an NVIDIA driver is here", remedy)
    for index in devices:
        try:
            yield Finding(f"cuda:{index}", "ok", torch.cuda.get_device_name(index))
        except RuntimeError as error:
            what = str(error).partition("\n")[0]
            yield Finding(f"cuda:{index}", "problem", what, "no training runs on it", "see nvidia-smi")


def examine_place(place: str | os.PathLike[str], root: str | os.PathLike[str] = "/") -> list[Finding]:
    """Examine the disk or server of a store, given its path or URI.

    If a server does not answer or refuses the user, the result is a finding, not an error.

    Raises:
        PlaceError: The place is a URI of an unknown kind, or contains no collection.
        StoreError: There is no store at the place, or it cannot be read.
    """
    if isinstance(place, str) and is_mongo(place):
        return [*_server(place)]
    from dbloader.stores.lmdb.store import LMDBStore

    with LMDBStore(place) as store:
        path = Path(store.place)
        files = [path] if store.shard_lengths is None else path.rglob("*.lmdb")  # `shard_lengths` fails without a store
        nbytes = sum(file.stat().st_size for file in files)
    return [_file_system(store.place, Path(root)), _file_size(nbytes, Path(root))]


def _file_system(path: str, root: Path) -> Finding:
    kind = file_system(path, root)
    found = f"{path} is on {kind or 'an unknown file system'}"
    if kind is not None and _NETWORK.fullmatch(kind):
        consequence = "reads wait for the network or another program, and LMDB's locks may not work"
        return Finding("file system", "warning", found, consequence, "copy the file to a local disk")
    if kind == "overlay":
        consequence = "the file is in a container's own layer, and is deleted with the container"
        return Finding("file system", "warning", found, consequence, "put it on a mounted volume")
    return Finding("file system", "ok", found)


def _file_size(nbytes: int, root: Path) -> Finding:
    available, found = available_memory(root), size(nbytes)
    if available is None or nbytes <= available:
        return Finding("file size", "ok", found)
    consequence = "not all of it stays in memory, so every epoch reads the disk"
    remedy = "use a machine with more memory, or smaller images (convert --short-side)"
    return Finding("file size", "warning", f"{found}, more than the memory", consequence, remedy)


def _server(place: str) -> Iterator[Finding]:
    from pymongo import ReadPreference

    from dbloader.stores.mongo.connection import Connection

    parsed = parse(place)
    connection = Connection(parsed)
    try:
        admin, nearest = connection.client.admin, ReadPreference.NEAREST  # there may be no primary
        version: Any = connection.retry(lambda: admin.command("buildInfo", read_preference=nearest))
    except (StoreUnreachableError, StoreAccessError) as error:
        yield Finding("MongoDB", "problem", str(error), "the store cannot be read")  # the error contains the remedy
        return
    finally:
        connection.close()
    old = tuple(version["versionArray"][:2]) < _OLDEST_SERVER
    consequence, remedy = ("dbloader needs version 4.2 or newer", "update the server") if old else ("", "")
    answers = f"{parsed.redacted} answers, version {version['version']}"
    yield Finding("MongoDB", "problem" if old else "ok", answers, consequence, remedy)
    with open_store(place) as store:
        len(store)  # raises an error if there is no store
