"""Functions that make every kind of source in a folder that has FILES in ``files/``, and return convert's arguments."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lmdb
import pyarrow
import pyarrow.parquet

from dbloader import ImageFormat, convert
from tests.support.images import photo, picture

FILES = {
    "bird/0.png": picture("PNG"),
    "cat/a.jpg": photo(4),
    "cat/deep/er.and.dots.jpg": photo(3),
    "cat/ü ñ.jpg": photo(2),
    "dog/b.jpg": photo(1),
}
# Values that a format may change: some JSON types, missing values, and integers that a double would round.
ROWS = [
    {"path": "dog/b.jpg", "label": "zebra", "caption": "ein Hündchen\nzwei", "size": 2**53 + 1, "tags": ["a", "b"]},
    {"path": "cat/a.jpg", "label": "aardvark", "score": 0.1, "seen": True, "where": {"x": 1, "y": None}},
    {"path": "dog/b.jpg", "label": "zebra", "caption": ""},
    {"path": "cat/ü ñ.jpg", "label": None},
]
COCO = {
    "images": [{"id": 7, "file_name": "cat/a.jpg", "width": 40, "height": 30}, {"id": 3, "file_name": "dog/b.jpg"}],
    "categories": [{"id": 1, "name": "nose"}, {"id": 90, "name": "ear"}],
    "annotations": [{"id": 1, "image_id": 7, "category_id": 90, "bbox": [1, 2, 3.5, 4], "area": 14.0, "iscrowd": 0}],
}


def folder(at: Path) -> dict[str, Any]:
    (at / "files" / "empty").mkdir()
    return {"source": at / "files"}


def listing(at: Path) -> dict[str, Any]:
    (at / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {"source": at / "files", "listing": at / "rows.jsonl"}


def integers(at: Path) -> dict[str, Any]:
    (at / "rows.csv").write_text("file,target,note\ndog/b.jpg,17,\ncat/a.jpg,-3, x \n")
    return {"source": at / "files", "listing": at / "rows.csv"}


def metadata(at: Path) -> dict[str, Any]:
    (at / "files" / "metadata.csv").write_text("file_name,label,text\ndog/b.jpg,b,woof\ncat/a.jpg,a,\n")
    return {"source": at / "files"}


def coco(at: Path) -> dict[str, Any]:
    (at / "coco.json").write_text(json.dumps(COCO))
    return {"source": at / "files", "listing": at / "coco.json"}


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as out:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return path


def tar(at: Path) -> dict[str, Any]:
    with tarfile.open(at / "all.tar", "w") as out:
        out.add(at / "files", "train")
    return {"source": at / "all.tar"}


def webdataset(at: Path) -> dict[str, Any]:
    files: dict[str, bytes] = {}
    for key in ("2", "1"):
        files |= {f"{key}.jpg": photo(int(key)), f"{key}.cls": key.encode()}
        files |= {f"{key}.json": b'{"a": [1]}', f"{key}.txt": b"t"}
    return {"source": pack(at / "shard-0.tar", files)}


def zipped(at: Path) -> dict[str, Any]:
    with zipfile.ZipFile(at / "all.zip", "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in FILES.items():
            out.writestr(name, data)
    return {"source": at / "all.zip"}


def parquet(at: Path) -> dict[str, Any]:
    images = [{"bytes": data, "path": name} for name, data in FILES.items()]
    table = pyarrow.table({"image": images, "label": ["b", "a", "b", "c", "a"], "size": [1, 2, None, 4, 5]})
    pyarrow.parquet.write_table(table, at / "train.parquet")
    return {"source": at / "train.parquet"}


def other_lmdb(at: Path) -> dict[str, Any]:
    with lmdb.open(str(at / "old"), map_size=2**24) as env, env.begin(write=True) as txn:
        for number, data in enumerate(FILES.values()):
            txn.put(str(number).encode(), pickle.dumps((data, number % 3)))
    return {"source": at / "old"}


def store(at: Path) -> dict[str, Any]:
    convert(**listing(at), destination=at / "first.lmdb")
    return {"source": at / "first.lmdb"}


def smaller(at: Path) -> dict[str, Any]:
    return {"source": at / "files", "images": ImageFormat(short_side=16)}


def masks(at: Path) -> dict[str, Any]:
    rows = [
        {"path": "cat/a.jpg", "before": 1, "mask": "bird/0.png", "depth": "cat/a.jpg", "after": 2},
        {"path": "cat/deep/er.and.dots.jpg", "before": 3, "mask": None, "depth": "bird/0.png", "after": 4},
        {"path": "dog/b.jpg", "before": 5, "mask": "dog/b.jpg", "after": 6},
        {"path": "dog/b.jpg", "before": 5, "mask": "dog/b.jpg", "after": 6},
    ]
    (at / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"source": at / "files", "listing": at / "rows.jsonl", "file_fields": ("mask", "depth")}


SOURCES = (
    folder,
    listing,
    integers,
    metadata,
    coco,
    tar,
    webdataset,
    zipped,
    parquet,
    other_lmdb,
    store,
    smaller,
    masks,
)
