"""A manifest describes its store, and damage in a manifest is found."""

from __future__ import annotations

import hashlib
import random
import struct
from dataclasses import fields, replace
from typing import Any

import bson
import numpy as np
import pytest

from dbloader import Record
from dbloader.errors import DamagedStoreError, NotAStoreError, StoreError, StoreVersionError
from dbloader.records.columns import CHUNK, ColumnChunk
from dbloader.records.document import open_sealed, seal
from dbloader.records.manifest import MAX_COUNTED_LABELS, Manifest, Summary
from dbloader.records.record import EncodedRecord, encode

MANIFEST = Manifest(
    length=2**40,
    digest="ab" * 32,
    classes=("Katze", "日本"),
    label_counts={-(2**62): 1, 0: 2**40, 7: 3},
    labelled=5,
    named=4,
    image_bytes=2**45,
    width=(1, 2**32 - 1),
    height=(0, 0),
    formats={"JPEG": 3},
    fields={"caption.ü": 2},
    outcome={"rejected": 1},
    events=1,
    source={"path": "/x", "shuffle": None, "max_side": 3},
    created="2024-05-06T07:08:09+00:00",
    created_by="dbloader 0",
)
CONTENT = open_sealed(MANIFEST.encode())
CAN_BE_NULL = ("label_counts", "version")  # another test checks the version


def summarize(records: list[EncodedRecord], chunk_length: int = CHUNK) -> Summary:
    summary = Summary()
    for start in range(0, len(records), chunk_length):
        chunk = ColumnChunk()
        for record in records[start : start + chunk_length]:
            chunk.append(record)
        summary.add(chunk.pack())
    return summary


def test_decoded_manifest_equals_the_encoded_manifest() -> None:
    for manifest in (MANIFEST, Manifest(length=0, digest="0" * 64), replace(MANIFEST, label_counts=None)):
        assert Manifest.decode(manifest.encode(), "place") == manifest
    assert Manifest.decode(seal({**CONTENT, "unknown": "CC0"}), "place") == MANIFEST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((field.name, None) for field in fields(Manifest) if field.name not in CAN_BE_NULL),
        ("length", -1),
        ("length", True),
        ("digest", "x" * 64),
        ("digest", "0" * 63),
        ("classes", ["a", 3]),
        ("label_counts", b"odd"),
        ("width", 3),
        ("height", [1, -1]),
        ("formats", ["JPEG"]),
        ("fields", {"a": "b"}),
        ("outcome", {"a": -1}),
        ("events", -1),
        ("source", "x"),
        ("created", ["x"] * 10_000),
        ("created_by", b"x"),
    ],
)
def test_invalid_or_missing_value_is_damage(name: str, value: Any) -> None:
    with pytest.raises(DamagedStoreError, match=rf"^the place: its manifest has no valid {name}: .{{0,80}}$"):
        Manifest.decode(seal({**CONTENT, name: value}), "the place")
    if value is None:
        content = {key: other for key, other in CONTENT.items() if key != name}
        with pytest.raises(DamagedStoreError, match=rf"^the place: its manifest has no valid {name}: None$"):
            Manifest.decode(seal(content), "the place")


def test_cut_manifest_and_every_flipped_bit_are_found() -> None:
    data = MANIFEST.encode()
    for damaged in (b"", data[:-1], data[:100], b"x" * 100):
        with pytest.raises(DamagedStoreError, match=r"^the place: the manifest cannot be decoded: "):
            Manifest.decode(damaged, "the place")
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreError, match=r"^the place"):
            Manifest.decode(bytes(flipped), "the place")


def test_manifest_of_another_program_or_a_newer_version_is_refused() -> None:
    for document in ({}, {"format": "other"}, {"version": 1}):
        with pytest.raises(NotAStoreError, match=r"^the place is not a dbloader store$"):
            Manifest.decode(bson.encode(document), "the place")
    for version in (2, None, "1"):
        message = rf"^the place has format version {version!r}; this dbloader reads versions up to 1: install a newer "
        with pytest.raises(StoreVersionError, match=message):
            Manifest.decode(seal({**CONTENT, "version": version}), "the place")


# Summary of the columns


def test_digest_is_the_sha256_of_the_checksums_in_order() -> None:
    records = [encode(Record(name=f"{number}")) for number in range(5)]
    expected = hashlib.sha256(b"".join(struct.pack("<I", record.crc32) for record in records)).hexdigest()
    assert summarize(records).facts([])["digest"] == expected
    assert summarize(records[::-1]).facts([])["digest"] != expected
    nothing = {"label_counts": {}, "labelled": 0, "named": 0, "image_bytes": 0, "width": (0, 0), "height": (0, 0)}
    nothing["columns"] = {}
    assert summarize([]).facts([]) == {"digest": hashlib.sha256().hexdigest(), **nothing}
    assert summarize([]).labels is None


@pytest.mark.parametrize("chunk_length", [1, 7, 100])
def test_summary_does_not_depend_on_chunk_boundaries(chunk_length: int) -> None:
    rng = random.Random(3)
    records = [
        Record(
            name=None if rng.random() < 0.3 else f"{number}",
            label=None if rng.random() < 0.3 else rng.choice([-5, 0, 3, 2**40]),
            image=rng.randbytes(number),
            width=rng.choice([None, 0, 5 + number]),
            height=rng.choice([None, 0, 90 - number]),
            fields={"score": number if number < 30 else 0.5, "mixed": number or "zero", "id": 2**60 + number},
        )
        for number in range(60)
    ]
    labels = [record.label for record in records if record.label is not None]
    widths = [record.width for record in records if record.width]
    heights = [record.height for record in records if record.height]
    summary = summarize([encode(record) for record in records], chunk_length)
    facts = summary.facts(["score", "mixed", "id"])
    del facts["digest"]
    assert facts == {
        "label_counts": {label: labels.count(label) for label in sorted(set(labels))},
        "labelled": len(labels),
        "named": sum(record.name is not None for record in records),
        "image_bytes": sum(range(60)),
        "columns": {"id": "int", "score": "float"},
        "width": (min(widths), max(widths)),
        "height": (min(heights), max(heights)),
    }
    assert list(facts["label_counts"]) == sorted(facts["label_counts"])
    assert summary.labels == (-5, 2**40)


@pytest.mark.parametrize(("different", "counted"), [(MAX_COUNTED_LABELS, True), (MAX_COUNTED_LABELS + 1, False)])
def test_up_to_65536_different_labels_are_counted(different: int, counted: bool) -> None:
    assert MAX_COUNTED_LABELS == 65_536
    summary = Summary()
    empty = ColumnChunk().pack()
    for labels in (np.arange(different, dtype="<i8"), np.array([0, 0], "<i8")):
        summary.add({**empty, "label": labels.tobytes()})
    facts = summary.facts([])
    assert facts["labelled"] == different + 2
    assert summary.labels == (0, different - 1)
    if counted:
        assert facts["label_counts"][0] == 3
        assert len(facts["label_counts"]) == different
    else:
        assert facts["label_counts"] is None
