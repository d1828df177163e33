"""Listings: their formats, labels, paths and fields, and mistakes in a row or in the whole listing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from dbloader.errors import SourceError
from dbloader.ext.sources.listing import ListingSource, read_listing
from dbloader.records.record import RESERVED_FIELDS
from dbloader.sources.base import Entry, Problem
from tests.support.children import traced_peak
from tests.support.images import plant
from tests.support.tallies import only_entries


def listed(tmp_path: Path, name: str, content: str | bytes | list[Any] | dict[str, Any]) -> ListingSource:
    """Write a listing beside a folder with cat/only.jpg, and read it."""
    root = plant(tmp_path / "root", {"cat/only.jpg": b""})
    if not isinstance(content, (str, bytes)):
        content = json.dumps(content)
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return read_listing(tmp_path / name, root)


def labels(source: ListingSource) -> list[int | None]:
    return [entry.label for entry in only_entries(source)]


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
        ("a.csv", "path;label;site\ncat/1.jpg;cat;007\ndog/2.gif;dog;x\n"),
        ("a.tsv", "path\tlabel\tsite\ncat/1.jpg\tcat\t007\ndog/2.gif\tdog\tx\n"),
        ("a.json", ROWS),
        ("a.json", b"\xef\xbb\xbf" + json.dumps(ROWS, indent=1).encode()),
        ("a.json", {"path_list": ["cat/1.jpg", "dog/2.gif"], "label_list": ["cat", "dog"], "site_list": ["007", "x"]}),
        ("a.jsonl", "\n\n".join(map(json.dumps, ROWS))),
        ("a.ndjson", b"\xef\xbb\xbf" + "\r\n".join(map(json.dumps, ROWS)).encode()),
    ],
)
def test_every_format_gives_the_same_entries(tmp_path: Path, name: str, content: Any) -> None:
    source = listed(tmp_path, name, content)
    assert source.classes == ("cat", "dog")
    assert only_entries(source) == TWO_ENTRIES
    assert only_entries(source) == TWO_ENTRIES
    assert source.warnings == ()
    assert source.root == tmp_path / "root"


@pytest.mark.parametrize(("path", "label"), [("image", "label"), ("file", "class"), ("filename", "target")])
def test_other_names_of_path_and_label_columns_are_read(tmp_path: Path, path: str, label: str) -> None:
    assert only_entries(listed(tmp_path, "a.csv", f"{path},{label}\na.jpg,3\n")) == [Entry("a.jpg", (b"a.jpg",), 3, {})]


def test_json_keeps_types_and_csv_finds_them(tmp_path: Path) -> None:
    fields = {"area": 1.5, "pairs": [[1, 2], [3, 4]], "checked": True, "note": None, "site": 7}
    for name, content in (("a.json", [{"path": "a", **fields}]), ("a.jsonl", json.dumps({"path": "a", **fields}))):
        assert only_entries(listed(tmp_path, name, content)) == [Entry("a", (b"a",), None, fields)]
    [entry] = only_entries(listed(tmp_path, "a.csv", "path,area,checked,note\na,1.5,true,\n"))
    assert entry.fields == {"area": 1.5, "checked": True, "note": ""}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_memory_grows_by_eight_bytes_for_each_row(tmp_path: Path, name: str) -> None:
    def peak(rows: int) -> int:
        numbers = range(rows)
        if name == "a.jsonl":
            content = "\n".join(f'{{"path": "cat/{number}.jpg", "label": {number}}}' for number in numbers)
        else:
            content = "\n".join(["path,label", *(f"cat/{number}.jpg,{number % 10}" for number in numbers)])
        listed(tmp_path, name, content)
        assert sum(1 for _ in read_listing(tmp_path / name, tmp_path).entries()) == rows
        return traced_peak(lambda: sum(1 for _ in read_listing(tmp_path / name, tmp_path).entries()))

    assert peak(2000) - peak(500) < 1500 * 24  # the array and its copy when it grows


def test_label_added_after_opening_is_an_error(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.csv", "path,label\na,cat\n")
    (tmp_path / "a.csv").write_text("path,label\na,dog\n")
    with pytest.raises(SourceError, match=r"a\.csv, row 2: was changed since it was first read$"):
        list(source.entries())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"path_list": ["a", "b", "c"], "label_list": [3, -1, 3]}, [3, -1, 3]),
        ({"path_list": ["a", "b"], "label_list": [2**63 - 1, 1 - 2**63]}, [2**63 - 1, 1 - 2**63]),
        ({"path_list": ["a", "b"]}, [None, None]),
        ("path,label\na,10\nb,-1\nc,0\nd,123456789012345678\n", [10, -1, 0, 123456789012345678]),
    ],
)
def test_integers_stay_unchanged_as_labels(tmp_path: Path, content: Any, expected: list[int | None]) -> None:
    source = listed(tmp_path, "a.csv" if isinstance(content, str) else "a.json", content)
    assert source.classes == ()
    assert labels(source) == expected


@pytest.mark.parametrize(
    ("first", "odd"),
    [
        *(("10", label) for label in ("x", "N/A", "007", "+3", "1.0", " 3", "1_0", "٣", "1" * 19)),
        *(("cat", label) for label in ("1.5", "007")),
        ("001", "001"),
    ],
)
def test_csv_refuses_a_mix_of_integers_and_names_as_labels(tmp_path: Path, first: str, odd: str) -> None:
    one, other = re.escape(repr(first)), re.escape(repr(odd))
    rows = one if first == odd else f"{other}.*{one}|{one}.*{other}"
    with pytest.raises(SourceError, match=rf"a\.csv: the label of row \d is ({rows}): write only plain integers"):
        listed(tmp_path, "a.csv", f'path,label\nz,\na,{first}\nb,"{odd}"\n')


@pytest.mark.parametrize("found", [["2" * 19, "1" * 20], ["n01440764", "n01443537"], ["1_0", "٣"]])
def test_csv_reads_long_identifiers_as_names(tmp_path: Path, found: list[str]) -> None:
    source = listed(tmp_path, "a.csv", "\n".join(["path,label", *(f"{label}.jpg,{label}" for label in found)]))
    assert source.classes == tuple(sorted(found))
    assert [source.classes[label or 0] for label in labels(source)] == found


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_names_that_differ_only_by_spaces_are_an_error(tmp_path: Path, name: str) -> None:
    def content(*labels: str) -> str:
        if name == "a.csv":
            return "\n".join(["path,label", *(f"{at},{label}" for at, label in enumerate(labels))])
        return "\n".join(["", *(json.dumps({"path": f"{at}", "label": label}) for at, label in enumerate(labels))])

    with pytest.raises(SourceError, match="the label 'cat' of row 2 and the label 'cat ' of row 4 differ by spaces"):
        listed(tmp_path, name, content("cat", "Cat", "cat ", "dog"))
    with pytest.raises(SourceError, match=r"the label of row 3 is '  ': write a name, or nothing$"):
        listed(tmp_path, name, content("cat", "  "))
    assert listed(tmp_path, name, content("cat", "Cat", "a dog")).classes == ("Cat", "a dog", "cat")


UNLABELED = "no row has a label: the column of labels is one of 'label', 'class', 'target', and the columns are "
CHOOSE = "; --label-column (Listing(label=)) chooses another"


@pytest.mark.parametrize(
    ("name", "content", "warning"),
    [
        (
            "a.csv",
            "path,label\na,1\nb,\nc,2\n",
            "1 of 3 rows have no label; write one for each, or leave them out of the training: where='-label:none'",
        ),
        ("a.csv", "path,breed\na,x\nb,\n", f"{UNLABELED}'path', 'breed'{CHOOSE}"),
        ("a.csv", "class,path\n,a\n,b\n", f"{UNLABELED}'class', 'path'{CHOOSE}"),
    ],
)
def test_rows_without_a_label_give_a_warning(tmp_path: Path, name: str, content: Any, warning: str) -> None:
    source = listed(tmp_path, name, content)
    assert source.warnings == (warning,)
    assert None in labels(source)


def test_mix_of_names_and_integers_as_labels_is_an_error(tmp_path: Path) -> None:
    content = {"path_list": ["a", "b", "c", "d"], "label_list": [7, 8, "cat", "cat"]}
    with pytest.raises(SourceError, match="row 1 has the label 7, and row 3 has the label 'cat': give every"):
        listed(tmp_path, "a.json", content)


@pytest.mark.parametrize(
    ("label", "shown"), [("true", "True"), ("[[1]]", r"\[1\]"), (str(2**63), str(2**63)), (r'"\ud800"', r"'\\ud800'")]
)
def test_label_of_another_type_is_an_error(tmp_path: Path, label: str, shown: str) -> None:
    content = f'{{"path": "a"}}\n{{"path": "b", "label": {label}}}\n'
    with pytest.raises(
        SourceError,
        match=rf"jsonl, row 2: a label is a 64-bit integer, a number, a name, a list of these or null, got {shown}$",
    ):
        listed(tmp_path, "a.jsonl", content)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("cat/1.jpg", "cat/1.jpg"),
        ("./cat//x/../1.jpg", "cat/1.jpg"),
        ("../other/1.jpg", "../other/1.jpg"),
        ("/other/./1.jpg", "/other/1.jpg"),
        ("ROOT/cat/1.jpg", "cat/1.jpg"),
        ("ROOT-2/cat/1.jpg", "ROOT-2/cat/1.jpg"),
        ("caf\u00e9/e\u0301.jpg", "caf\u00e9/e\u0301.jpg"),
        ("caf\udce9.jpg", "caf\\xe9.jpg"),
    ],
)
def test_name_of_an_entry_is_its_normalized_path(tmp_path: Path, path: str, name: str) -> None:
    path, name = (text.replace("ROOT", str(tmp_path / "root")) for text in (path, name))
    [entry] = only_entries(listed(tmp_path, "a.json", {"path_list": [path]}))
    assert entry.location[0] == os.fsencode(path)
    assert entry.name == name


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ('""', "it has no path in a column called path or image or file or filename"),
        ("5", "its path is not valid for a file: 5"),
        (r'"a\u0000b"', r"its path is not valid for a file: 'a\x00b'"),
        (r'"a\ud800b"', r"its path is not valid for a file: 'a\ud800b'"),
    ],
)
def test_row_without_a_usable_path_is_a_problem(tmp_path: Path, path: str, reason: str) -> None:
    content = f'{{"path": "a", "label": "x"}}\n{{"path": {path}, "label": "y"}}\n{{"path": "c", "label": "z"}}\n'
    source = listed(tmp_path, "a.jsonl", content)
    assert list(source.entries()) == [Entry("a", (b"a",), 0, {}), Problem("row 2", reason), Entry("c", (b"c",), 1, {})]
    assert source.classes == ("x", "z")


def test_row_with_too_few_or_too_many_values_is_a_problem(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.csv", 'path,x\na,1\n\nb\n"c\nd",2\ne,3,4\nf,5\n')
    assert list(source.entries()) == [
        Entry("a", (b"a",), None, {"x": 1}),
        Problem("row 4", "the header has 2 fields, but this row has 1"),
        Entry("c\nd", (b"c\nd",), None, {"x": 2}),
        Problem("row 7", "the header has 2 fields, but this row has 3"),
        Entry("f", (b"f",), None, {"x": 5}),
    ]


@pytest.mark.parametrize("column", [*sorted(RESERVED_FIELDS - {"label", "image"}), "", "$x", "a.b", "a\0b"])
def test_column_that_no_field_can_be_called_gets_a_similar_name(tmp_path: Path, column: str) -> None:
    source = listed(tmp_path, "a.json", [{"path": "a", column: 1, "b": 2}])
    name = re.sub(r"[.$\0]", "_", column) + "_"
    assert [entry.fields for entry in only_entries(source)] == [{name: 1, "b": 2}]
    assert f"fields with other names than their columns: {column!r} in {name!r}" in source.understood


def test_renamed_column_keeps_its_type_and_other_columns(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.csv", "path,label,Roi.X1,width,width_\na,cat,3,40,x\nb,dog,,30,y\n")
    assert [entry.fields for entry in only_entries(source)] == [
        {"Roi_X1_": 3, "width__": 40, "width_": "x"},
        {"Roi_X1_": None, "width__": 30, "width_": "y"},
    ]


@pytest.mark.parametrize("column", [" x", "x\t", "\ud800"])
def test_column_with_an_invalid_field_name_is_an_error(tmp_path: Path, column: str) -> None:
    message = f"rename the column {re.escape(repr(column))}: "
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
def test_ambiguous_header_is_an_error(tmp_path: Path, columns: str, message: str) -> None:
    with pytest.raises(SourceError, match=rf"row \d: {message}"):
        listed(tmp_path, "a.csv", f"{columns}\n" + ",".join("abc"[: columns.count(",") + 1]))
    with pytest.raises(SourceError, match=r"'path' and 'file' may both be the path; rename or drop one"):
        listed(tmp_path, "a.json", {"path_list": ["a"], "file_list": ["b"]})


# What pandas' to_json writes by default, and with the orients "index", "split", "values" and "table".
PANDAS: list[Any] = [
    {"path": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}},
    {"0": {"path": "a", "label": "x"}, "1": {"path": "b", "label": "y"}},
    {"columns": ["path", "label"], "index": [0, 1, 2], "data": [["a", "x"], ["b", "y"], ["c", "z"]]},
    [["a", "x"], ["b", "y"]],
]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", r"a\.csv: no row of it can be used: there are none$"),
        ("a.csv", "first,0\nsecond,1\n", r"row 2: it has no path in a column called path or image or "),
        ("a.json", [], "there are none$"),
        ("a.jsonl", '{"label": 1}\n{}', "no row of it can be used: row 1: it has no path in a column called path or"),
        ("a.xlsx", "", r"a\.xlsx: a listing is one of \.csv, .*, \.txt, got '\.xlsx'; .* save it as CSV UTF-8$"),
        (
            "a.csv",
            b"path\na\ncaf\xe9\n",
            r"a\.csv, row 3: is not UTF-8 \(.*\); save the listing as UTF-8, or give its encoding \(--encoding\)$",
        ),
        (
            "a.json",
            b'"caf\xe9"',
            r"a\.json, row 1: is not UTF-8 \(.*\); save the listing as UTF-8, or give its encoding \(--encoding\)$",
        ),
        ("a.csv", 'path\na\n"b"c\n', r"a\.csv, row 3: cannot be read: ',' expected after '\"'$"),
        ("a.csv", 'path\na\n"b\nc\n', r"a\.csv, row 3: cannot be read: unexpected end of data$"),
        ("a.json", '{"path_list": ["a"', r"a\.json: is not JSON: Expecting"),
        ("a.jsonl", '{"path": "a"}\n{"path": ', r"a\.jsonl, row 2: is not JSON: Expecting value"),
        ("a.jsonl", '{"path": "a"}\n"b"', r"a\.jsonl, row 2: must be an object that has a path, got 'b'$"),
        ("a.json", '"a"', r"a\.json: must be an object of lists or an array of objects, got 'a'$"),
        ("a.json", {"path_list": ["a"], "version": 1}, r"the lengths are {'path_list': 1, 'version': None}$"),
        ("a.json", {"path_list": [1, 2], "label_list": [1]}, r"the lengths are {'path_list': 2, 'label_list': 1}$"),
        *(("a.json", content, r"; with pandas, use to_json\('FILE.json', orient='records'\)") for content in PANDAS),
        ("a.csv", 'path,boxes\ncat/a.jpg,"[[1, 2, 3, 4]]"\n', r"its column 'boxes' is text, .*: write a \.jsonl"),
        ("a.tsv", "path\tbox_labels\na\t[0]\n", r"a\.tsv: its column 'box_labels' is text, .*: write a \.jsonl"),
        ("list", "path\na.jpg\n", r"a listing is one of \.csv, .*, got '': rename it"),
    ],
)
def test_unusable_listing_is_an_error(tmp_path: Path, name: str, content: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        listed(tmp_path, name, content)
