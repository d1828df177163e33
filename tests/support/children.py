"""Functions run in forked processes."""

from __future__ import annotations

import multiprocessing
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dbloader.errors import DBLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkProcess

WAIT_S = 60

_fork = multiprocessing.get_context("fork")


@contextmanager
def _child(function: Callable[[], object]) -> Iterator[ForkProcess]:
    process = _fork.Process(target=function)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a forked process and return its exit status, negative for a signal."""
    with _child(function) as process:
        process.join(WAIT_S)
        assert process.exitcode is not None, "the child hangs"
        return process.exitcode


def from_child(function: Callable[[], object], wait_s: float = WAIT_S) -> Any:
    """Return what a function returns in a forked process, or the error of dbloader that it raises there."""
    receiver, sender = _fork.Pipe(duplex=False)

    def run() -> None:
        receiver.close()
        try:
            sender.send(function())
        except DBLoaderError as error:
            sender.send(error)

    with receiver, _child(run) as process:
        sender.close()
        assert receiver.poll(wait_s), "the child hangs"
        found = receiver.recv()
        process.join(wait_s)
        return found
