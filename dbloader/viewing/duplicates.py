"""The duplicates of a store, from the fingerprints that ``dbloader duplicates`` has kept."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.conversion.duplicates import DISTANCE, describe_pairs, find_pairs
from dbloader.conversion.fingerprints import fingerprint_path, load_fingerprints
from dbloader.errors import OptionError
from dbloader.viewing.columns import Recent

if TYPE_CHECKING:
    from dbloader.stores.base import Store

_MOST_GROUPS, _MOST_IN_GROUP = 100, 60


class Duplicates:
    """The groups of duplicates of a store, found once for each state of the file. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found = Recent[Any](1, lambda _: 1)

    def list_groups(self, start: int, count: int) -> dict[str, Any]:
        """Return ``total`` and some ``groups``: at most 100, each with at most 60 of its ``count`` duplicates.

        Raises:
            OptionError: There are no fingerprints of these records; the message says which command makes them.
        """
        path = fingerprint_path(self._store.place)
        changed = path.stat().st_mtime_ns if path.exists() else None
        values, found, originals, begins = self._found.get(changed, self._find)
        groups = []
        for number in range(start, min(start + min(count, _MOST_GROUPS), len(begins) - 1)):
            first, end = int(begins[number]), int(begins[number + 1])
            part = slice(first, min(end, first + _MOST_IN_GROUP))
            rows = [*describe_pairs(values, found[part], originals[part], self._store, self._store, 0)]
            groups.append({"index": rows[0]["of"], "name": rows[0]["of_name"], "count": end - first, "others": rows})
        return {"total": len(begins) - 1, "duplicates": len(found), "distance": DISTANCE, "groups": groups}

    def _find(self) -> Any:
        prints = load_fingerprints(self._store, fingerprint_path(self._store.place))
        if prints is None:
            command = shlex.join(["dbloader", "duplicates", self._store.place])
            raise OptionError(
                f"no fingerprints of these images are kept yet: run this, and load the page again: {command}"
            )
        found, originals = find_pairs(prints.values, DISTANCE)
        return prints.values, found, originals, np.append(np.unique(originals, return_index=True)[1], len(found))
