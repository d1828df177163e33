"""Marks of the viewer: writing, searching and refusing marks, and files that someone else changes."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from dbloader import Record, copy_store, open_store
from dbloader.errors import DBLoaderError, OptionError, SourceError
from dbloader.ext.duplicates.fingerprints import fingerprint_path
from dbloader.ext.viewing import summary
from dbloader.ext.viewing.app import ViewerState, create_app
from dbloader.ext.viewing.joined import join_listings
from dbloader.ext.viewing.marks import Marks
from dbloader.ext.viewing.selection import Selections
from dbloader.ext.viewing.sorting import sort_records
from dbloader.stores.base import Store
from tests.ext.viewing.stores import write_records
from tests.support.images import NOBODY, as_nobody

CLASSES = ("cat", "dog", "maine coon")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    records = [Record(name=f"r{n}" if n != 7 else None, label=n % 3, width=n + 1, height=1) for n in range(9)]
    write_records(tmp_path / "s.lmdb", records, classes=CLASSES)
    with open_store(tmp_path / "s.lmdb") as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "s.lmdb.marks.jsonl"


def placed(store: Store, place: str) -> Any:
    """Return a stand-in for a store at another place, with only what marks use."""
    return SimpleNamespace(place=place, manifest=store.manifest)


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_marks_are_written_searched_sorted_and_removed(store: Store, file: Path) -> None:
    marks = Marks(selections := Selections(store))
    facts: dict[str, Any] = {"why_not": None, "count": 0, "revision": 0, "undo": None, "redo": None, "tags": []}
    assert marks.describe() == {**facts, "command": marks.describe()["command"]}
    assert [*selections.select("width>7")] == [7, 8]
    marks.change("index:7,2", {"drop": True})
    marks.change("index:2-3", {"label": "maine coon"})
    marks.change("index:3", {"tag": "blurry"})
    marks.change("mark.drop or index:3", {"tag": "see, ann"})
    marks.change("index:3", {"tag": "blurry"})
    assert rows(file) == [
        {"index": 2, "name": "r2", "drop": True, "label": "maine coon", "tags": ["see, ann"]},
        {"index": 3, "name": "r3", "label": "maine coon", "tags": ["blurry", "see, ann"]},
        {"index": 7, "drop": True, "tags": ["see, ann"]},
    ]
    assert marks.describe()["count"] == 3
    for query, found in (
        ("mark.drop", [2, 7]), ("-mark.drop class:cat", [0, 3, 6]), ('mark.label="maine coon"', [2, 3]),
        ("mark.tags~BLURRY", [3]), ('mark.label!=""', [2, 3]), ("mark.drop=false width<3", [0, 1]),
    ):  # fmt: skip
        assert [*selections.select(query)] == found, query
    assert [*sort_records(selections, "", "-mark.drop")][:2] == [2, 7]
    assert [*sort_records(selections, "", "mark.tags")][:3] == [3, 2, 7]
    assert summary.field(selections, "", "mark.label")["values"] == [("maine coon", 2)]
    assert summary.rows(selections, "index:2", 0, 1)["rows"][0][6] == {
        "mark.drop": "true", "mark.label": "maine coon", "mark.tags": "see, ann"
    }  # fmt: skip
    assert Marks(other := Selections(store)).describe()["count"] == 3
    assert [*other.select("mark.drop")] == [2, 7]
    # A change of the marks makes cached results invalid.
    marks.change("index:2", {"clear": True})
    assert [*selections.select("mark.drop")] == [7]
    assert [*sort_records(selections, "", "mark.tags")][:2] == [3, 7]
    assert summary.field(selections, "", "mark.label")["values"] == [("maine coon", 1)]
    marks.change("", {"clear": True})
    assert (file.exists(), selections.columns.kinds) == (False, {})
    assert [path.name for path in file.parent.iterdir()] == ["s.lmdb"]


def test_copy_applies_what_the_viewer_has_marked(store: Store, file: Path, tmp_path: Path) -> None:
    marks = Marks(Selections(store))
    marks.change("class:cat", {"drop": True})
    marks.change("index:1,7", {"label": "maine coon"})
    copy_store(store.place, tmp_path / "copy.lmdb", marks=file)
    with open_store(tmp_path / "copy.lmdb") as copy:
        assert copy.column("label").tolist() == [2, 2, 1, 2, 2, 2]
        assert copy.manifest.classes == CLASSES


def test_new_class_is_marked_as_copy_allows_it(store: Store, file: Path, tmp_path: Path) -> None:
    marks = Marks(Selections(store))
    marks.change("index:0-1", {"label": "siamese"})
    copy_store(store.place, tmp_path / "copy.lmdb", marks=file)
    with open_store(tmp_path / "copy.lmdb") as copy:
        assert [copy.manifest.class_name(label) for label in copy.column("label").tolist()[:3]] == [
            "siamese", "siamese", "maine coon"
        ]  # fmt: skip


@pytest.mark.parametrize("numbers", [False, True])
def test_accepted_predictions_become_the_labels_of_their_records(
    store: Store, file: Path, tmp_path: Path, *, numbers: bool
) -> None:
    # Record 2 is a maine coon as predicted, record 3 has no prediction, and record 0 has another mark already.
    given = {0: "dog", 1: "cat", 2: "maine coon"}
    lines = [{"name": f"r{n}", "prediction": CLASSES.index(to) if numbers else to} for n, to in given.items()]
    (tmp_path / "p.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    marks = Marks(Selections(store, join_listings([store], tmp_path / "p.jsonl")[0]))
    marks.change("index:0,2", {"label": "siamese"})
    marks.change("index:0-3", {"accept": True})
    assert rows(file) == [{"index": 0, "name": "r0", "label": "dog"}, {"index": 1, "name": "r1", "label": "cat"}]
    undo = marks.describe()["undo"]
    assert (undo["change"], undo["count"]) == ({"accept": True}, 3)


def test_undone_change_is_made_again_until_another_change(store: Store, file: Path) -> None:
    marks = Marks(Selections(store))
    for n in range(3):
        marks.change(f"index:{n}", {"drop": True})
    for _ in range(3):
        marks.change("", {"undo": marks.describe()["undo"]["id"]})
    assert not file.exists()
    for _ in range(2):
        marks.change("", {"redo": marks.describe()["redo"]["id"]})
    assert [row["index"] for row in rows(file)] == [0, 1]
    redo = marks.describe()["redo"]["id"]
    marks.change("", {"undo": marks.describe()["undo"]["id"]})
    marks.change("index:5", {"tag": "a"})
    assert marks.describe()["redo"] is None
    with pytest.raises(OptionError, match="cannot be undone"):
        marks.change("", {"redo": redo})


def test_summary_of_marks_counts_the_records_of_a_query(store: Store, file: Path) -> None:
    marks = Marks(Selections(store))
    marks.change("index:0-4", {"drop": True})
    marks.change("index:3-4", {"label": "dog"})
    marks.change("index:4", {"tag": "blurry"})
    assert marks.summarize("") == {"count": 9, "kinds": [
        {"key": "drop", "value": "", "count": 5, "first": [0, 1, 2, 3, 4]},
        {"key": "label", "value": "dog", "count": 2, "first": [3, 4]},
        {"key": "tag", "value": "blurry", "count": 1, "first": [4]},
    ]}  # fmt: skip
    assert marks.summarize("index:3,7") == {"count": 2, "kinds": [
        {"key": "drop", "value": "", "count": 1, "first": [3]},
        {"key": "label", "value": "dog", "count": 1, "first": [3]},
    ]}  # fmt: skip
    assert marks.describe()["tags"] == ["blurry"]


def test_marks_file_edited_by_hand_is_read_before_a_change(store: Store, file: Path) -> None:
    marks = Marks(selections := Selections(store))
    marks.change("index:2", {"drop": True})
    file.chmod(0o640)
    file.write_text('{"name": "r5", "tags": ["by hand"]}\n\n' + file.read_text().replace("true", "false"))
    marks.change("index:0", {"label": "dog"})
    assert [(row["index"], [*row][2:]) for row in rows(file)] == [(0, ["label"]), (2, ["drop"]), (5, ["tags"])]
    assert [*selections.select("mark.tags~hand or mark.drop")] == [5]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.unlink()
    assert (marks.describe()["count"], selections.columns.kinds) == (0, {})


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"index": 3, "name": "r4", "drop": true}', "row 2: record 3 of .* is 'r3', not 'r4': .* another store"),
        ('{"index": 3, "name": "r3", "drop": 1}', "row 2: drop must be true or false, got 1"),
        ('{"index": 3, "name": "r3"', "row 2: is not JSON"),
        ('{"name": "gone", "drop": true}', "no record in"),
    ],
)
def test_file_with_a_mistake_is_never_overwritten(store: Store, file: Path, line: str, what: str) -> None:
    marks = Marks(selections := Selections(store))
    marks.change("index:0", {"drop": True})
    text = file.read_text() + line + "\n"
    file.write_text(text)
    for _ in range(2):
        with pytest.raises(SourceError, match=what):
            marks.change("index:1", {"drop": True})
    assert file.read_text() == text
    assert what.split(" ")[0] in Marks(Selections(store)).describe()["why_not"]
    assert [*selections.select("mark.drop")] == [0]  # marks stay as they were last read


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"label": 1}, "a label is a text of at most 500 letters, such as 'cat', got 1"),
        ({"label": " "}, "a label is a text"),
        ({"label": "x" * 501}, "a label is a text"),
        ({"accept": True}, "no predictions are given: start the viewer with --with"),
        ({"tag": " "}, "tags must be a list of texts"),
        ({"tag": "x" * 501}, "its tags have 501 letters"),
        ({"tag": None}, "tags must be a list of texts"),
        ({"drop": False}, "drop must be true, got False"),
        (
            {"drop": True, "tag": "a"},
            "a change is one of drop, label, accept, tag, clear, remove, untag, undo, redo, got",
        ),
        ({}, "a change is one of"),
        ({"tags": ["a"]}, "a change is one of"),
    ],
)
def test_wrong_change_is_refused(store: Store, file: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        Marks(Selections(store)).change("", change)
    assert not file.exists()


def test_labels_without_classes_are_integers(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(name="a", label=4)], classes=())
    with open_store(tmp_path / "s.lmdb") as store:
        marks = Marks(selections := Selections(store))
        marks.change("", {"label": -5})
        assert [*selections.select("mark.label=-5")] == [0]
        for label in ("5", True, 2**63, 0.5):
            with pytest.raises(OptionError, match="so a label is an integer"):
                marks.change("", {"label": label})


def test_marks_have_limits(store: Store, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.ext.viewing.marks._MOST_MARKS", 3)
    marks = Marks(Selections(store))
    marks.change("index:0-2", {"drop": True})
    marks.change("index:0-2", {"tag": "x" * 300})
    for query, change, what in (
        ("index:3", {"drop": True}, "at most 3 records can be marked; use dbloader copy --where"),
        ("", {"drop": True}, "at most 3 records"),
        ("index:0", {"tag": "y" * 200}, "its tags have 502 letters, but at most 500 fit"),
    ):
        before = file.read_text()
        with pytest.raises(OptionError, match=what):
            marks.change(query, change)
        assert file.read_text() == before
    marks.change("", {"clear": True})
    assert not file.exists()


def test_concurrent_changes_lose_nothing(store: Store, file: Path) -> None:
    # Run two viewers of the same store, each with two threads.
    viewers = [Marks(Selections(store)) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda n=n: [viewers[n % 2].change(f"index:{n}", {"tag": str(t)}) for t in range(10)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row["tags"] for row in rows(file)] == [[*map(str, range(10))]] * 4


def test_failed_write_leaves_the_old_marks(store: Store, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(selections := Selections(store))
    marks.change("index:1", {"drop": True})
    before = file.read_text()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DBLoaderError, match=r"s\.lmdb\.marks\.jsonl cannot be written: No space left on device"):
        marks.change("", {"drop": True})
    assert file.read_text() == before
    assert sorted(path.name for path in file.parent.iterdir()) == ["s.lmdb", file.name]
    assert [*selections.select("mark.drop")] == [1]


def test_marks_are_off_if_the_file_cannot_be_written(store: Store, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Marks(Selections(store)).change("index:0", {"drop": True})
    for marks, what in (
        (Marks(Selections(store), read_only=True), "started with --read-only"),
        (Marks(Selections(placed(store, "mongodb://server/a.b"))), "MongoDB has no place for a file"),
    ):
        assert what in marks.describe()["why_not"]
        with pytest.raises(OptionError, match=f"marks cannot be set: .*{what}"):
            marks.change("", {"drop": True})
    assert Marks(Selections(store), read_only=True).describe()["count"] == 1
    if os.geteuid() == 0:
        os.chown(file.parent, NOBODY, -1)
    monkeypatch.chdir(file.parent)  # pytest's own folders are private
    with open_store("s.lmdb") as opened:
        marks = Marks(Selections(opened))
        assert marks.describe()["why_not"] is None
        for protected in (file, file.parent):
            protected.chmod(0o555)
            with as_nobody():
                assert marks.describe()["why_not"] == f"{protected} is not writable"
        file.parent.chmod(0o755)
    assert len(rows(file)) == 1


def test_marks_of_a_sharded_store_are_beside_its_folder(store: Store, tmp_path: Path, monkeypatch: Any) -> None:
    for place in (f"{tmp_path}/s.lmdb/", f"{tmp_path}/./s.lmdb"):
        marks = Marks(Selections(placed(store, place)))
        assert marks.describe()["command"].endswith("/s.lmdb.marks.jsonl")
        assert fingerprint_path(place) == tmp_path / "s.lmdb.duplicates"
    monkeypatch.chdir(tmp_path)
    assert f"--marks {tmp_path}.marks.jsonl" in Marks(Selections(placed(store, "."))).describe()["command"]


def test_route_changes_marks_and_returns_the_store(store: Store, file: Path) -> None:
    client = TestClient(create_app(ViewerState([store])))
    body: dict[str, Any] = {"q": "class:dog", "drop": True}
    found = client.post("/api/0/marks", json=body).json()
    assert (found["marks"]["count"], found["columns"]) == (3, {"mark.drop": "bool"})
    assert "mark.drop" in found["sorts"]
    assert client.get("/api/0/record/1").json()["joined"] == {"mark.drop": "true"}
    assert client.get("/api/stores").json()[0]["marks"] == found["marks"]
    assert client.post("/api/1/marks", json=body).status_code == 400
    file.write_text("x")
    assert client.post("/api/0/marks", json=body).status_code == 400


HAND_MADE = [
    {"index": 1, "name": "r1", "label": "cat", "tags": ["see, ann", "blurry"]},
    {"index": 2, "name": "r2", "drop": False},
    {"index": 3, "name": "r3", "drop": True, "label": None},
    {"index": 7, "tags": ["blurry"]},
]


@pytest.fixture
def hand_made(file: Path) -> list[dict[str, Any]]:
    """Marks of several kinds, which a person has made."""
    file.write_text("".join(f"{json.dumps(row)}\n" for row in HAND_MADE))
    return HAND_MADE


@pytest.mark.parametrize(
    "change",
    [
        {"drop": True}, {"label": "dog"}, {"tag": "new"}, {"tag": "blurry"}, {"clear": True}, {"untag": "blurry"},
        {"remove": "drop"}, {"remove": "label"},
    ],
    ids=str,
)  # fmt: skip
def test_undo_gives_each_record_its_own_earlier_marks(
    store: Store, file: Path, hand_made: list[dict[str, Any]], change: dict[str, Any]
) -> None:
    marks = Marks(selections := Selections(store))
    marks.change("", change)
    assert not file.exists() or rows(file) != hand_made
    undo = marks.describe()["undo"]
    assert undo["change"] == change
    marks.change("", {"undo": undo["id"]})
    assert rows(file) == hand_made
    assert [*selections.select("mark.tags~ann")] == [1]
    assert marks.describe()["undo"] is None
    with pytest.raises(OptionError, match="this change cannot be undone: it was undone already"):
        marks.change("", {"undo": undo["id"]})


def test_undo_counts_only_the_records_that_changed(store: Store, hand_made: list[dict[str, Any]]) -> None:
    marks = Marks(Selections(store))
    marks.change("", {"untag": "blurry"})
    assert marks.describe()["undo"]["count"] == 2
    marks.change("", {"untag": "nobody has it"})
    assert marks.describe()["undo"]["count"] == 2  # a change of nothing cannot be undone


def test_changes_are_undone_in_any_order_unless_they_share_records(store: Store, file: Path) -> None:
    marks, undos = Marks(Selections(store)), []
    for queries, tag in ((["index:0-2", "index:2-3", "index:8"], "a"), ("index:5", "b"), ("index:3-4", "c")):
        marks.change(queries, {"tag": tag})
        undos.append({"undo": marks.describe()["undo"]["id"]})
    text = file.read_text()
    with pytest.raises(OptionError, match="1 record of this change got other marks later: undo them first"):
        marks.change("", undos[0])
    assert file.read_text() == text
    for number, left in (
        (1, {0: "a", 1: "a", 2: "a", 3: "ac", 4: "c", 8: "a"}),
        (2, dict.fromkeys([0, 1, 2, 3, 8], "a")),
    ):
        marks.change("", undos[number])
        assert {row["index"]: "".join(row["tags"]) for row in rows(file)} == left
    marks.change("", undos[0])
    assert not file.exists()


def test_undo_leaves_marks_that_another_program_has_set_since(store: Store, file: Path) -> None:
    marks = Marks(Selections(store))
    marks.change("index:0-2", {"drop": True})
    undo = {"undo": marks.describe()["undo"]["id"]}
    Marks(Selections(store)).change("index:1", {"tag": "of another viewer"})
    text = file.read_text()
    by_hand = "of this change got other marks later: another program set some of them: change them by hand$"
    with pytest.raises(OptionError, match=f"^1 record {by_hand}"):
        marks.change("", undo)
    assert file.read_text() == text
    marks.change("index:0", {"tag": "later"})  # undoing this does not help
    with pytest.raises(OptionError, match=f"^2 records {by_hand}"):
        marks.change("", undo)
    marks.change("", {"undo": marks.describe()["undo"]["id"]})
    Marks(Selections(store)).change("index:1", {"untag": "of another viewer"})
    marks.change("", undo)
    assert not file.exists()


def test_concurrent_undo_of_one_change_has_one_winner(store: Store, file: Path) -> None:
    marks = Marks(Selections(store))
    marks.change("index:1", {"tag": "a"})
    marks.change("index:1", {"tag": "b"})
    undo, failed = {"undo": marks.describe()["undo"]["id"]}, []

    def click() -> None:
        try:
            marks.change("", undo)
        except OptionError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=click) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 3
    assert rows(file) == [{"index": 1, "name": "r1", "tags": ["a"]}]


def test_drop_label_and_tags_are_taken_back_one_by_one(store: Store, file: Path) -> None:
    marks, first = Marks(Selections(store)), {"index": 1, "name": "r1"}
    for change in ({"drop": True}, {"label": "cat"}, {"tag": "drop"}, {"tag": "a, b"}):
        marks.change("index:1", change)
    for change, left in (
        ({"untag": "drop"}, {"drop": True, "label": "cat", "tags": ["a, b"]}),
        ({"remove": "drop"}, {"label": "cat", "tags": ["a, b"]}),
        ({"untag": "a"}, {"label": "cat", "tags": ["a, b"]}),
        ({"untag": "a, b"}, {"label": "cat"}),
    ):
        marks.change("", change)
        assert rows(file) == [first | left]
    marks.change("", {"remove": "label"})
    assert not file.exists()
    with pytest.raises(OptionError, match="remove must be drop or label, got 'tags'"):
        marks.change("", {"remove": "tags"})


def test_file_is_backed_up_before_a_change_of_more_than_100_records(tmp_path: Path) -> None:
    write_records(tmp_path / "s.lmdb", [Record(name=f"r{n}", label=n % 3) for n in range(102)], classes=CLASSES)
    file, backup = tmp_path / "s.lmdb.marks.jsonl", tmp_path / "s.lmdb.marks.backup.jsonl"
    with open_store(tmp_path / "s.lmdb") as store:
        marks = Marks(Selections(store))
        marks.change("", {"tag": "first"})  # there was no file to back up
        marks.change("index:0-99", {"label": "dog"})
        assert not backup.exists()
        file.chmod(0o600)
        before = file.read_text()
        marks.change("index:0-100", {"label": "cat"})
        assert backup.read_text() == before
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        marks.change("", {"undo": marks.describe()["undo"]["id"]})
        assert file.read_text() == backup.read_text() == before
        marks.change("", {"tag": "second"})
        assert backup.read_text() == before  # a further change has a backup of its own
        assert backup.with_name("s.lmdb.marks.backup1.jsonl").read_text() == before
    copy_store(tmp_path / "s.lmdb", tmp_path / "copy.lmdb", marks=backup)
    with open_store(tmp_path / "copy.lmdb") as copy:
        assert copy.column("label").tolist() == [1] * 100 + [1, 2]  # records 100 and 101 keep their labels


@pytest.mark.parametrize(
    "body",
    [
        b"", b"not JSON", b"\xff", b"[]", b'"q"', b"5", b"null", b"{}", b'{"drop": true}', b'{"q": 5, "drop": true}',
        b'{"q": null, "drop": true}', b'{"q": ["a", 5], "drop": true}', b"[" * 100_000, b"1" * 5000,
    ],
    ids=lambda body: repr(body[:30]),
)  # fmt: skip
def test_body_that_is_no_change_is_refused(store: Store, file: Path, body: bytes) -> None:
    told: list[str] = []
    answer = TestClient(create_app(ViewerState([store], told.append))).post("/api/0/marks", content=body)
    assert (answer.status_code, told) == (400, [])
    assert answer.json()["error"].startswith('a change must be JSON such as {"q": ')
    assert not file.exists()
