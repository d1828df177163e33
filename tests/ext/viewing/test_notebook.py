"""What a notebook shows for stores, datasets and records."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dbloader
from dbloader import LMDBDataset, MongoDataset, Record, copy_store, open_store
from dbloader.ext.viewing.html_report import write_html
from dbloader.stores.base import Store
from tests.contracts.records import write
from tests.ext.browser.tabs import skip_or_fail
from tests.ext.viewing.stores import write_records
from tests.ext.viewing.test_html_report import HOSTILE, Parsed, hostile_store
from tests.support.images import WAIT_S, encoded, photo, plant_photos
from tests.support.stores import store_records

ALLOWED = {*("div", "style", "pre", "table", "tr", "th", "td", "figure", "img", "figcaption", "p", "code", "a", "bdi")}


def shown(value: Any) -> Parsed:
    """Return the parsed HTML of a value. The HTML must not run or load anything."""
    html = value._repr_html_()
    assert html is not None
    parsed = Parsed(html)
    assert parsed.tags <= ALLOWED
    assert parsed.names <= {"class", "src", "alt", "href", "target", "rel"}
    assert all(source.startswith(("data:image/", "http://127.0.0.1:")) for source in parsed.sources)
    assert html.count("<div") == html.count("</div>")
    assert "\u202e" not in html
    return parsed


def test_store_shows_eight_records_and_reads_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(f"n{n}.jpg", n % 2, photo(n), 40, 30, "JPEG", fields={"score": n}) for n in range(100)]
    write_records(tmp_path / "it's.lmdb", records, classes=["cat", "dog"])
    with open_store(tmp_path / "it's.lmdb") as store:
        read: list[int] = []
        original = type(store).read

        def noted(self: Store, indices: Sequence[int]) -> list[Record]:
            read.extend(indices)
            return original(self, indices)

        monkeypatch.setattr(type(store), "read", noted)
        for column in ("column", "field_column", "names", "events"):
            monkeypatch.setattr(type(store), column, None)
        page = shown(store)
        assert read == [0, 12, 25, 37, 50, 62, 75, 87]
        assert len(page.sources) == 8
        assert "12 n12.jpg cat" in page.text
        assert "37 n37.jpg dog" in page.text
        for fact in ("Records100", "Classes2", "(100 JPEG)", "Width40 pixels", "Fieldsscore (100)"):
            assert fact in page.text
        assert f"""dbloader view '{tmp_path}/it'"'"'s.lmdb' in a terminal""" in page.text
        assert repr(store) in page.text


def test_hostile_names_stay_text_and_a_damaged_record_is_a_message(tmp_path: Path) -> None:
    place = hostile_store(tmp_path / "<script>\u202e.lmdb")
    with open_store(place) as store, LMDBDataset(place) as dataset:
        for value in (store, dataset):
            page = shown(value)
            assert len(page.sources) == 4
            assert HOSTILE[0] in page.text
            assert r"record 2 (a\u202egpj.b)" in page.text
            assert "x" * 201 not in page.text
        assert repr(HOSTILE[1]) in shown(store[1]).text
    record = Record(HOSTILE[0], image=b"no image", fields={HOSTILE[1]: HOSTILE, "rtl": "\u202e"})
    assert HOSTILE[1] in shown(record).text
    assert "the image is in no known image format" in shown(record).text


def test_datasets_show_the_records_of_their_query(tmp_path: Path, mongo_uri: str) -> None:
    write(tmp_path / "a.lmdb", [Record(f"n{n}", n % 2, photo(n), fields={"score": n}) for n in range(50)])
    copy_store(tmp_path / "a.lmdb", f"{mongo_uri}.a")
    for kind, place in ((LMDBDataset, tmp_path / "a.lmdb"), (MongoDataset, f"{mongo_uri}.a")):
        with kind(place, where="score>=47", transform=lambda image: image) as dataset:
            page = shown(dataset)
            assert len(page.sources) == 3
            assert all(f"{n} n{n}" in page.text for n in (47, 48, 49))
            assert "Where: score>=47 (3 of 50 records)" in page.text
            assert "Transform: <function" in page.text
        with pytest.warns(UserWarning, match="no record"), kind(place, where="score>99") as dataset:
            assert shown(dataset).sources == []


def test_slice_of_a_store_shows_eight_of_its_records(tmp_path: Path) -> None:
    write_records(tmp_path / "a.lmdb", [Record(f"n{n}", n % 2, photo(n)) for n in range(40)], classes=["cat", "dog"])
    with open_store(tmp_path / "a.lmdb") as store:
        page = shown(store[10:30])
        assert len(page.sources) == 8
        assert "20 records" in page.text
        assert "12 n12 cat\n15 n15 dog" in page.text
        assert store[10:12] == store.read([10, 11])
        assert shown(store[:0]).sources == []
    place = hostile_store(tmp_path / "b.lmdb")
    with open_store(place) as store:
        records = store[:2]
        assert HOSTILE[0] in shown(records).text
        place.unlink()
        store.close()
        assert records._repr_html_() is None  # type: ignore[attr-defined]


def test_marks_show_their_records_and_the_copy_command(tmp_path: Path) -> None:
    write_records(tmp_path / "a.lmdb", [Record(f"n{n}", n % 2, photo(n)) for n in range(40)], classes=["cat", "dog"])
    with dbloader.view(tmp_path / "a.lmdb", port=0) as viewer:
        assert "0 marked records" in shown(viewer.marks).text
        assert "dbloader copy" not in shown(viewer.marks).text
        viewer.marks.change("index:5-24", {"drop": True})
        viewer.marks.change("index:7", {"tag": "blurry"})
        page = shown(viewer.marks)
        assert len(page.sources) == 8
        assert f"20 marked records of {tmp_path / 'a.lmdb'}: 20 with drop, 0 with label, 1 with tags" in page.text
        assert f"dbloader copy {tmp_path / 'a.lmdb'} clean.lmdb --marks {tmp_path / 'a.lmdb.marks.jsonl'}" in page.text
        assert "7 n7 dog" in page.text
        (tmp_path / "a.lmdb.marks.jsonl").write_text("no mark")
        assert "row 1" in shown(viewer.marks).text


def test_boxes_and_masks_are_drawn_over_the_images(tmp_path: Path) -> None:
    mask = Image.new("L", (160, 120))
    mask.paste(1, (90, 70, 160, 120))
    fields = {"boxes": [[10.2599, 10, 70, 50]], "mask": encoded(mask, "PNG"), "other": photo(), "text": b"text"}
    record = Record("a", 0, encoded(Image.new("RGB", (160, 120)), "PNG"), 160, 120, "PNG", fields=fields)
    store_records(tmp_path / "a.lmdb", [record], classes=["cat"], source={"file_fields": ["other", "mask"]})
    write_html(tmp_path / "a.lmdb", tmp_path / "a.html")
    with open_store(tmp_path / "a.lmdb") as store:
        pages = [*map(shown, (record, store[0], store, store[:1])), Parsed((tmp_path / "a.html").read_text())]
    for page in pages:
        (source,) = page.sources
        picture = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).convert("L")
        line, inside, masked = (int(np.asarray(picture)[at]) for at in ((10, 40), (30, 40), (100, 120)))
        assert line > 100 > 30 > inside
        assert masked > 30
    for page in pages[:2]:
        assert "boxes[[10.3, 10.0, 70.0, 50.0]]" in page.text


def test_boxes_of_a_class_have_one_color_and_short_arrays_show_their_values(tmp_path: Path) -> None:
    fields = {"boxes": [[10, 10, 70, 50]], "box_labels": np.array([1]), "vector": np.zeros(65)}
    record = Record("a", 0, encoded(Image.new("RGB", (160, 120)), "PNG"), 160, 120, "PNG", fields=fields)
    store_records(tmp_path / "a.lmdb", [record], classes=["cat", "dog"])
    with open_store(tmp_path / "a.lmdb") as store:
        pages = [shown(store), shown(store[0]), shown(record)]
    lines = []
    for page in pages:
        (source,) = page.sources
        picture = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).convert("HSV")
        lines.append(picture.getpixel((40, 10))[0])  # type: ignore[index] # of HSV it is a tuple
    assert max(lines) - min(lines) <= 4  # of 256 hues: the pictures are JPEGs
    assert all("box_labels[1]" in page.text for page in pages[1:])
    assert "<array of float64, shape (65,)>" in pages[1].text


def test_unreadable_store_or_dataset_shows_its_plain_repr(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", [Record("a", 0, photo())])
    missing = open_store(tmp_path / "none.lmdb")
    assert missing._repr_html_() is None
    with LMDBDataset(tmp_path / "a.lmdb") as dataset:
        write(tmp_path / "b.lmdb", [Record("b", 0, photo(1))])
        dataset.close()
        (tmp_path / "b.lmdb").replace(tmp_path / "a.lmdb")
        assert dataset._repr_html_() is None
    wrong: Any = [Record(image="text"), Record(fields=7), Record(fields=[1])]  # type: ignore[arg-type]
    assert [record._repr_html_() for record in wrong] == [None, None, None]


def test_image_of_a_borrowed_record_is_not_drawn(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", [Record("a", 0, photo()), Record("b", 0, np.ones((9, 9), np.uint8))])
    with open_store(tmp_path / "a.lmdb") as store:
        with store.borrow([0, 1]) as records:
            borrowed = list(records)
        for record in borrowed:  # the image's memory may already be unmapped
            assert "the image may be a view of a store's memory" in shown(record).text
        assert [len(shown(record).sources) for record in store] == [1, 1]


def test_notebook_links_to_a_running_viewer(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", [Record("a", 0, photo())])
    with open_store(tmp_path / "a.lmdb") as store:
        with dbloader.view(tmp_path / "a.lmdb", port=0) as running:
            assert running.url in shown(store).sources
            with dbloader.view(tmp_path / "a.lmdb", port=0) as later:
                running.close()
                assert later.url in shown(store).sources
        assert "dbloader view " in shown(store).text
        assert len(shown(store).sources) == 1


def test_repr_of_a_record_is_one_short_line() -> None:
    boxes, caption = [[1.23456789] * 4] * 100, "a long caption\n" * 40
    fields = {"boxes": boxes, "captions": [caption] * 9, "depth": np.zeros((500, 500)), "deep": {"a": {"b": [boxes]}}}
    record = Record("a/" * 300, 2**62, bytes(10**6), 4000, 3000, "JPEG", caption, (8000, 6000), fields, 10**9)
    for number in range(100):
        record.fields[f"z{caption}{number}"] = torch.zeros(30, 30)
    text = repr(record)
    assert len(text) <= 500
    assert "\n" not in text
    for part in ("Record(index=1000000000, name='a/a", "image=<1,000,000 bytes>", "fields={'boxes': [[1.23456789, 1"):
        assert part in text
    small = Record("a", 0, fields={str(n): n for n in range(7)})
    assert repr(small) == "Record(name='a', label=0, fields={'0': 0, '1': 1, '2': 2, '3': 3, '4': 4, '5': 5, ...})"
    assert shown(small).text.endswith("00112233445566")
    assert repr(Record(fields={"text": "a\n\u202e"})) == r"Record(fields={'text': 'a\n\u202e'})"


@pytest.mark.slow
def test_store_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", [Record("a", 0, photo())])
    code = "import sys; sys.modules['torch'] = None; import dbloader; store = dbloader.open_store('a.lmdb')"
    line = [sys.executable, "-c", f"{code}; assert 'data:image/jpeg' in store._repr_html_()"]
    subprocess.run(line, cwd=tmp_path, check=True, timeout=WAIT_S)


RUN = """
import sys, nbclient, nbformat
from nbformat.v4 import new_code_cell, new_notebook
notebook = new_notebook(cells=[new_code_cell(text) for text in sys.argv[2:]])
nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""


def run_notebook(folder: Path, *cells: str) -> list[Any]:
    """Run cells in a real kernel, and return the outputs of each cell."""
    if not (find_spec("nbclient") and find_spec("ipykernel")):
        skip_or_fail("nbclient or ipykernel is not installed: they run a notebook")
    folders = dict.fromkeys(("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"), str(folder / "home"))
    line = [sys.executable, "-c", RUN, "out.ipynb", *cells]
    subprocess.run(line, cwd=folder, env={**os.environ, **folders}, check=True, timeout=WAIT_S)
    return [cell["outputs"] for cell in json.loads((folder / "out.ipynb").read_text())["cells"]]


@pytest.mark.slow
def test_notebook_shows_progress_and_reports_as_text(tmp_path: Path) -> None:
    plant_photos(tmp_path / "images", 12)
    convert, verify, manifest, loader = run_notebook(
        tmp_path,
        "import dbloader\nreport = dbloader.convert('images', 'a.lmdb')\nreport",
        "dbloader.convert('images', 'b.lmdb', progress=None)\ndbloader.verify_store('b.lmdb')",
        "dbloader.open_store('a.lmdb').manifest",
        "loader = dbloader.create_loader(dbloader.LMDBDataset('a.lmdb'), batch_size=2, num_workers=0)\n"
        "for batch in loader: pass\nloader.stats()",
    )
    bar = "".join("".join(output["text"]) for output in convert if output.get("name") == "stderr")
    assert "Converting: 100%" in bar
    assert "12/12" in bar
    (report,) = (text_of(output) for output in convert if output["output_type"] == "execute_result")
    assert re.match(r"place +a\.lmdb\ndigest +[0-9a-f]{64}\nrecords +12\nfiles +12\n", report)
    (checked,) = verify  # no progress
    assert text_of(checked).startswith("place    b.lmdb\ndigest   ")
    assert re.match(r"Records +12\nImages +[0-9.]+ kB \(12 JPEG\)\n", text_of(manifest[-1]))
    assert text_of(loader[-1]).startswith("waited for data ")


def text_of(output: dict[str, Any]) -> str:
    return "".join(output["data"]["text/plain"])


@pytest.mark.nightly
@pytest.mark.slow
def test_notebook_shows_store_dataset_records_and_marks(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", [Record(f"n{n}", 0, photo(n)) for n in range(9)])
    cells = (
        "import dbloader\nstore = dbloader.open_store('a.lmdb')\nstore",
        "dbloader.LMDBDataset('a.lmdb')",
        "store[3]",
        "dbloader.open_store('none.lmdb')",
        "viewer = dbloader.view('a.lmdb', port=0)\nstore",
        "store[2:5]",
        "viewer.marks.change('index:3-4', {'drop': True})\nviewer.marks",
        "viewer.close()",
    )
    outputs = [[output["data"] for output in cell] for cell in run_notebook(tmp_path, *cells)]
    html = ["".join(data.get("text/html", "")) for (data,) in outputs[:7]]
    assert [text.count("data:image/jpeg;base64,") for text in html] == [8, 8, 1, 0, 8, 3, 2]
    assert outputs[3] == [{"text/plain": ["LMDBStore('none.lmdb')"]}]
    assert "dbloader view a.lmdb" in html[0]
    assert 'href="http://127.0.0.1:' in html[4]
    assert outputs[7] == []
