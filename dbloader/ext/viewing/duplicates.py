"""Search a store for duplicates in the background, and list them, for the page of duplicates."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.errors import DamagedStoreError, DBLoaderError
from dbloader.ext.duplicates.fingerprints import load_groups
from dbloader.ext.duplicates.search import DISTANCE, describe_rows, search_store
from dbloader.ext.viewing.selection import flag_column
from dbloader.records.columns import NO_LABEL

if TYPE_CHECKING:
    from dbloader.ext.viewing.selection import Selections

_MOST_GROUPS, _MOST_IN_GROUP = 100, 60


class _StopError(Exception):
    pass


class Duplicates:
    """Searches a store for duplicates, like `dbloader duplicates`, in a thread. Threads may share this object.

    Queries can use the result as two columns. ``duplicates.extra`` is true for each duplicate, but not for its
    original. ``duplicates.differ`` is true for a duplicate and its original if their labels differ.
    """

    def __init__(self, selections: Selections) -> None:
        self._selections, self._store = selections, selections.store
        self._joined: tuple[int, int] | None = None
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._done, self._problem = 0, ""

    @property
    def is_running(self) -> bool:
        """Whether the search is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the search, unless it is running."""
        with self._lock:
            if not self.is_running:
                self._stopped.clear()
                self._done, self._problem = 0, ""
                self._thread = threading.Thread(target=self._run, name="duplicates", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Cancel the search, and wait until it has ended. The search cannot stop while it compares fingerprints."""
        with self._lock:
            self._stopped.set()
            if self._thread is not None:
                self._thread.join()

    def describe(self) -> dict[str, Any]:
        """Return the state of the search.

        ``running`` is a bool. ``done`` is the number of records that the search has read, and ``of`` is the number of
        all records. ``problem`` is the error that ended the last search, or "".
        """
        return {"running": self.is_running, "done": self._done, "of": len(self._store), "problem": self._problem}

    def join(self) -> None:
        """Load the result of the last search into the columns, unless it is loaded already.

        The last search may have been `dbloader duplicates` in another process.
        """
        groups = load_groups(self._store)
        if groups is None or self._joined == (groups.distance, len(groups.rows)):
            return
        try:
            labels = self._store.column("label")
        except DamagedStoreError:  # the page shows this error when it counts the classes
            return
        index, of = groups.rows["index"], groups.rows["of"]
        differs = labels[index] != labels[of]
        columns = {
            "duplicates.extra": flag_column(index, len(self._store)),
            "duplicates.differ": flag_column(np.concatenate([index[differs], of[differs]]), len(self._store)),
        }
        self._selections.join("duplicates", columns)
        self._joined = groups.distance, len(groups.rows)

    def list(self, start: int, count: int, *, differing: bool = False) -> dict[str, Any] | None:
        """Return groups of duplicates that the last search found; None if the store was not searched.

        - ``groups``: the groups. Each group has the ``index``, ``name`` and ``class`` of the original; the ``count`` of
          the duplicates; and the first 60 duplicates, ``others``. If a class has no name, ``class`` is the label;
        - ``total``: the number of all groups;
        - ``differing``: the number of groups with different labels;
        - ``duplicates``: the number of duplicates in all groups;
        - ``distance``: how many of the 128 bits of their fingerprints may differ between similar pictures.

        Args:
            start: Number of the first group to return, from 0.
            count: Number of groups to return, at most 100.
            differing: Leave out groups in which all labels are equal. Then ``start`` does not count these groups.
        """
        kept = load_groups(self._store)
        if kept is None:
            return None
        labels = self._store.column("label")
        differs = labels[kept.rows["index"]] != labels[kept.rows["of"]]
        numbers = np.unique(kept.begins.searchsorted(np.flatnonzero(differs), "right") - 1)
        total, groups = len(kept.begins) - 1, []
        shown = numbers if differing else np.arange(total)
        for number in shown[start : start + min(count, _MOST_GROUPS)].tolist():
            first, end = kept.begins[number : number + 2].tolist()
            found = describe_rows(kept.rows[first : min(end, first + _MOST_IN_GROUP)], self._store, self._store)
            rows = [{**row, "class": self._class_of(labels[row["index"]])} for row in found]
            of, name = rows[0]["of"], rows[0]["of_name"]
            original = {"index": of, "name": name, "class": self._class_of(labels[of])}
            groups.append({**original, "count": end - first, "others": rows})
        counts = {"total": total, "differing": len(numbers), "duplicates": len(kept.rows)}
        return {**counts, "distance": kept.distance, "groups": groups}

    def _class_of(self, label: Any) -> str | int | None:
        return None if label == NO_LABEL else self._store.manifest.class_name(int(label)) or int(label)

    def _run(self) -> None:
        try:
            search_store(self._store, DISTANCE, self._progress)
        except _StopError:
            pass
        except (DBLoaderError, OSError, MemoryError) as error:
            self._problem = str(error) or type(error).__name__

    def _progress(self, _: str, done: int, __: int) -> None:
        self._done = done
        if self._stopped.is_set():
            raise _StopError
