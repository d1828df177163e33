"""The list of a source's entries on disk, and the order of a shuffled conversion."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from dbloader.conversion.file_list import FileList, permutation
from dbloader.sources.base import Entry, Problem, Source

if TYPE_CHECKING:
    from collections.abc import Iterator


class Listed(Source):
    """A source of given items; an exception among them is raised."""

    def __init__(self, *items: Entry | Problem | Exception) -> None:
        super().__init__(Path(), ())
        self.items = items

    @override
    def entries(self) -> Iterator[Entry | Problem]:
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield item


def entry(number: int, **changes: Any) -> Entry:
    return Entry(f"cat/{number}.jpg", b"cat/%d.jpg" % number, number % 3, {})._replace(**changes)


def digest(*items: Entry | Problem) -> str:
    with FileList(Listed(*items), None, lambda _: None) as spool:
        return spool.digest


def test_items_come_back_from_any_position() -> None:
    fields = {"caption": "café", "score": 0.5, "count": 2**62, "none": None, "list": [1, "two", {"three": 3}]}
    items: list[Entry | Problem] = [
        entry(0),
        entry(1, label=None),
        Problem("cat/x.jpg", "the link cannot be followed"),
        entry(2, path=b"cat/\xe9.jpg", name=r"cat/\xe9.jpg"),
        entry(3, fields=fields),
        entry(4, label=-(2**63) + 1),
    ]
    with FileList(Listed(*items), None, lambda _: None) as spool:
        assert len(spool) == len(items)
        for position in (5, 0, 3, 4, 1, 2, 2):
            assert spool[position] == items[position]
            assert type(spool[position]) is type(items[position])


@pytest.mark.parametrize("positions", [[], [3], [3, 4, 5], [5, 4, 3], [0, 1, 1, 2, 9, 7, 8, 0], list(range(10))])
def test_many_items_come_back_in_the_order_asked_for(positions: list[int]) -> None:
    items = [entry(number, fields={"text": "x" * number}) for number in range(10)]
    with FileList(Listed(*items), None, lambda _: None) as spool:
        assert spool.items(positions) == [items[position] for position in positions]


def test_there_is_nothing_beyond_the_last_item() -> None:
    items = [entry(number) for number in range(5)]
    with FileList(Listed(*items), None, lambda _: None) as spool:
        assert spool.items([*range(5)]) == items
        with pytest.raises(IndexError):
            spool[5]
        for positions in ([5], [4, 5], [-1], [0, 7]):
            with pytest.raises(IndexError, match="there are 5 items"):
                spool.items(positions)


def test_an_empty_source_is_an_empty_spool() -> None:
    with FileList(Listed(), None, lambda _: None) as spool:
        assert len(spool) == 0


def test_threads_may_read_at_once() -> None:
    items = [entry(number) for number in range(2000)]
    wrong: list[int] = []
    with FileList(Listed(*items), None, lambda _: None) as spool:

        def read(step: int) -> None:
            wrong.extend(n for n in range(0, 2000, step) if spool[n] != items[n])

        threads = [threading.Thread(target=read, args=[step]) for step in (1, 3, 7, 11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_progress_is_told_every_thousand_items() -> None:
    found: list[int] = []
    with FileList(Listed(*map(entry, range(2500))), None, found.append) as spool:
        assert found == [1000, 2000]
        assert len(spool) == 2500


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "cat/0.jpeg"},
        {"path": b"cat/0.jpeg"},
        {"label": 1},
        {"label": None},
        {"fields": {"caption": "a cat"}},
    ],
)
def test_the_digest_changes_with_any_part_of_an_entry(changes: dict[str, Any]) -> None:
    assert digest(entry(0), entry(1)) == digest(entry(0), entry(1))
    assert digest(entry(0, **changes), entry(1)) != digest(entry(0), entry(1))


def test_the_digest_changes_with_order_number_and_problems() -> None:
    digests = {
        digest(entry(0), entry(1)),
        digest(entry(1), entry(0)),
        digest(entry(0)),
        digest(entry(0), entry(1), entry(1)),
        digest(entry(0), Problem("cat/1.jpg", "a pipe")),
        digest(entry(0), Problem("cat/1.jpg", "a socket")),
        digest(),
    }
    assert len(digests) == 7


def test_the_files_are_in_the_folder_asked_for_without_a_name(tmp_path: Path) -> None:
    with FileList(Listed(entry(0)), tmp_path, lambda _: None) as spool:
        assert not [*tmp_path.iterdir()]
        targets = [os.readlink(f"/proc/self/fd/{file.fileno()}") for file in (spool._data, spool._offsets)]  # noqa: PTH115
        assert all(target.startswith(str(tmp_path)) for target in targets)


def test_an_error_of_the_source_comes_out_and_leaves_nothing_open(tmp_path: Path) -> None:
    before = {*os.listdir("/proc/self/fd")}  # noqa: PTH208
    with pytest.raises(ValueError, match="row 3"):
        FileList(Listed(entry(0), ValueError("row 3")), tmp_path, lambda _: None)
    assert {*os.listdir("/proc/self/fd")} <= before  # noqa: PTH208
    assert not [*tmp_path.iterdir()]


def test_the_files_are_closed_at_the_end_of_the_block() -> None:
    with FileList(Listed(entry(0)), None, lambda _: None) as spool:
        pass
    assert spool._data.closed
    assert spool._offsets.closed


# The order of a shuffled conversion


def test_the_order_of_a_seed_never_changes() -> None:
    # Stores are made anew years later. These come from another program, which has Python's integers only.
    assert permutation(10, 0).tolist() == [9, 7, 0, 8, 5, 1, 6, 2, 4, 3]
    assert permutation(10, 1).tolist() == [1, 9, 0, 6, 4, 7, 5, 2, 8, 3]
    assert permutation(10, -1).tolist() == [9, 1, 8, 4, 2, 6, 0, 7, 5, 3]


@given(length=st.integers(0, 500), seed=st.integers(-(2**63), 2**63 - 1))
def test_each_position_comes_once(length: int, seed: int) -> None:
    order = permutation(length, seed)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == [*range(length)]
    assert order.tolist() == permutation(length, seed).tolist()


def test_different_seeds_give_different_orders() -> None:
    orders = {tuple(permutation(30, seed).tolist()) for seed in (*range(-50, 50), 2**63 - 1, -(2**63))}
    assert len(orders) == 102


def test_an_order_looks_random() -> None:
    order = permutation(100_000, 7).astype(float)
    places = np.arange(len(order))
    assert abs(np.corrcoef(order, places)[0, 1]) < 0.02
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.02
    means = order.reshape(10, -1).mean(axis=1)
    assert np.abs(means - len(order) / 2).max() < 1500
