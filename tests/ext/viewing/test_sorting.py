"""A sorted search returns the found records in the order that Python's sort gives."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbloader import Record, open_store
from dbloader.errors import OptionError
from dbloader.ext.viewing import summary
from dbloader.ext.viewing.record import show_record
from dbloader.ext.viewing.selection import Selections
from dbloader.ext.viewing.sorting import find_position, sort_records
from tests.ext.viewing.stores import random_query, some_records, write_records
from tests.ext.viewing.test_summary import SIZES


def expected(records: list[Record], found: list[int], value_of: Callable[[Record], Any], *, down: bool) -> list[int]:
    known = [index for index in found if value_of(records[index]) is not None]
    return [
        *sorted(known, key=lambda index: value_of(records[index]) * (-1 if down else 1)),
        *(index for index in found if value_of(records[index]) is None),
    ]


def test_every_column_sorts_like_python(tmp_path: Path) -> None:
    records = some_records(3_000, seed=1)
    # Aspect ratios that differ only in the last bits, and the largest sizes.
    numbers, most = random.Random(2).choices(range(90), k=300), 2**32 - 1
    records += [Record(width=most - n % 3, height=most - n // 3) for n in numbers]
    write_records(tmp_path / "s.lmdb", records)
    rng = random.Random(3)
    with open_store(tmp_path / "s.lmdb") as store:
        selections = Selections(store)
        for text, holds in [("", lambda *_: True), *(random_query(rng, len(records), []) for _ in range(20))]:
            if "odd" in text:
                continue
            found = [index for index, record in enumerate(records) if holds(index, record)]
            for name, value_of in {**SIZES, "label": lambda record: record.label}.items():
                for by in (name, f"-{name}"):
                    order = sort_records(selections, text, by)
                    assert order.tolist() == expected(records, found, value_of, down=by != name)
            for at in range(0, len(found), 97):
                assert find_position(selections, text, "-label", int(order[at])) == at
                assert summary.rows(selections, text, at, 1, "-label")["rows"][0][0] == order[at]
        assert find_position(selections, "index:1-5", "width", 6) is None
        assert find_position(selections, "index:1-5", "", 2) == 1
        with pytest.raises(OptionError, match=r"sort must be one of width, .*, odd, or one of these after a -, got "):
            sort_records(selections, "", "name")


@pytest.mark.parametrize("text", ["", "width<9", "width<0"])
def test_sorting_by_odd_puts_the_rarest_sizes_first(tmp_path: Path, text: str) -> None:
    rng = random.Random(1)
    sizes = [(int(rng.expovariate(0.3)) + 1, rng.choice((1, 2))) for _ in range(500)]
    records = [Record(width=width, height=height) for width, height in sizes]
    records += [Record()] * 3
    write_records(tmp_path / "s.lmdb", records)
    found = [n for n, record in enumerate(records) if not text or (record.width or math.inf) < int(text[6:])]
    counts = Counter((records[n].width, records[n].height) for n in found)
    with open_store(tmp_path / "s.lmdb") as store:
        for by, sign in (("odd", 1), ("-odd", -1)):
            order = sort_records(Selections(store), text, by).tolist()
            assert order == sorted(
                found,
                key=lambda n: (
                    (sign * counts[size], *size, n)
                    if (size := (records[n].width, records[n].height))[0]
                    else (math.inf,)
                ),
            )


def test_similar_records_are_sorted_by_cosine_similarity(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(200, 12))
    wrong = {7: None, 9: np.ones(5), 11: np.zeros(12), 13: "text", 15: [[1.5], [2.5, 3.5]], 17: vectors[17].tolist()}
    records = [Record(f"{n}", n % 3, fields={"e": wrong.get(n, vectors[n])}) for n in range(200)]
    write_records(tmp_path / "s.lmdb", records)
    missing = [7, 9, 11, 13, 15]
    units = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    with open_store(tmp_path / "s.lmdb") as store:
        selections = Selections(store)
        for text, found in (("", [*range(200)]), ("label:1", [*range(1, 200, 3)])):
            nearest = sorted({*found} - {*missing}, key=lambda n: -float(units[n] @ units[40]))
            last = [n for n in missing if n in found]
            assert sort_records(selections, text, "like:e:40").tolist() == [*nearest, *last]
            assert sort_records(selections, text, "-like:e:40").tolist() == [*nearest[::-1], *last]
        assert find_position(selections, "", "like:e:40", 40) == 0
        assert [show_record(store, index)["vectors"] for index in (0, 13, 17)] == [["e"], [], ["e"]]
        for by, error in (
            ("like:e:200", "with the index of a record, got 'like:e:200'"),
            *((by, "with the index of a record") for by in ("like:e", "like:e:" + "9" * 5000)),
            *((f"like:e:{index}", f"record {index} has no vector in 'e'") for index in missing),
            ("like:none:3", "no record has a vector in a field 'none'"),
        ):
            with pytest.raises(OptionError, match=error):
                sort_records(selections, "", by)
