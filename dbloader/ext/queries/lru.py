"""A cache of results, bounded by their bytes."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class LRUCache(Generic[T]):
    """Keeps the most recently used results, up to a total number of bytes. Threads may share a cache.

    If several threads ask for the same key at the same time, one thread computes the result and the others wait for it.
    The newest result is kept even if it alone exceeds the limit.

    Args:
        max_bytes: Most bytes of all kept results.
        size: Returns the number of bytes of a result.

    Attributes:
        nbytes: Bytes of all kept results.
    """

    def __init__(self, max_bytes: float, size: Callable[[T], int]) -> None:
        self._max_bytes, self._size, self.nbytes = max_bytes, size, 0
        self._lock = threading.Lock()
        self._futures: dict[Any, Future[T]] = {}  # the key that was used last is at the end
        self._sizes: dict[Any, int] = {}  # bytes of each finished result

    def get(self, key: object, make: Callable[[], T]) -> T:
        """Return the kept result for a key. If there is none, keep and return the result of ``make``."""
        with self._lock:
            future = self._futures.pop(key, None)
            is_new = future is None
            self._futures[key] = future = future or Future()
        if is_new:
            try:
                result = make()
            except BaseException as error:
                with self._lock:
                    del self._futures[key]
                future.set_exception(error)
                raise
            future.set_result(result)
            with self._lock:
                self._sizes[key] = self._size(result)
                self.nbytes += self._sizes[key]
                while self.nbytes > self._max_bytes and len(self._sizes) > 1:
                    oldest = next(key for key in self._futures if key in self._sizes)
                    self.nbytes -= self._sizes.pop(oldest)
                    del self._futures[oldest]
        return future.result()

    def __contains__(self, key: object) -> bool:
        """Return whether the result for a key is finished and kept."""
        return key in self._sizes
