"""`dbloader diff`: the same, different, or not to be compared."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from dbloader import convert, copy_store
from tests.support.images import Outcome, photo, plant
from tests.support.shell import check_error

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.shell import Shell


def test_stores_that_are_the_same_have_status_0(shell: Shell, store: Path, mongo_uri: str) -> None:
    copy_store(store, mongo_uri)
    outcome = shell("diff", store, mongo_uri)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert re.fullmatch(
        rf"A {store}: 12 records\nB mongodb://.*: 12 records\n  same        12\n  moved       0\n", outcome.stdout
    )
    assert shell("diff", store, mongo_uri, "--quiet") == Outcome(0, "", "")


def test_differences_are_counted_and_named_with_status_1(shell: Shell, root: Path, store: Path, tmp_path: Path) -> None:
    (root / "cat" / "0000.jpg").unlink()
    plant(root, {"cat/0002.jpg": photo(77), "dog/new\x1b.jpg": photo(78)})
    other = tmp_path / "other.lmdb"
    convert(root, other)
    outcome = shell("diff", store, other, "--pixels", "--output", tmp_path / "rows.jsonl")
    assert outcome == Outcome(
        1,
        f"A {store}: 12 records\n"
        f"B {other}: 12 records\n"
        "  same        0\n"
        "  moved       10\n"
        "  only in A   1\n"
        "  only in B   1\n"
        "  bytes       1\n"
        "  pixels      1\n"
        "    record 0, cat/0000.jpg: only in A\n"
        "    dog/new\\x1b.jpg: only in B\n"
        "    record 1, cat/0002.jpg: bytes, pixels\n",
        "",
    )
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["index"], row["name"]) for row in rows] == [(0, "cat/0000.jpg"), (1, "cat/0002.jpg")]
    found = json.loads(shell("diff", store, other, "--json").stdout)
    assert found["differences"] == {"only in A": 1, "only in B": 1, "bytes": 1}
    assert [row["index"] for row in found["first"]] == [0, None, 1]


def test_what_cannot_be_compared_has_status_2(shell: Shell, store: Path) -> None:
    check_error(shell("diff", store, store.with_name("none.lmdb")), "does not exist", 2)
    check_error(shell("diff", store, store.parent), "is a folder", 2)
    check_error(shell("diff", store, store, "--output", store / "x"), "there is no folder .*lmdb; make it first", 2)
