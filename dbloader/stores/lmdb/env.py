"""LMDB environments, one for each file and process.

py-lmdb refuses to open a file twice in one process, because LMDB's locks belong to the process; and it refuses a
forked child that inherited an open environment. So all stores on one file share one environment, and a child
closes those it inherited before it opens its own.

LMDB's own locks are in a second file, found by its name: who removes a file that is in use, and makes another of the
same name, has two files under the locks of one. A file that several processes write to is locked itself instead.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import lmdb

from dbloader.stores.lmdb.readahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Environment:
    """An open environment, the process that opened it, and how many handles use it.

    Attributes:
        env: Without locks of LMDB's.
        writable: Whether several processes write to the file; then ``held`` is entered around every transaction.
    """

    def __init__(self, path: str, key: tuple[int, int], size: int, map_size: int | None) -> None:
        self.pid = os.getpid()
        self.key = key
        self.users = 0
        self.writable = map_size is not None
        self._turn = threading.Lock()  # a lock on a file is the process's: its threads take turns
        # Of this process alone: of one that a forked child had too, locks would outlive the process.
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC) if self.writable else None
        try:
            self.env = lmdb.open(path, subdir=False, max_dbs=2, lock=False, **_options(size, map_size))
        except BaseException:
            self._close_file()
            raise
        self._ahead = None if self.writable else ReadAhead(path, key, b"records")

    @contextmanager
    def held(self, how: int) -> Iterator[None]:
        """Keep transactions of other threads and processes out of the file.

        Args:
            how: ``fcntl.LOCK_SH`` keeps out those that write, to read; ``fcntl.LOCK_EX`` all, to write.
        """
        assert self._file is not None, "a file that never changes needs no lock"
        with self._turn:
            try:
                fcntl.flock(self._file, how)
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Let the records at some indices be brought into memory, if the file never changes; waits for none."""
        if self._ahead is not None:
            self._ahead.prefetch(indices)

    def close(self) -> None:
        """Close the environment; in a forked child, what it has of its parent's."""
        self.env.close()
        self._close_file()
        if self._ahead is not None:
            self._ahead.close()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _Gate:
    """Lets any number of threads into LMDB, or one fork: it waits for those inside, others wait for it.

    A child could not close an environment in which another thread of its parent was just at work: py-lmdb waits for
    that work to end, and in the child the thread does not exist.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._changed = threading.Condition()
        self._inside: set[int] = set()  # a set, so that a KeyboardInterrupt between two lines leaves nothing for long
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

    def shut(self) -> None:
        """Wait until no other thread is inside, and keeps all out until ``open``."""
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._forking)
        self._forking = True
        self._changed.wait_for(lambda: self._inside <= {threading.get_ident()})

    def open(self) -> None:
        """End what ``shut`` began, in the parent and in the child."""
        self._forking = False
        self._changed.notify_all()
        self._changed.release()


gate = _Gate()
"""To be entered around all use of an environment that ``acquire`` gave."""

# By the file's identity, not its path: a replaced store is another file, a link to a store the same one.
_open: dict[tuple[int, int], Environment] = {}
# One that the same thread may take twice: the garbage collector can call ``release`` in the middle of ``acquire``.
_lock = threading.RLock()


def acquire(path: str, map_size: int | None = None) -> Environment:
    """Return this process's environment of a file, for as long as nobody has called ``release`` as often.

    Args:
        path: The file; it may be empty if it is to be written to.
        map_size: Bytes that a file which several processes write to may have; None for a file that never changes.

    Raises:
        OSError: The file cannot be looked at.
        lmdb.Error: LMDB cannot open it; or it is to be written to, and is open already as one that never changes.
    """
    with _lock:
        status = os.stat(path)  # noqa: PTH116 - three numbers are all that is wanted of it
        key = (status.st_dev, status.st_ino)
        while True:
            environment = _open.get(key)
            if environment is None:
                environment = _open[key] = Environment(path, key, status.st_size, map_size)
            elif map_size is not None and not environment.writable:
                raise lmdb.ReadonlyError("this process has the file open to read it only")
            environment.users += 1
            if key in _open:
                return environment
            # In between, the garbage collector has released the last of its other users.


def release(environment: Environment) -> None:
    """Close an environment that nobody else has acquired.

    It is closed under the lock, because until that is done, py-lmdb refuses to open the file again.
    """
    with _lock:
        environment.users -= 1
        if not environment.users and environment.pid == os.getpid():
            del _open[environment.key]
            environment.close()


def _options(size: int, map_size: int | None) -> dict[str, Any]:
    if map_size is None:
        # The file never changes once it is at its place; the map has its size.
        return {"readonly": True, "create": False, "map_size": 0, "readahead": _fits_memory(size)}
    # A crash of the machine may undo the last commit, no more.
    return {"create": False, "metasync": False, "map_size": map_size, "readahead": False}


def _fits_memory(size: int) -> bool:
    """Return whether reading ahead pays: what is read too early must still be in memory when it is asked for."""
    return size < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _before_fork() -> None:
    gate.shut()
    _lock.acquire()


def _after_fork() -> None:
    try:
        _lock.release()
    finally:
        gate.open()


def _close_inherited() -> None:
    """Run in a forked child, in which no other thread of its parent exists."""
    for environment in _open.values():
        environment.close()
    _open.clear()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_close_inherited)
