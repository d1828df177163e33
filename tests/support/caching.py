"""Caches of shards: stores to cache, the fetcher's process, and origins that send a file when the test asks."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dbloader import Record
from dbloader.ext.publishing.publish_shards import index_shards, put_manifest
from dbloader.stores.base import Store
from tests.support.leaks import has_ended
from tests.support.stores import store_records
from tests.support.waiting import WAIT_S, wait_for


def image_of(index: int, size: int = 8000) -> bytes:
    return index.to_bytes(4, "big") * (size // 4)


def make_shards(place: Path, lengths: Sequence[int] = (4,) * 6, *, base: int = 0, size: int = 8000) -> list[bytes]:
    """Write a store whose shards have these lengths, and return the images of all records."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "shards").mkdir(parents=True)
    names, images = [], [image_of(base + index, size) for index in range(sum(lengths))]
    begin = 0
    for number, length in enumerate(lengths):
        names.append(f"{number:05}.lmdb")
        store_records(
            place / "shards" / names[-1],
            (Record(f"{index}.x", index % 3, images[index]) for index in range(begin, begin + length)),
        )
        begin += length
    put_manifest(place, index_shards(place, names, [None] * len(names), classes=("a", "b", "c")))
    return images


IMAGES = [image_of(index) for index in range(24)]  # of the records of ``make_shards``


def images_of(store: Store, indices: Sequence[int] = range(24)) -> list[Any]:
    return [record.image for record in store.read(indices)]


def shards_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "shards").iterdir())


def fetcher_of(cache: Path) -> int | None:
    """Return the process id of a cache's fetcher, or None if the fetcher is not running."""
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            alive = (entry / "stat").read_text().rpartition(") ")[2][0] != "Z"
        except OSError:  # there is no process, or the process has just ended
            continue
        if entry.name.isdigit() and alive and b"caching.fetcher" in b"".join(command) and os.fsencode(cache) in command:
            return int(entry.name)
    return None


@contextmanager
def forks(function: Callable[[int, Any], None], count: int) -> Iterator[list[Any]]:
    """Run ``function(number, pipe)`` in forked processes, and yield this process's ends of the pipes.

    At the end of the block, each process receives "end", and must then end without an error.
    """
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(count)]
    processes = [context.Process(target=function, args=(number, theirs)) for number, (_, theirs) in enumerate(pipes)]
    for process in processes:
        process.start()
    yield [ours for ours, _ in pipes]
    for process, (ours, theirs) in zip(processes, pipes, strict=True):
        ours.send("end")
        process.join(WAIT_S)
        assert process.exitcode == 0
        process.close()
        ours.close()
        theirs.close()


def wait_until_ended(cache: Path) -> None:
    """Wait until the fetcher of a cache has ended and its lock is free."""

    def is_free() -> bool:
        with (cache / "fetcher.lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    wait_for(is_free, "the fetcher ends")
    assert fetcher_of(cache) is None


def kill_fetcher(cache: Path) -> None:
    pid = fetcher_of(cache)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert has_ended(pid, WAIT_S), "the fetcher is dead"  # it unlocks the cache before it ends


class SlowFile:
    """Replaces a file of an origin by a named pipe, to which the test writes the content."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.path = path
        path.unlink()
        os.mkfifo(path)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Wait until the fetcher has opened the file, and yield the descriptor to write to."""
        descriptor = -1

        def is_open() -> bool:
            nonlocal descriptor
            try:
                descriptor = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody is reading
                return False
            return True

        wait_for(is_open, f"{self.path} is read")
        os.set_blocking(descriptor, True)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def send(self) -> None:
        """Send the whole file."""
        with self.opened() as descriptor:
            self.write(descriptor, self.data)

    def write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
