"""The list of a source's entries on disk, and the order of a shuffled conversion."""

from __future__ import annotations

import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from dbloader.conversion.file_list import FileList, permutation
from dbloader.sources.base import Entry, Problem, Source, Tally

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


class Listed(Source):
    """A source of given items; an exception among them is raised."""

    def __init__(self, *items: Entry | Problem | Exception) -> None:
        super().__init__(Path(), ())
        self.items = items

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield item
        return Tally()


def entry(number: int, **changes: Any) -> Entry:
    return Entry(f"cat/{number}.jpg", (b"cat/%d.jpg" % number,), number % 3, {})._replace(**changes)


@contextmanager
def make(*items: Entry | Problem | Exception) -> Iterator[FileList]:
    with tempfile.TemporaryFile() as data:
        yield FileList.of_source(Listed(*items), data, lambda _: None)


def digest(*items: Entry | Problem) -> str:
    with make(*items) as files:
        return files.digest


def test_list_returns_its_items_at_any_position() -> None:
    fields = {"caption": "café", "score": 0.5, "count": 2**62, "none": None, "list": [1, "two", {"three": 3}]}
    items: list[Entry | Problem] = [
        entry(0),
        entry(1, label=None),
        Problem("cat/x.jpg", "the link cannot be followed"),
        entry(2, location=(b"cat/\xe9.jpg", 3, 7), name=r"cat/\xe9.jpg"),
        entry(3, fields=fields),
        entry(4, label=-(2**63) + 1),
    ]
    with make(*items) as files:
        assert len(files) == len(items)
        for position in (5, 0, 3, 4, 1, 2, 2):
            assert files[position] == items[position]
            assert type(files[position]) is type(items[position])


def test_threads_may_read_at_once() -> None:
    items = [entry(number) for number in range(2000)]
    wrong: list[int] = []
    with make(*items) as files:

        def read(step: int) -> None:
            wrong.extend(n for n in range(0, 2000, step) if files[n] != items[n])

        threads = [threading.Thread(target=read, args=[step]) for step in (1, 3, 7, 11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "cat/0.jpeg"},
        {"location": (b"cat/0.jpeg",)},
        {"label": 1},
        {"label": None},
        {"fields": {"caption": "a cat"}},
    ],
)
def test_digest_changes_with_any_part_of_an_entry(changes: dict[str, Any]) -> None:
    assert digest(entry(0), entry(1)) == digest(entry(0), entry(1))
    assert digest(entry(0, **changes), entry(1)) != digest(entry(0), entry(1))


def test_digest_changes_with_order_number_and_problems() -> None:
    lists: list[list[Entry | Problem]] = [
        [entry(0), entry(1)],
        [entry(1), entry(0)],
        [entry(0)],
        [entry(0), entry(1), entry(1)],
        [entry(0), Problem("cat/1.jpg", "a pipe")],
        [entry(0), Problem("cat/1.jpg", "a socket")],
        [],
    ]
    assert len({digest(*items) for items in lists}) == len(lists)


def test_error_of_the_source_is_raised() -> None:
    with pytest.raises(ValueError, match="row 3"), make(entry(0), ValueError("row 3")):
        pass


# The order of a shuffled conversion


def test_order_of_a_seed_never_changes() -> None:
    # Stores are made again years later. These come from another program, which uses Python's integers.
    assert permutation(10, 0).tolist() == [9, 7, 0, 8, 5, 1, 6, 2, 4, 3]
    assert permutation(10, 1).tolist() == [1, 9, 0, 6, 4, 7, 5, 2, 8, 3]
    assert permutation(10, -1).tolist() == [9, 1, 8, 4, 2, 6, 0, 7, 5, 3]


@given(length=st.integers(0, 500), seed=st.integers(-(2**63), 2**63 - 1))
def test_permutation_has_each_position_once(length: int, seed: int) -> None:
    order = permutation(length, seed)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == [*range(length)]
