"""Search a store for duplicates in the background, for the page of duplicates."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.checking.duplicates import DISTANCE, search_store
from dbloader.checking.fingerprints import load_groups
from dbloader.errors import DamagedStoreError, DBLoaderError
from dbloader.viewing.selection import flag_column

if TYPE_CHECKING:
    from dbloader.viewing.selection import Selections


class _StopError(Exception):
    pass


class DuplicateSearch:
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

    def start(self) -> None:
        """Start the search, unless it is running."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stopped.clear()
                self._done, self._problem = 0, ""
                self._thread = threading.Thread(target=self._run, name="duplicates", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Cancel the search, and wait until it has ended. This can take a while if it is comparing fingerprints."""
        with self._lock:
            self._stopped.set()
            if self._thread is not None:
                self._thread.join()

    def describe(self) -> dict[str, Any]:
        """Return the state of the search.

        ``running`` is a bool. ``done`` is the number of records that the search has read, and ``of`` is the number of
        all records. ``problem`` is the error that ended the last search, or "".
        """
        running = self._thread is not None and self._thread.is_alive()
        return {"running": running, "done": self._done, "of": len(self._store), "problem": self._problem}

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
        differing = np.concatenate([index[differs], of[differs]])
        columns = {
            "duplicates.extra": flag_column(index, len(self._store)),
            "duplicates.differ": flag_column(differing, len(self._store)),
        }
        self._selections.join("duplicates", columns)
        self._joined = groups.distance, len(groups.rows)

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
