"""The class and the decorator of the prefetch_generator package. ``dbloader.loading.compat`` exports them."""

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from dbloader.loading.background import BackgroundIterator

T = TypeVar("T")
P = ParamSpec("P")


class BackgroundGenerator(BackgroundIterator[T]):
    """An iterator that runs ahead in a background thread, which starts at once."""

    def __init__(self, generator: Iterable[T], max_prefetch: int = 1) -> None:
        super().__init__(generator, max_prefetch)
        self.thread.ensure_started()

    def next(self) -> T:
        """Return the next item, as the built-in ``next()`` does."""
        return next(self)


def background(
    max_prefetch: int = 1,
) -> Callable[[Callable[P, Iterable[T]]], Callable[P, BackgroundGenerator[T]]]:
    """Make a generator function return BackgroundGenerators: ``@background(max_prefetch=3)``."""

    def decorate(function: Callable[P, Iterable[T]]) -> Callable[P, BackgroundGenerator[T]]:
        @functools.wraps(function)
        def start(*args: P.args, **kwargs: P.kwargs) -> BackgroundGenerator[T]:
            return BackgroundGenerator(function(*args, **kwargs), max_prefetch)

        return start

    return decorate
