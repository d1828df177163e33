"""Mark records as dropped, relabeled or tagged, in a file beside the store. ``copying.listings`` describes the file."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import secrets
import shlex
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import counted, short_repr
from dbloader._places import is_mongo, path_beside
from dbloader.errors import DBLoaderError, OptionError
from dbloader.ext.copying.listings import MARKS, MOST_LETTERS, RecordNames, read_marks, why_not_tags
from dbloader.ext.viewing.joined import PREDICTION
from dbloader.ext.viewing.notebook import records_html
from dbloader.ext.viewing.selection import flag_column
from dbloader.records.field_columns import FieldColumn
from dbloader.records.names import Names
from dbloader.stores.lmdb.files import durable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.ext.viewing.selection import Selections

MARK_PREFIX = "mark."
_MOST_MARKS = 1_000_000
_MANY = 100  # a change of more records needs a confirmation on the page and a backup of the file
_SHOWN = 12  # most records shown for each kind of mark
_TAGS = 20  # tags that the page offers
_CHANGES = ("drop", "label", "accept", "tag", "clear", "remove", "untag", "undo", "redo")


class Marks:
    """The marks of a store, in a file. Queries can use the columns ``mark.drop``, ``mark.label`` and ``mark.tags``.

    Threads may share this object. Several viewers may change the same file. ``read_only`` refuses all changes.
    """

    def __init__(self, selections: Selections, *, read_only: bool = False) -> None:
        self._selections, self._read_only = selections, read_only
        self._lock = threading.Lock()
        self._marks: dict[int, dict[str, Any]] = {}
        self._seen: tuple[int, ...] | None = None
        self._done: list[dict[str, Any]] = []  # changes that can be undone
        self._undone: list[dict[str, Any]] = []  # changes that can be done again
        place = selections.store.place
        self._file = None if is_mongo(place) else path_beside(place, ".marks.jsonl")

    def describe(self) -> dict[str, Any]:
        """Return what the page shows about the marks. If the file has changed, read it first.

        ``why_not`` is the reason why no mark can be set, or None. ``count`` is the number of marked records.
        ``revision`` changes with the marks. ``command`` copies the store and applies the marks. ``undo`` is the change
        to undo next: its ``id``, ``change`` and ``count`` of records, or None. ``redo`` is the change that was undone
        last. ``tags`` are the first 20 tags in use, in alphabetical order.
        """
        try:
            with self._lock:
                self._read()
            why_not = self._why_not()
        except (DBLoaderError, OSError) as error:
            why_not = str(error)
        words = ["dbloader", "copy", self._selections.store.place, "clean.lmdb", "--marks", str(self._file)]
        undo, redo = (
            {key: steps[-1][key] for key in ("id", "change", "count")} if steps else None
            for steps in (self._done, self._undone)
        )
        return {
            "why_not": why_not, "count": len(self._marks), "revision": self._selections.revision,
            "command": shlex.join(words), "undo": undo, "redo": redo,
            "tags": sorted({tag for mark in self._marks.values() for tag in mark.get("tags", ())})[:_TAGS],
        }  # fmt: skip

    def summarize(self, query: str) -> dict[str, Any]:
        """Return how the records that match a query are marked.

        ``count`` is the number of these records. ``kinds`` has a dict for the drops, for each label and for each tag:
        ``key`` ("drop", "label" or "tag"), ``value``, ``count`` (of records) and ``first`` (their first 12 indices).
        """
        chosen, marks = self._selections.select(query), self._marks
        marked = sorted(marks) if isinstance(chosen, range) else np.intersect1d(chosen, [*marks]).tolist()
        kinds: dict[tuple[str, str], list[int]] = {("drop", ""): []}
        for index in marked:
            mark = marks[index]
            found = [("drop", "")] if mark.get("drop") else []
            found += [("label", self._label_text(mark["label"]))] if "label" in mark else []
            for kind in (*found, *(("tag", tag) for tag in mark.get("tags", ()))):
                kinds.setdefault(kind, []).append(index)
        rows = [
            {"key": key, "value": value, "count": len(indices), "first": indices[:_SHOWN]}
            for (key, value), indices in kinds.items()
            if indices
        ]
        return {"count": len(chosen), "kinds": sorted(rows, key=lambda row: (row["key"], -row["count"]))}

    def change(self, queries: str | Sequence[str], change: dict[str, Any]) -> None:
        """Mark the records that match a query, or one of several queries.

        ``change`` has one of these keys. ``drop``: True. ``label``: a class name, perhaps a new one, or an integer
        in a store without classes. ``accept``: True, to make the prediction the label. ``tag`` and ``untag``: a text.
        ``remove``: "drop" or "label". ``clear``: True, to remove all marks of the records. ``undo`` and ``redo``: the
        id of a change; they ignore the queries.

        Raises:
            OptionError: The query or the change is wrong, or marks cannot be set (see ``why_not`` in `describe`).
            SourceError: The file of marks has a mistake. The file stays unchanged.
            DBLoaderError: The file of marks cannot be written.
        """
        self._check(change)
        if why_not := self._why_not():
            raise OptionError(f"marks cannot be set: {why_not}")
        assert self._file is not None
        path = Path(os.path.realpath(self._file))
        with self._lock, _alone_in(path.parent):
            self._read()
            (step, value), steps = next(iter(change.items())), {"undo": self._done, "redo": self._undone}
            done = self._find_done(steps[step], value) if step in steps else None
            after = done["before"] if done else self._after(queries, change)
            before = {index: self._marks.get(index, {}) for index in after}
            marks = {index: mark for index, mark in sorted((self._marks | after).items()) if mark}
            try:
                if len(after) > _MANY and self._marks and not done:
                    backups = (path.with_suffix(f".backup{number or ''}.jsonl") for number in itertools.count())
                    self._write(next(each for each in backups if not each.exists()), self._marks, path)
                self._seen = self._write(path, marks, path)
            except OSError as error:
                raise DBLoaderError(f"{self._file} cannot be written: {error.strerror}") from error
            self._show(marks)
            if done:
                steps[step].remove(done)
                steps["redo" if step == "undo" else "undo"].append({**done, "before": done["after"], "after": after})
            elif after:
                facts = {"id": secrets.token_hex(4), "change": change, "count": len(after)}
                self._done.append({**facts, "before": before, "after": after})
                self._undone.clear()
            while sum(each["count"] for each in self._done) > _MOST_MARKS:  # limits the memory for undo
                del self._done[0]

    def _after(self, queries: str | Sequence[str], change: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return {index: new marks} of the records that change."""
        queries = [queries] if isinstance(queries, str) else queries
        indices = np.unique(np.concatenate([np.empty(0, int), *map(self._selections.select, queries)]))
        if not change.keys().isdisjoint(("clear", "remove", "untag")):
            indices = np.intersect1d(indices, np.fromiter(self._marks, np.int64))
        if len(indices) + len(self._marks.keys() - {*map(int, indices[:_MOST_MARKS])}) > _MOST_MARKS:
            raise OptionError(f"at most {_MOST_MARKS:,} records can be marked; use dbloader copy --where for more")
        old = {index: self._marks.get(index, {}) for index in map(int, indices)}
        changes = self._predicted(indices) if "accept" in change else dict.fromkeys(old, change)
        return {index: mark for index, what in changes.items() if (mark := _changed(old[index], what)) != old[index]}

    def _predicted(self, indices: Any) -> dict[int, dict[str, Any]]:
        """Return {index of a record with a prediction: the change that makes the prediction the label}."""
        columns, classes = self._selections.columns, self._selections.store.manifest.classes
        values, known = columns.known(PREDICTION, indices)
        texts = columns.texts(PREDICTION)[1] if columns.kinds[PREDICTION] == "text" else None
        changes: dict[int, dict[str, Any]] = {}
        for index, value, label in zip(
            indices[known].tolist(), values[known].tolist(), columns.values_of("label", indices[known]), strict=True
        ):
            given = texts[value] if texts else self._selections.store.manifest.class_name(value) or value
            if classes and isinstance(given, int):
                continue  # no class has this label
            own = classes[label] if classes and label is not None else label
            changes[index] = {"remove": "label"} if given == own else {"label": given}
        return changes

    def _find_done(self, steps: list[dict[str, Any]], change_id: Any) -> dict[str, Any]:
        """Return the change with an id. Raise OptionError if this change cannot be undone or made again."""
        done = next((each for each in steps if each["id"] == change_id), None)
        if done is None:
            raise OptionError("this change cannot be undone: it was undone already, or its viewer has ended")
        if since := {index for index, mark in done["after"].items() if self._marks.get(index, {}) != mark}:
            later = {index for each in steps[steps.index(done) + 1 :] for index in each["after"]}
            way = "undo them first" if since <= later else "another program set some of them: change them by hand"
            raise OptionError(f"{counted(len(since), 'record')} of this change got other marks later: {way}")
        return done

    def __repr__(self) -> str:
        known = self.describe()
        kinds = [f"{sum(key in mark for mark in self._marks.values()):,} with {key}" for key in MARKS]
        parts = [f"{counted(known['count'], 'marked record')} of {self._selections.store.place}", ", ".join(kinds)]
        return ": ".join([*parts, *filter(None, [known["why_not"]])])

    def _repr_html_(self) -> str | None:
        """Return HTML for notebooks: eight of the marked records, and the command that copies the store."""
        head, command = repr(self), self.describe()["command"]
        return records_html(self._selections.store, sorted(self._marks), head, command * bool(self._marks))

    def _why_not(self) -> str | None:
        if self._read_only:
            return "the viewer was started with --read-only"
        if self._file is None:
            return "marks are in a file beside the store, but a store in MongoDB has no place for a file"
        there = self._file if self._file.exists() else self._file.parent
        for path in (self._file.parent, there):
            if not os.access(path, os.W_OK, effective_ids=True):
                return f"{path.resolve()} is not writable"
        return None

    def _check(self, change: dict[str, Any]) -> None:
        if len(change) != 1 or not change.keys() <= {*_CHANGES}:
            raise OptionError(f"a change is one of {', '.join(_CHANGES)}, got {short_repr(change, 50)}")
        (key, value), classes = next(iter(change.items())), self._selections.store.manifest.classes
        if key == "label" and classes and not (isinstance(value, str) and 0 < len(value.strip()) <= MOST_LETTERS):
            wanted = f"a text of at most {MOST_LETTERS} letters, such as {short_repr(classes[0], 50)}"
            raise OptionError(f"a label is {wanted}, got {short_repr(value, 50)}")
        if key == "accept" and self._selections.columns.kinds.get(PREDICTION) not in ("int", "text"):
            raise OptionError("no predictions are given: start the viewer with --with and a column prediction")
        if key == "label" and not classes and (type(value) is not int or abs(value) >= 2**63):
            raise OptionError(f"the store has no classes, so a label is an integer, got {short_repr(value, 50)}")
        if key == "tag" and (wrong := why_not_tags([value])):
            raise OptionError(wrong)
        if key == "remove" and value not in ("drop", "label"):
            raise OptionError(f"remove must be drop or label, got {short_repr(value, 50)}")
        if key in ("drop", "clear", "accept") and value is not True:
            raise OptionError(f"{key} must be true, got {short_repr(value, 50)}")

    def _read(self) -> None:
        """Read the file of marks if it is new or another program has changed it."""
        seen = None
        if self._file is not None:
            with suppress(FileNotFoundError):
                seen = _signature(self._file.stat())
        if seen == self._seen or self._file is None:
            return
        marks = read_marks(self._file, RecordNames([self._selections.store])) if seen else {}
        self._seen = seen
        self._show(marks)

    def _write(self, path: Path, marks: dict[int, dict[str, Any]], like: Path) -> tuple[int, ...] | None:
        """Write a file of marks with the mode of ``like``. Without marks, remove the file. Return its signature."""
        if not marks:
            path.unlink(missing_ok=True)
            return None
        with durable(path) as file:
            for index, mark in marks.items():
                name = self._selections.columns.name(index)
                line = json.dumps({"index": index} | ({"name": name} if name else {}) | mark)
                file.write(f"{line}\n".encode())
            if like.exists():
                os.fchmod(file.fileno(), like.stat().st_mode & 0o777)
            file.flush()
            status = os.fstat(file.fileno())
        return _signature(status)

    def _show(self, marks: dict[int, dict[str, Any]]) -> None:
        self._marks, length = marks, len(self._selections.store)
        drops = [index for index, mark in marks.items() if mark.get("drop")]
        labels = {index: self._label_text(mark["label"]) for index, mark in marks.items() if "label" in mark}
        tags = {index: ", ".join(mark["tags"]) for index, mark in marks.items() if "tags" in mark}
        columns = {f"{MARK_PREFIX}drop": flag_column(drops, length)} if drops else {}
        for name, texts in (("label", labels), ("tags", tags)):
            if texts:
                columns[f"{MARK_PREFIX}{name}"] = FieldColumn("text", _pack(texts, length))
        self._selections.join("marks", columns)

    def _label_text(self, label: str | int | None) -> str:
        if label is None:
            return "no label"
        if isinstance(label, str):
            return label
        return self._selections.store.manifest.class_name(label) or str(label)


def _changed(mark: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    [(key, value)] = change.items()
    if key in ("clear", "remove"):
        return {name: one for name, one in mark.items() if key == "remove" and name != value}
    if key in ("drop", "label"):
        return mark | change
    tags = [tag for tag in mark.get("tags", []) if tag != value or key == "tag"]
    if key == "tag" and (wrong := why_not_tags(tags := [*dict.fromkeys([*tags, value])])):
        raise OptionError(wrong)
    return {name: one for name, one in {**mark, "tags": tags}.items() if one != []}


def _pack(texts: dict[int, str], length: int) -> Names:
    """Return a column of texts from {index: text}. Records without a text get ""."""
    order = sorted(texts)
    packed = [texts[index].encode(errors="replace") for index in order]
    offsets = np.zeros(length + 1, np.int64)
    offsets[np.array(order) + 1] = [*map(len, packed)]
    return Names(np.frombuffer(b"".join(packed), np.uint8), offsets.cumsum())


def _signature(status: os.stat_result) -> tuple[int, ...]:
    """Return numbers that change when the file changes."""
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Prevent other viewers from changing marks in a folder during the ``with`` block."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)  # writes the rename or removal of the file to the disk
    finally:
        os.close(descriptor)
