"""Write stores of records and of samples, without dbloader.ext."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from dbloader.images.info import count_depth, find_facts
from dbloader.records.manifest import FILE_FIELDS, Manifest
from dbloader.records.record import STANDARD_FIELDS, Record, encode
from dbloader.stores.open import create_store
from tests.support.images import encoded


def store_records(
    place: str | Path, records: Iterable[Record], *, events: Iterable[dict[str, str]] = (), **values: Any
) -> Manifest:
    """Write records unchanged, although ``write_store`` would refuse some. ``values`` go to the manifest."""
    with create_store(place) as writer:
        writer.write(map(encode, records), events=events)
        return writer.finish(**values)


def store_samples(
    samples: Iterable[Any], place: str | Path, *, classes: Iterable[str] = (), file_fields: Iterable[str] = ()
) -> Manifest:
    """Write records, dicts with the names of fields as keys, or tuples of an image and a label."""
    with create_store(place) as writer:
        for sample in samples:
            record = _record(sample)
            writer.write([encode(record)], depths=count_depth(record.image))
        return writer.finish(classes=tuple(classes), source={FILE_FIELDS: [*file_fields]} if file_fields else {})


def _record(sample: Any) -> Record:
    if isinstance(sample, Record):
        record = sample
    else:
        named = sample if isinstance(sample, Mapping) else dict(zip(("image", "label"), sample, strict=False))
        values = {name: _value(value) for name, value in named.items()}
        standard = {name: values.pop(name) for name in STANDARD_FIELDS if name in values}
        record = Record(**standard, fields=values)
    if isinstance(record.image, bytes) and record.format is None and (facts := find_facts(record.image)):
        record.format, record.width, record.height = facts[:3]
    return record


def _value(value: Any) -> Any:
    if isinstance(value, Image.Image):
        return encoded(value, "PNG")
    return value.numpy() if isinstance(value, torch.Tensor) else value
