"""LMDB environments opened for reading, one for each file and process.

py-lmdb refuses to open a file twice in one process, because LMDB's locks belong to the process; and it refuses a
forked child that inherited an open environment. So all stores on one file share one environment, and a child
closes those it inherited before it opens its own.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakValueDictionary

import lmdb


class Environment:
    """An open environment and the process that opened it; closed when nobody refers to it any more."""

    def __init__(self, path: str, size: int) -> None:
        self.pid = os.getpid()
        self.env = lmdb.open(
            path,
            subdir=False,
            readonly=True,
            create=False,
            lock=False,  # the file never changes once it is at its place
            map_size=0,  # the size that the file has
            max_dbs=2,
            max_spare_txns=16,  # transactions kept for reuse: more threads than this make their own
            readahead=_fits_memory(size),
        )


# By the file's identity, not its path: a replaced store is another file, a link to a store the same one.
_open: WeakValueDictionary[tuple[int, int], Environment] = WeakValueDictionary()
_lock = threading.Lock()


def acquire(path: str) -> Environment:
    """Gives this process's environment of a file.

    Raises:
        OSError: The file cannot be looked at.
        lmdb.Error: LMDB cannot open it.
    """
    with _lock:
        status = os.stat(path)  # noqa: PTH116 - two numbers are all that is wanted of it
        key = (status.st_dev, status.st_ino)
        environment = _open.get(key)
        if environment is None:
            environment = _open[key] = Environment(path, status.st_size)
        return environment


def _fits_memory(size: int) -> bool:
    """Tells whether reading ahead pays: what is read too early must still be in memory when it is asked for."""
    return size < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _close_inherited() -> None:
    """Runs in a forked child, in which no other thread of its parent exists."""
    for environment in _open.values():
        environment.env.close()
    _open.clear()
    _lock.release()


# The lock is held across the fork, so that the child sees no half-opened environment.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_inherited)
