"""Search a store for duplicates in the background, and list them, for the page of duplicates."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader.errors import DamagedStoreError, DBLoaderError, OptionError
from dbloader.ext.duplicates.fingerprints import load_groups
from dbloader.ext.duplicates.search import DISTANCE, describe_rows, find_across, fingerprints_of, search_store
from dbloader.ext.viewing.selection import flag_column
from dbloader.records.columns import NO_LABEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.ext.viewing.selection import Selections
    from dbloader.stores.base import Store

_MOST_GROUPS, _MOST_IN_GROUP = 100, 60


class _StopError(Exception):
    pass


def _class_of(store: Store, label: Any) -> str | int | None:
    return None if label == NO_LABEL else store.manifest.class_name(int(label)) or int(label)


class _Search:
    """Runs a search in a thread. Threads may share this object."""

    def __init__(self, selections: Sequence[Selections]) -> None:
        self._all = selections
        self.places = [some.store.place for some in selections]
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._done = self._before = 0
        self._problem = ""

    def start(self) -> None:
        """Start the search, unless it is running."""
        with self._lock:
            if not self.describe()["running"]:
                self._stopped.clear()
                self._done, self._before, self._problem = 0, 0, ""
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
        of = sum(len(some.store) for some in self._all)
        running = self._thread is not None and self._thread.is_alive()
        return {"running": running, "done": self._done, "of": of, "problem": self._problem}

    def join(self) -> None:
        """Load the results of other processes into the columns of the store."""

    def _search(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self._search()
        except _StopError:
            pass
        except (DBLoaderError, OSError, MemoryError) as error:
            self._problem = str(error) or type(error).__name__

    def _progress(self, _: str, done: int, of: int) -> None:
        self._done = self._before + done
        self._before += of * (done == of)  # in the next store, ``done`` begins at 0 again
        if self._stopped.is_set():
            raise _StopError


class Duplicates(_Search):
    """Searches a store for duplicates, like `dbloader duplicates`, in a thread.

    Queries can use the result as two columns. ``duplicates.extra`` is true for each duplicate, but not for its
    original. ``duplicates.differ`` is true for a duplicate and its original if their labels differ.
    """

    def __init__(self, selections: Selections) -> None:
        super().__init__([selections])
        self._selections, self._store = selections, selections.store
        self._joined: tuple[int, int] | None = None

    def join(self) -> None:
        """Load the result of the last search into the columns, if this result is new.

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
        - ``distance``: images are similar if at most this number of the 128 bits of their fingerprints differ.

        Return at most 100 groups, from number ``start`` on. With ``differing``, return and count only groups with
        different labels.
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
            rows = [{**row, "class": _class_of(self._store, labels[row["index"]])} for row in found]
            of, name = rows[0]["of"], rows[0]["of_name"]
            original = {"index": of, "name": name, "class": _class_of(self._store, labels[of])}
            groups.append({**original, "count": end - first, "others": rows})
        counts = {"total": total, "differing": len(numbers), "duplicates": len(kept.rows)}
        return {**counts, "distance": kept.distance, "groups": groups}

    @override
    def _search(self) -> None:
        search_store(self._store, DISTANCE, self._progress)


class Leaks(_Search):
    """Searches the stores of the viewer, such as train and val, for records that are also in another of these stores.

    Queries can use the result as the column ``duplicates.leak``, which is true for these records.
    """

    _rows: list[Any] | None = None  # an array for each store: dtype DUPLICATE, exact copies first

    def list(self, start: int, count: int, *, number: int) -> dict[str, Any] | None:
        """Return the records of store ``number`` that are also in another store; None if no search has ended.

        - ``pairs``: at most 100 records, each with its ``index`` and ``class``. ``store`` (a number), ``of`` (an index)
          and ``of_class`` describe the nearest record in another store. ``difference`` is "same" or "near". ``bits`` is
          the number of different bits in the fingerprints;
        - ``leaks``: for each store, the number of its records that are also in another store.
        """
        if self._rows is None:
            return None
        others = [other for other in range(len(self._all)) if other != number]
        starts = np.cumsum([0, *(len(self._all[other].store) for other in others)])
        rows, pairs = self._rows[number], []
        own, labels = self._all[number].store, [some.store.column("label") for some in self._all]
        which = starts.searchsorted(rows["of"], "right") - 1
        for at in range(start, min(len(rows), start + min(count, _MOST_GROUPS))):
            index, of, bits, same = rows[at].item()
            store = others[which[at]]
            nearest = of - int(starts[which[at]])
            pair = {"index": index, "class": _class_of(own, labels[number][index]), "store": store, "of": nearest}
            other = _class_of(self._all[store].store, labels[store][nearest])
            pairs.append({**pair, "of_class": other, "difference": "same" if same else "near", "bits": bits})
        return {"leaks": [*map(len, self._rows)], "pairs": pairs}

    @override
    def _search(self) -> None:
        if len(self._all) < 2:
            raise OptionError("leaks are records of one store that are also in another: view two stores")
        prints = [fingerprints_of(some.store, self._progress) for some in self._all]
        found = [find_across(prints, number, DISTANCE).rows for number in range(len(prints))]
        self._rows = [rows[np.lexsort((rows["index"], rows["bits"], ~rows["same"]))] for rows in found]
        for selections, rows in zip(self._all, self._rows, strict=True):
            selections.join("leaks", {"duplicates.leak": flag_column(rows["index"], len(selections.store))})
