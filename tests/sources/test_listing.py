"""What a listing makes into records, and which of its mistakes are one row's and which the whole listing's."""

from __future__ import annotations

import csv
import gc
import io
import json
import os
import pickle
import re
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbloader.errors import SourceError, SourceNotFoundError
from dbloader.records.record import RESERVED_FIELDS
from dbloader.sources.base import Entry, Problem
from dbloader.sources.listing import read_listing

if TYPE_CHECKING:
    from dbloader.sources.listing import ListingSource


def listed(tmp_path: Path, name: str, content: str | bytes | list[Any] | dict[str, Any]) -> ListingSource:
    """Write a listing beside its root and reads it."""
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    if not isinstance(content, (str, bytes)):
        content = json.dumps(content)
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return read_listing(tmp_path / name, root)


def entries(source: ListingSource) -> list[Entry]:
    found = list(source.entries())
    assert not [item for item in found if isinstance(item, Problem)]
    return [item for item in found if isinstance(item, Entry)]


def labels(source: ListingSource) -> list[int | None]:
    return [entry.label for entry in entries(source)]


# --- the formats ----------------------------------------------------------------------------------------------------

TWO_ENTRIES = [
    Entry("cat/1.jpg", (b"cat/1.jpg",), 0, {"site": "007"}),
    Entry("dog/2.gif", (b"dog/2.gif",), 1, {"site": "x"}),
]
ROWS = [{"path": "cat/1.jpg", "label": "cat", "site": "007"}, {"path": "dog/2.gif", "label": "dog", "site": "x"}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "path,label,site\ncat/1.jpg,cat,007\ndog/2.gif,dog,x\n"),
        ("a.CSV", "site,label,path\r\n007,cat,cat/1.jpg\r\n\r\nx,dog,dog/2.gif"),
        ("a.csv", b"\xef\xbb\xbfpath,label,site\ncat/1.jpg,cat,007\ndog/2.gif,dog,x\n"),
        ("a.tsv", "path\tlabel\tsite\ncat/1.jpg\tcat\t007\ndog/2.gif\tdog\tx\n"),
        ("a.json", ROWS),
        ("a.json", b"\xef\xbb\xbf" + json.dumps(ROWS, indent=1).encode()),
        ("a.json", {"path_list": ["cat/1.jpg", "dog/2.gif"], "label_list": ["cat", "dog"], "site_list": ["007", "x"]}),
        ("a.json", {"path": ["cat/1.jpg", "dog/2.gif"], "label": ["cat", "dog"], "site": ["007", "x"]}),
        ("a.jsonl", "\n\n".join(map(json.dumps, ROWS))),
        ("a.ndjson", b"\xef\xbb\xbf" + "\r\n".join(map(json.dumps, ROWS)).encode()),
    ],
)
def test_every_format_gives_the_same_entries(tmp_path: Path, name: str, content: Any) -> None:
    source = listed(tmp_path, name, content)
    assert source.classes == ("cat", "dog")
    assert entries(source) == TWO_ENTRIES
    assert entries(source) == TWO_ENTRIES
    assert source.warnings == ()
    assert source.root == tmp_path / "root"


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
names_or_none = texts.map(lambda text: text and f"x{text}x")  # neither numbers nor padded
rows_of_text = st.lists(st.tuples(texts.filter(bool), texts, names_or_none), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(rows=rows_of_text, name=st.sampled_from(["a.csv", "a.tsv"]))
def test_whatever_python_writes_as_csv_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], name: str
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter="," if name == "a.csv" else "\t").writerows([("path", "note", "class"), *rows])
    source = listed(tmp_path_factory.mktemp("csv"), name, file.getvalue())

    def label(entry: Entry) -> str:
        if entry.label is None:
            return ""
        return source.classes[entry.label]

    assert [(entry.location[0].decode(), entry.fields["note"], label(entry)) for entry in entries(source)] == rows


@pytest.mark.parametrize(("path", "label"), [("image", "label"), ("file", "class"), ("filename", "target")])
def test_path_and_label_may_be_called(tmp_path: Path, path: str, label: str) -> None:
    assert entries(listed(tmp_path, "a.csv", f"{path},{label}\na.jpg,3\n")) == [Entry("a.jpg", (b"a.jpg",), 3, {})]


def test_json_keeps_the_types_of_fields_and_csv_makes_all_of_them_text(tmp_path: Path) -> None:
    fields = {"area": 1.5, "boxes": [[1, 2], [3, 4]], "checked": True, "note": None, "site": 7}
    for name, content in (("a.json", [{"path": "a", **fields}]), ("a.jsonl", json.dumps({"path": "a", **fields}))):
        assert entries(listed(tmp_path, name, content)) == [Entry("a", (b"a",), None, fields)]
    [entry] = entries(listed(tmp_path, "a.csv", "path,area,checked,note\na,1.5,true,\n"))
    assert entry.fields == {"area": "1.5", "checked": "true", "note": ""}


def test_objects_may_differ_in_their_keys(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.jsonl", '{"path": "a", "x": 1}\n{"filename": "b", "y": 2, "target": 5}\n')
    assert entries(source) == [Entry("a", (b"a",), None, {"x": 1}), Entry("b", (b"b",), 5, {"y": 2})]


# --- a stream -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path, name: str) -> None:
    def peak(rows: int) -> int:
        numbers = range(rows)
        if name == "a.jsonl":
            content = "\n".join(f'{{"path": "cat/{number}.jpg", "label": {number}}}' for number in numbers)
        else:
            delimiter = "," if name == "a.csv" else "\t"
            content = "\n".join(["path,label", *(f"cat/{number}.jpg,{number % 10}" for number in numbers)])
            content = content.replace(",", delimiter)
        listed(tmp_path, name, content)
        gc.disable()  # what only it frees is a matter of luck
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_listing(tmp_path / name, tmp_path).entries()) == rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            gc.enable()

    peak(10)  # imports
    assert peak(2000) < 1.5 * peak(500)


def test_a_pickled_source_gives_the_same(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.json", ROWS)
    again = pickle.loads(pickle.dumps(source))  # noqa: S301 - made on the line itself
    assert entries(again) == TWO_ENTRIES
    assert again.classes == source.classes


def test_a_label_that_was_not_there_at_first_is_an_error(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.csv", "path,label\na,cat\n")
    (tmp_path / "a.csv").write_text("path,label\na,dog\n")
    with pytest.raises(SourceError, match=r"a\.csv, row 2: was changed since it was first read$"):
        list(source.entries())


# --- labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"path_list": ["a", "b", "c"], "label_list": [3, -1, 3]}, [3, -1, 3]),
        ({"path_list": ["a", "b"], "label_list": [2**63 - 1, 1 - 2**63]}, [2**63 - 1, 1 - 2**63]),
        ({"path_list": ["a", "b"]}, [None, None]),
        ("path,label\na,10\nb,-1\nc,0\nd,123456789012345678\n", [10, -1, 0, 123456789012345678]),
    ],
)
def test_integers_are_labels_as_they_are(tmp_path: Path, content: Any, expected: list[int | None]) -> None:
    source = listed(tmp_path, "a.csv" if isinstance(content, str) else "a.json", content)
    assert source.classes == ()
    assert labels(source) == expected


@pytest.mark.parametrize(
    ("first", "odd"),
    [
        *(("10", label) for label in ("x", "N/A", "-", "007", "+3", "-0", "1.0", " 3", "1_0", "٣", "3\n", "1" * 19)),
        *(("cat", label) for label in ("1.0", "1.5", "007", " 3")),
        *((f"{label}0", label) for label in ("007", "1.", "+1", " 3")),
        ("001", "120"),
    ],
)
def test_in_a_table_labels_that_are_neither_all_integers_nor_all_names_are_an_error(
    tmp_path: Path, first: str, odd: str
) -> None:
    rows = f"{shown(odd)}.*{shown(first)}|{shown(first)}.*{shown(odd)}"
    with pytest.raises(SourceError, match=rf"a\.csv: the label of row \d is ({rows}): give each a plain integer"):
        listed(tmp_path, "a.csv", f'path,label\nz,\na,{first}\nb,"{odd}"\n')


def shown(label: str) -> str:
    return re.escape(repr(label))


@pytest.mark.parametrize("found", [["2" * 19, "1" * 20], ["n01440764", "n01443537"], ["1_0", "٣"]])
def test_in_a_table_identifiers_are_names(tmp_path: Path, found: list[str]) -> None:
    source = listed(tmp_path, "a.csv", "\n".join(["path,label", *(f"{label}.jpg,{label}" for label in found)]))
    assert source.classes == tuple(sorted(found))
    assert [source.classes[label or 0] for label in labels(source)] == found


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_names_that_differ_by_spaces_only_are_an_error(tmp_path: Path, name: str) -> None:
    def content(*labels: str) -> str:
        if name == "a.csv":
            return "\n".join(["path,label", *(f"a,{label}" for label in labels)])
        return "\n".join(["", *(json.dumps({"path": "a", "label": label}) for label in labels)])

    with pytest.raises(
        SourceError, match="the label of row 2 is 'cat', of row 4 'cat ': they differ by spaces only; write"
    ):
        listed(tmp_path, name, content("cat", "Cat", "cat ", "dog"))
    with pytest.raises(SourceError, match=r"the label of row 3 is '  ': give it a name, or leave it empty$"):
        listed(tmp_path, name, content("cat", "  "))
    assert listed(tmp_path, name, content("cat", "Cat", "a dog")).classes == ("Cat", "a dog", "cat")


def test_rows_without_label_among_others_are_warned_of(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.csv", "path,label\na,1\nb,\nc,2\n")
    assert labels(source) == [1, None, 2]
    assert source.warnings == ("1 of 3 rows have no label",)
    source = listed(tmp_path, "a.json", [{"path": "a", "label": "x"}, {"path": "b", "label": None}, {"path": "c"}])
    assert labels(source) == [0, None, None]
    assert source.classes == ("x",)
    assert source.warnings == ("2 of 3 rows have no label",)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "path,Class,caption\na,x,y\nb,,\n"),
        ("a.jsonl", '{"path": "a", "Class": 1, "caption": "x"}\n{"path": "b"}'),
        ("a.json", {"path_list": ["a", "b"], "Class_list": [1, 2], "caption_list": [1, 2]}),
    ],
)
def test_a_listing_without_labels_is_warned_of_with_what_would_be_one(tmp_path: Path, name: str, content: Any) -> None:
    columns = "none of the columns 'path', 'Class', 'caption' is called one of 'label', 'class', 'target'"
    assert listed(tmp_path, name, content).warnings == (f"no row has a label, as {columns}",)


def test_a_listing_whose_labels_are_all_empty_is_warned_of(tmp_path: Path) -> None:
    warnings = ("no row has a label, as the column 'class' is empty",)
    assert listed(tmp_path, "a.csv", "class,path\n,a\n,b\n").warnings == warnings
    assert listed(tmp_path, "a.json", {"path_list": ["a"], "class_list": [None]}).warnings == warnings


def test_names_and_integers_together_are_an_error_that_names_both_rows(tmp_path: Path) -> None:
    content = {"path_list": ["a", "b", "c", "d"], "label_list": [7, 8, "cat", "cat"]}
    with pytest.raises(SourceError, match=r"the label of row 1 is the integer 7, of row 3 'cat': give every"):
        listed(tmp_path, "a.json", content)


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("true", "True"),
        ("1.0", "1.0"),
        ("[1]", r"\[1\]"),
        (str(2**63), str(2**63)),
        (str(-(2**63)), str(-(2**63))),
        (r'"\ud800"', r"'\\ud800'"),
    ],
)
def test_a_label_of_another_type_is_an_error_that_names_the_row(tmp_path: Path, label: str, shown: str) -> None:
    content = f'{{"path": "a"}}\n{{"path": "b", "label": {label}}}\n'
    with pytest.raises(SourceError, match=rf"jsonl, row 2: a label is a 64-bit integer, a name or null, got {shown}$"):
        listed(tmp_path, "a.jsonl", content)


# --- paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("cat/1.jpg", "cat/1.jpg"),
        ("./cat//x/../1.jpg", "cat/1.jpg"),
        ("../other/1.jpg", "../other/1.jpg"),
        ("/other/./1.jpg", "/other/1.jpg"),
        ("ROOT/cat/1.jpg", "cat/1.jpg"),
        ("ROOT/./cat/1.jpg", "cat/1.jpg"),
        ("ROOT-2/cat/1.jpg", "ROOT-2/cat/1.jpg"),
        ("caf\u00e9/e\u0301.jpg", "caf\u00e9/e\u0301.jpg"),
        ("caf\udce9.jpg", "caf\\xe9.jpg"),
    ],
)
def test_a_path_is_opened_as_given_and_its_name_made_plain(tmp_path: Path, path: str, name: str) -> None:
    path, name = (text.replace("ROOT", str(tmp_path / "root")) for text in (path, name))
    [entry] = entries(listed(tmp_path, "a.json", {"path_list": [path]}))
    assert entry.location[0] == os.fsencode(path)
    assert entry.name == name


def test_absolute_paths_are_told_from_a_relative_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    Path("a.csv").write_text(f"path\n{tmp_path}/cat/1.jpg\n/cat/2.jpg\n")
    assert [entry.name for entry in entries(read_listing("a.csv", "x/.."))] == ["cat/1.jpg", "/cat/2.jpg"]
    assert [entry.name for entry in entries(read_listing("a.csv", "/"))] == [f"{tmp_path}/cat/1.jpg"[1:], "cat/2.jpg"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ('""', "it has no path in a column called path or image or file or filename"),
        ('null, "x": 1', "it has no path in a column called path or image or file or filename"),
        ("5", "its path cannot be that of a file: 5"),
        (r'"a\u0000b"', r"its path cannot be that of a file: 'a\x00b'"),
        (r'"a\ud800b"', r"its path cannot be that of a file: 'a\ud800b'"),
    ],
)
def test_a_row_without_a_usable_path_is_a_problem_and_the_others_are_used(
    tmp_path: Path, path: str, reason: str
) -> None:
    content = f'{{"path": "a", "label": "x"}}\n{{"path": {path}, "label": "y"}}\n{{"path": "c", "label": "z"}}\n'
    source = listed(tmp_path, "a.jsonl", content)
    assert list(source.entries()) == [Entry("a", (b"a",), 0, {}), Problem("row 2", reason), Entry("c", (b"c",), 1, {})]
    assert source.classes == ("x", "z")


def test_a_row_with_too_few_or_too_many_fields_is_a_problem(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.csv", 'path,x\na,1\n\nb\n"c\nd",2\ne,3,4\nf,5\n')
    assert list(source.entries()) == [
        Entry("a", (b"a",), None, {"x": "1"}),
        Problem("row 4", "the header has 2 fields, it has 1"),
        Entry("c\nd", (b"c\nd",), None, {"x": "2"}),
        Problem("row 7", "the header has 2 fields, it has 3"),
        Entry("f", (b"f",), None, {"x": "5"}),
    ]


# --- fields ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [*sorted(RESERVED_FIELDS - {"label", "image"}), "", "$x", "a.b", "a\0b", " x", "x\t", "\ud800"],
)
def test_a_column_that_a_record_cannot_have_is_an_error(tmp_path: Path, column: str) -> None:
    message = f"rename the column {shown(column)}: "
    with pytest.raises(SourceError, match=rf"a\.json, row 1: {message}"):
        listed(tmp_path, "a.json", [{"path": "a", column: 1}])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("path,image", "'path' and 'image' may both be the path; rename or drop one"),
        ("class,file,label", "'class' and 'label' may both be the label; rename or drop one"),
        ("path,x,x", "two of the columns 'path', 'x', 'x' have the same name; rename or drop one"),
    ],
)
def test_a_header_that_can_be_read_in_two_ways_or_none_is_an_error(tmp_path: Path, columns: str, message: str) -> None:
    with pytest.raises(SourceError, match=rf"row \d: {message}$"):
        listed(tmp_path, "a.csv", f"{columns}\n" + ",".join("abc"[: columns.count(",") + 1]))
    with pytest.raises(SourceError, match=r"'path' and 'file' may both be the path; rename or drop one$"):
        listed(tmp_path, "a.json", {"path_list": ["a"], "file_list": ["b"]})


# --- mistakes of the whole listing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", r"a\.csv: no row of it can be used: there are none$"),
        ("a.csv", "path,label\n", "there are none$"),
        ("a.csv", "\n\n", "there are none$"),
        ("a.csv", "\nPath,label\n", r"a\.csv: its header has no column called path or image .*, and no row follows$"),
        ("a.tsv", "path\tfile\n\n", r"a\.tsv, header: 'path' and 'file' may both be the path; rename or drop one$"),
        ("a.csv", "path,a.b\n", r"a\.csv, header: rename the column 'a\.b': "),
        ("a.csv", "cat/0.jpg,0\ncat/1.jpg,1\n", r"row 2: it has no path in a column called path or image or "),
        ("a.json", {}, "there are none$"),
        ("a.json", [], "there are none$"),
        ("a.jsonl", '{"label": 1}\n{}', "no row of it can be used: row 1: it has no path in a column called path or"),
        ("a.csv", "Path,label\na,1\n", "no row of it can be used: row 2: it has no path in a column called path or"),
        ("a.xlsx", "", r"a\.xlsx: a listing is one of \.csv, \.tsv, .*\.ndjson, got '\.xlsx'$"),
        ("a.csv", b"path\na\ncaf\xe9\n", r"a\.csv, row 3: is not UTF-8 \(.*\); save the listing as UTF-8$"),
        ("a.json", "path".encode("utf-16"), r"a\.json, row 1: is not UTF-8 \(.*\); save the listing as UTF-8$"),
        ("a.csv", 'path\na\n"b"c\n', r"a\.csv, row 3: cannot be read: ',' expected after '\"'$"),
        ("a.csv", 'path\na\n"b\nc\n', r"a\.csv, row 3: cannot be read: unexpected end of data$"),
        ("a.json", '{"path_list": ["a"', r"a\.json: is not JSON: Expecting"),
        ("a.jsonl", '{"path": "a"}\n{"path": ', r"a\.jsonl, row 2: is not JSON: Expecting value"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl, row 1: is not JSON: "),
        ("a.jsonl", '{"path": "a"}\n"b"', r"a\.jsonl, row 2: must be an object that has a path, got 'b'$"),
        ("a.json", ["a"], r"a\.json, row 1: must be an object that has a path, got 'a'$"),
        ("a.json", '"a"', r"a\.json: must be an object of lists or an array of objects, got 'a'$"),
        ("a.json", {"path_list": ["a"], "version": 1}, r"a\.json: version must be a list, got 1$"),
        (
            "a.json",
            {"path_list": ["a", "b", "c"], "label_list": [1, 2]},
            r"a\.json: its lists must be equally long: path_list has 3 items, label_list has 2 items$",
        ),
    ],
)
def test_a_listing_that_cannot_be_used_is_an_error(tmp_path: Path, name: str, content: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        listed(tmp_path, name, content)


def test_a_listing_or_root_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"a\.csv: the listing cannot be read: No such file or directory$"):
        read_listing(tmp_path / "a.csv", tmp_path)
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(SourceError, match=r"a\.csv: the listing cannot be read: Is a directory$") as caught:
        read_listing(tmp_path / "a.csv", tmp_path)
    assert caught.type is SourceError
    with pytest.raises(SourceNotFoundError, match=r"nowhere: there is no such folder or file$"):
        read_listing(tmp_path / "a.csv", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("list", "path\na.jpg\n", r"a listing is one of \.csv, .*, got '': rename it"),
        (
            "list.csv",
            "path,label\ncat/a,1\n",
            r"row 2: there is no file 'cat/a' in .*, but 'cat/a\.jpg': write",
        ),
        ("list.csv", ",path,label\n0,cat/a.jpg,1\n", r"rename the column '': .* to_csv\(index=False\)"),
        ("list.csv", 'path,boxes\ncat/a.jpg,"[[1, 2, 3, 4]]"\n', r"its column 'boxes' is text, .*: write a \.jsonl"),
    ],
)
def test_a_listing_that_is_refused_names_the_remedy(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "a.jpg").touch()
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=message):
        read_listing(tmp_path / name, tmp_path / "images")


def test_semicolons_separate_columns(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path;label;size\na.jpg;cat;1,5\n")
    source = read_listing(tmp_path / "list.csv", tmp_path)
    assert [*source.entries()] == [Entry("a.jpg", (b"a.jpg",), 0, {"size": "1,5"})]


def test_columns_of_0_and_1_are_no_labels(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,cat,dog\na.jpg,0,1\n")
    (warning,) = read_listing(tmp_path / "list.csv", tmp_path).warnings
    assert warning.endswith("columns of 0 and 1 are fields: write the class of each row into a column 'label'")
