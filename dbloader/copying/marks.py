"""Read marks: decisions about records that people make in the viewer, in a ``.jsonl`` listing beside the store.

Each line has the ``index`` and the ``name`` of a record, and the decisions: ``"drop": true``, a ``label``, or ``tags``.
The name must be the name of the record, because the marks of another store are an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._describe import short_repr
from dbloader.copying.name_listing import NameListing
from dbloader.errors import SourceError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from dbloader.copying.name_listing import RecordNames

KEYS = ("drop", "label", "tags")
MOST_LETTERS = 500
"""Most letters that all tags of a record may have together. The limit ensures that a column can hold all tags."""


class MarkListing(NameListing):
    """The marks in a file. Every mistake in the file raises an error that names the row.

    Args:
        marks: Path of the file.
        names: The names of the records.
        key: One of ``KEYS``, to read only rows with this key, for ``find`` and ``labels``. None for all rows.
    """

    def __init__(self, marks: str | os.PathLike[str], names: RecordNames, key: str | None = None) -> None:
        super().__init__(marks, names)
        self._key = key

    @override
    def rows(self) -> Iterator[tuple[int, dict[str, Any], list[int]]]:
        seen: set[int] = set()
        for number, row, positions in super().rows():
            where = f"{self.where}, row {number}"
            if unknown := row.keys() - {"index", "name", *KEYS}:
                self._fail(where, f"a mark has index, name, {', '.join(KEYS)}, but not {short_repr(min(unknown), 50)}")
            if not isinstance(row.get("drop", False), bool):
                self._fail(where, f"drop must be true or false, got {short_repr(row['drop'], 50)}")
            if not isinstance(row.get("label", ""), (str, int, type(None))) or isinstance(row.get("label"), bool):
                self._fail(where, f"a label must be an integer, a name or null, got {short_repr(row['label'], 50)}")
            if wrong := why_not_tags(row.get("tags", ["a"])):
                self._fail(where, wrong)
            if not row.get("name") and any(map(self._names.name, positions)):
                self._fail(where, "has no name: the name of the record shows that the marks belong to this store")
            if not seen.isdisjoint(positions):
                self._fail(where, "an earlier row has the same record; keep one row for each record")
            seen.update(positions)
            if self._key is None or (row.get("drop") if self._key == "drop" else self._key in row):
                yield number, row, positions


def why_not_tags(tags: Any) -> str | None:
    """Return why a value cannot be the tags of a record; None if it can."""
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) and tag.strip() for tag in tags):
        return f'tags must be a list of texts, such as ["blurry"], got {short_repr(tags, 50)}'
    letters = len(", ".join(tags))
    return f"its tags have {letters:,} letters, but at most {MOST_LETTERS} fit" if letters > MOST_LETTERS else None


def check_agreement(files: Sequence[str | os.PathLike[str]], names: RecordNames) -> None:
    """Check that several files of marks do not disagree about a record.

    Raises:
        SourceError: One file drops a record that another file labels; two files give a record different labels; or a
            file has a mistake.
    """
    if len(files) < 2:
        return
    decided: dict[int, tuple[str, str]] = {}
    for file in files:
        for number, row, positions in MarkListing(file, names).rows():
            if not row.get("drop") and "label" not in row:
                continue
            what = "drop" if row.get("drop") else f"label {short_repr(row['label'], 50)}"
            for position in positions:
                before, there = decided.setdefault(position, (what, f"{file}, row {number}"))
                if before != what:
                    record = f"record {position} ({names.name(position)})"
                    raise SourceError(f"{there}, and {file}, row {number}, disagree about {record}: {before} or {what}")
