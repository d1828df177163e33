"""The running viewer answers queries as the functions do, and sends a listing as a download."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from dbloader import copy_store, open_store
from dbloader.viewing import summary
from dbloader.viewing.selection import Selections

if TYPE_CHECKING:
    from pathlib import Path

    from tests.viewing.conftest import Opened


def get(opened: Opened, path: str) -> Any:
    answer = opened.ask(path)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def test_the_routes_of_a_selection_answer_as_the_functions_do(opened: Opened, stores: tuple[Path, Path]) -> None:
    for number, place in enumerate(stores):
        with open_store(place) as store:
            selections = Selections(store)
            for text in ("", "jpg width>1", "-jpg", "label:none index:0-2"):
                q = quote(text)
                assert get(opened, f"/api/{number}/select?q={q}") == summary.select(selections, text)
                assert get(opened, f"/api/{number}/rows?q={q}&start=1&count=2") == summary.rows(selections, text, 1, 2)
                plain = json.loads(json.dumps(summary.count(selections, text)))
                assert get(opened, f"/api/{number}/summary?q={q}") == plain
    assert get(opened, "/api/0/position?q=-index:1&index=1") == {"position": 1}
    assert get(opened, "/api/0/position?q=-index:1&index=9") == {"position": None}
    assert get(opened, "/api/0/position?q=&from=0&class=previous") == {"position": None}


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/api/0/rows?q=&start=0&count=501", "count from 0 to 500, got 0 and 501"),
        ("/api/0/summary?q=width%3Cnan", "letter 1: width< needs a number"),
        ("/api/0/select?q=%22", "letter 1: a quote is opened and not closed"),
        ("/api/0/position?q=&from=0&class=first", "class must be next or previous, got 'first'"),
        ("/api/0/position?q=&from=99&class=next", "no position 99 in the selection"),
        ("/listing/0?q=&format=exe", "format must be one of csv, jsonl, got 'exe'"),
    ],
)
def test_a_wrong_query_is_a_sentence(opened: Opened, path: str, error: str) -> None:
    answer = opened.ask(path)
    assert answer.status == 400
    assert error in json.loads(answer.body)["error"]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_listing_is_a_download_that_copy_takes(
    opened: Opened, stores: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    answer = opened.ask(f"/listing/0?q=index:1,3&format={kind}")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == f'attachment; filename="selection.{kind}"'
    (tmp_path / f"some.{kind}").write_bytes(answer.body)
    copy_store(stores[0], tmp_path / "copy.lmdb", select=tmp_path / f"some.{kind}")
    with open_store(stores[0]) as store, open_store(tmp_path / "copy.lmdb") as copy:
        assert [*copy.names()] == [store.name(1), store.name(3)]
