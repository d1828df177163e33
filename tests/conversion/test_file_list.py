"""The on-disk list of a source's entries, and the order of a shuffled conversion."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from typing_extensions import override

from dbloader.conversion.file_list import FileList, permutation
from dbloader.sources.base import Entry, Problem, Source, Tally


class Listed(Source):
    """A source that returns the given items."""

    def __init__(self, *items: Entry | Problem) -> None:
        super().__init__(Path(), ())
        self.items = items

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        yield from self.items
        return Tally()


def entry(number: int, **changes: Any) -> Entry:
    return Entry(f"cat/{number}.jpg", (b"cat/%d.jpg" % number,), number % 3, {})._replace(**changes)


def digest(*items: Entry | Problem) -> str:
    with tempfile.TemporaryFile() as data:
        return FileList.of_source(Listed(*items), data, lambda _: None).digest


def test_digest_changes_with_any_part_of_the_list() -> None:
    """A conversion resumes only if this digest is unchanged."""
    lists: list[list[Entry | Problem]] = [
        [entry(0), entry(1)],
        [entry(1), entry(0)],
        [entry(0)],
        [entry(0), entry(1), entry(1)],
        [entry(0), Problem("cat/1.jpg", "a pipe")],
        [entry(0), Problem("cat/1.jpg", "a socket")],
        [],
        [entry(0, name="cat/0.jpeg"), entry(1)],
        [entry(0, location=(b"cat/0.jpeg",)), entry(1)],
        [entry(0, label=1), entry(1)],
        [entry(0, label=None), entry(1)],
        [entry(0, fields={"caption": "a cat"}), entry(1)],
    ]
    assert digest(entry(0), entry(1)) == digest(entry(0), entry(1))
    assert len({digest(*items) for items in lists}) == len(lists)


def test_order_for_a_seed_never_changes() -> None:
    # A conversion must give the same order years later. A separate program that uses Python integers computed these.
    assert permutation(10, 0).tolist() == [9, 7, 0, 8, 5, 1, 6, 2, 4, 3]
    assert permutation(10, 1).tolist() == [1, 9, 0, 6, 4, 7, 5, 2, 8, 3]
    assert permutation(10, -1).tolist() == [9, 1, 8, 4, 2, 6, 0, 7, 5, 3]
