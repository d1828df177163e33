"""Replacements for the prefetch_generator package and DataLoaderX. Existing code changes only its imports.

``background`` and ``BackgroundGenerator`` have the interface of the prefetch_generator package. ``DataLoaderX``
replaces a class of this name, which many projects define with prefetch_generator.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dbloader.loading.background import BackgroundIterator
from dbloader.loading.prefetch import PrefetchLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

__all__ = ["BackgroundGenerator", "DataLoaderX", "background"]

T = TypeVar("T")
P = ParamSpec("P")


class BackgroundGenerator(BackgroundIterator[T]):
    """An iterator that runs ahead in a background thread. The thread starts at once."""

    def __init__(self, generator: Iterable[T], max_prefetch: int = 1) -> None:
        super().__init__(generator, max_prefetch)
        self.thread.ensure_started()

    def next(self) -> T:
        """Return the next item, like the built-in ``next()``."""
        return next(self)


def background(max_prefetch: int = 1) -> Callable[[Callable[P, Iterable[T]]], Callable[P, BackgroundGenerator[T]]]:
    """Make a generator function return BackgroundGenerators: ``@background(max_prefetch=3)``."""

    def decorate(function: Callable[P, Iterable[T]]) -> Callable[P, BackgroundGenerator[T]]:
        @functools.wraps(function)
        def start(*args: P.args, **kwargs: P.kwargs) -> BackgroundGenerator[T]:
            return BackgroundGenerator(function(*args, **kwargs), max_prefetch)

        return start

    return decorate


class DataLoaderX(PrefetchLoader[T]):
    """A PrefetchLoader that makes its own DataLoader.

    This class replaces the recipe ``class DataLoaderX(DataLoader): def __iter__(self): return
    BackgroundGenerator(super().__iter__())``. It also handles errors, ``break``, threads and resuming.

    PrefetchLoader documents ``device``, ``depth`` and ``preparation``; all other arguments go to DataLoader.
    """

    def __init__(
        self,
        *args: Any,
        device: torch.device | str | int | None = None,
        depth: int = 2,
        preparation: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        from torch.utils.data import DataLoader  # here, because the other names in this module do not need torch

        super().__init__(DataLoader(*args, **kwargs), device, depth, preparation=preparation)
