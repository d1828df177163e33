"""Open an LMDB file only once in each process: all stores that read the file share one LMDB environment.

py-lmdb refuses to open a file twice in one process, because LMDB's locks belong to the process. py-lmdb also refuses to
use an environment in a forked child, so a child closes the environments that it inherited.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress
from pathlib import Path

import lmdb

from dbloader.errors import DamagedStoreError
from dbloader.stores.lmdb.readahead import ReadAhead

_DONTNEED = 4  # MADV_DONTNEED


class Environment:
    """An open LMDB environment without LMDB's own locks. In one process, all handles of a file share an Environment."""

    def __init__(self, path: Path, key: tuple[int, int]) -> None:
        self.pid = os.getpid()
        self.key = key
        self.users = 0
        self.env = lmdb.open(
            str(path),
            subdir=False,
            max_dbs=2,
            lock=False,
            readonly=True,
            create=False,
            map_size=0,  # 0 means the size of the file, which never changes
        )
        self.ahead = ReadAhead(path, key)

    def release_pages(self) -> None:
        """Remove the file's pages from this process's memory, but not from the system's page cache."""
        # Only Linux has /proc/self/maps. Its paths need not be UTF-8.
        with suppress(OSError, AttributeError), Path("/proc/self/maps").open(errors="replace") as maps:
            for span, mode, _, device, inode, *_ in map(str.split, maps):
                key = os.makedev(*(int(number, 16) for number in device.split(":"))), int(inode)
                # A shared map of a file loses nothing: the next read takes the page from the page cache.
                if mode.endswith("s") and key == self.key:
                    begin, end = (int(bound, 16) for bound in span.split("-"))
                    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _DONTNEED)

    def close(self) -> None:
        """Close the environment; in a forked child, close the inherited copy."""
        self.env.close()
        self.ahead.close()


class ForkGate:
    """Prevents a fork while a thread uses LMDB. Each use of LMDB is in a ``with`` block of the gate.

    A fork waits for the threads in such a block, and no thread enters a block during the fork. Otherwise a forked child
    could hang: it closes its environments, and py-lmdb then waits for the threads that use them. Those threads do not
    exist in the child.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._changed = threading.Condition()
        self._inside: set[int] = set()  # ids of threads in a block; after KeyboardInterrupt, a counter might be wrong
        self._forking = False

    def __enter__(self) -> None:
        depth = getattr(self._own, "depth", 0)
        if not depth:
            with self._changed:
                self._changed.wait_for(lambda: not self._forking)
                self._inside.add(threading.get_ident())
        self._own.depth = depth + 1

    def __exit__(self, *exception: object) -> None:
        self._own.depth -= 1
        if not self._own.depth:
            with self._changed:
                self._inside.discard(threading.get_ident())
                self._changed.notify_all()

    def close(self) -> None:
        """Wait until no other thread is in a block, and let no thread enter a block until ``open``."""
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._forking)
        self._forking = True
        self._changed.wait_for(lambda: self._inside <= {threading.get_ident()})

    def open(self) -> None:
        """Undo ``close``, in the parent and in the child."""
        self._forking = False
        self._changed.notify_all()
        self._changed.release()


gate = ForkGate()
"""Enter this gate around every use of an environment that ``acquire`` returned."""

environments: dict[tuple[int, int], Environment] = {}
"""Open environments by device and inode. Links to a file share its environment. A new file at the path has its own."""
# Reentrant, because the garbage collector may call ``release`` in the middle of ``acquire``.
_lock = threading.RLock()


def acquire(path: Path) -> Environment:
    """Return this process's environment for a file. Each caller must call ``release`` once."""
    with _lock:
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        while True:
            environment = environments.get(key)
            if environment is None:
                environment = environments[key] = Environment(path, key)
            environment.users += 1
            if key in environments:
                return environment
            # Try again: the garbage collector has just released the last other user, so this environment is closed.


def release(environment: Environment) -> None:
    """End one use of an environment, and close the environment after its last use."""
    with _lock:
        environment.users -= 1
        if not environment.users and environment.pid == os.getpid():
            del environments[environment.key]
            environment.close()


def check_size(opened: lmdb.Environment, size: int, place: str, remedy: str) -> None:
    """Raise DamagedStoreError if the file is too short. Reading past its end would kill the process (SIGBUS)."""
    used = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
    if size < used:
        raise DamagedStoreError(f"{place} is cut short: it has {size} bytes of {used}; {remedy}")


def _before_fork() -> None:
    gate.close()
    _lock.acquire()


def _after_fork() -> None:
    try:
        _lock.release()
    finally:
        gate.open()


def _close_inherited() -> None:
    """Close the parent's environments in a forked child."""
    for environment in environments.values():
        environment.close()
    environments.clear()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_close_inherited)
