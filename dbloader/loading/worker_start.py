"""The start of a worker process."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkerStart:
    """Calls a function with arguments. A spawned process unpickles the arguments without garbage collections.

    Unpickling imports torch. The objects of torch stay until the process ends. Garbage collections would look at them
    for a quarter of a second in each worker, and free nothing. This module is imported while the collector still runs,
    so it must not import torch or a module of dbloader that imports torch.
    """

    _collects: bool

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self._work = function, arguments

    def __call__(self) -> None:
        """Call the function."""
        function, arguments = self._work
        function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _stop_collecting, (), self._work

    def __setstate__(self, work: tuple[Callable[..., object], tuple[Any, ...]]) -> None:
        self._work = work
        gc.freeze()
        if self._collects:
            gc.enable()


def _stop_collecting() -> WorkerStart:
    """Stop the garbage collector. Return an empty WorkerStart, whose function and arguments are unpickled next."""
    start = WorkerStart.__new__(WorkerStart)
    start._collects = gc.isenabled()  # the program may have stopped the collector
    gc.disable()
    return start
