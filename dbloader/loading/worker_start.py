"""The start of a worker process."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkerStart:
    """Calls a function with arguments. A spawned process unpickles them without garbage collections.

    Unpickling imports torch. The objects of torch stay until the process ends, and garbage collections would go
    through them in vain, for a quarter of a second in each worker. This module is imported before the
    collector stops, so it must import no other module of dbloader.
    """

    _collects: bool

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments

    def __call__(self) -> None:
        """Call the function."""
        self._function(*self._arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _begin, (), (self._function, self._arguments)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._function, self._arguments = state
        gc.freeze()
        if self._collects:
            gc.enable()


def _begin() -> WorkerStart:
    """Stop the garbage collector. Return a WorkerStart without its function and arguments."""
    start = WorkerStart.__new__(WorkerStart)
    start._collects = gc.isenabled()  # the program may have stopped the collector
    gc.disable()
    return start
