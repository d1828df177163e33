"""Find records by a number, each record once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.records.names import Array


class RecordMatcher:
    """Finds records by a number that many have in common with few others, such as the hash of their names.

    Attributes:
        left: bool, shape (records,), which records have not been taken yet.
    """

    def __init__(self, keys: Array, left: Array) -> None:
        self.left = left
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._taken = np.zeros(len(keys), np.uint32)  # by the position of a key's first record: how many to pass over

    def take(self, key: np.uint64 | np.uint32, accept: Callable[[int], bool] = lambda index: True) -> int | None:
        """Return the first untaken record with a key that ``accept`` accepts; None without one."""
        first, end = int(np.searchsorted(self._keys, key)), int(np.searchsorted(self._keys, key, "right"))
        if first == end:
            return None
        for at in range(first + int(self._taken[first]), end):
            index = int(self._order[at])
            if not self.left[index]:
                self._taken[first] += at == first + self._taken[first]
            elif accept(index):
                self.left[index] = False
                return index
        return None
