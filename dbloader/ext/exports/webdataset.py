"""Tar files for WebDataset (https://github.com/webdataset/webdataset).

A sample has these files. Only the first is always present::

    cat/0001.jpg            the image; its path is the record's name, if no other name begins with ``cat/0001.``
    cat/0001.cls            the label, an integer
    cat/0001.mask.png       the image file in the field ``mask``
    cat/0001.fields.json    other fields, but null for each file; ``damaged`` and ``resized_from``; the record's
                            ``name``, if it differs from the path of the image

``.fields.json`` is Extended JSON (https://www.mongodb.com/docs/manual/reference/mongodb-extended-json/), which can
contain bytes and arrays. Beside the tar files, ``classes.json`` has the class names in the order of labels.
``file_fields.json`` has the names of the file fields. ``target.json`` has the name of the target field, unless the
target is the label.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import re
import tarfile
from typing import TYPE_CHECKING

import numpy as np
from bson.json_util import RELAXED_JSON_OPTIONS, dumps
from typing_extensions import override

from dbloader.errors import ExportError
from dbloader.ext.exports.base import REMEDY, Exporter, all_fields, describe, extension_of, is_safe
from dbloader.ext.sources.labels import CLASSES, FIELDS_FILE
from dbloader.ext.sources.tar import FIELDS, LABEL, MAX_FIELDS
from dbloader.images.info import find_facts
from dbloader.records.values import pack
from dbloader.sources.folder import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

# Largest number of samples and bytes in a shard, as WebDataset advises.
_SAMPLES, _BYTES = 10_000, 500_000_000
# A name that WebDataset and ``convert`` both accept as a path. Names must not look like made-up names (record-0…). They
# must have no backslash, which on Windows could lead out of the folder where a tar is unpacked.
_PATH = re.compile(r"(?!/|__[^/]*__/|record-\d)((?:[^\0\n\\]*/)?[^./\0\n\\]+)(?:\.[^./\0\n\\]*)?")


class WebDatasetExporter(Exporter):
    """Writes tar files for WebDataset."""

    def __init__(self, store: Store, indices: Sequence[int], folder: Path) -> None:
        super().__init__(store, indices, folder)
        keys = (hashlib.blake2b(_key(name).encode(), digest_size=8).digest() for name in store.names())
        hashes = np.frombuffer(b"".join(keys), np.uint64)
        _, at, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        self._is_unique = counts[at] == 1
        self._shards = self._samples = 0
        self._tar: tarfile.TarFile | None = None

    @override
    def write(self, record: Record) -> None:
        image, extension = self._file(record)
        key = _key(record.name or "")
        if not key or not self._is_unique[record.index]:
            key = f"record-{record.index:09}"
        files = {key + extension: image}
        if record.label is not None:
            files[f"{key}.{LABEL}"] = b"%d" % record.label
        fields = {} if record.name == key + extension else {"name": record.name}
        parts = {name: record.fields[name] for name in self.store.manifest.file_fields if record.fields.get(name)}
        fields |= {name: pack(name, value) for name, value in {**all_fields(record), **dict.fromkeys(parts)}.items()}
        if fields:
            files[f"{key}.{FIELDS}"] = text = dumps(fields, json_options=RELAXED_JSON_OPTIONS).encode()
            if len(text) > MAX_FIELDS:
                what = f"{len(text):,} bytes of fields, but convert reads at most {MAX_FIELDS:,} from a tar"
                raise ExportError(f"{describe(record)} has {what}: {REMEDY}")
        for name, data in parts.items():
            if "/" in name:
                raise ExportError(f"{describe(record)} has the field {name!r}, whose slash makes a folder: {REMEDY}")
            if (facts := find_facts(data)) is None:
                raise ExportError(f"{describe(record)} has a file in {name!r} whose format is not known: {REMEDY}")
            files[f"{key}.{name}{extension_of(facts.format)}"] = data
        self._add(files)

    def _file(self, record: Record) -> tuple[bytes, str]:
        image = self.image_file(record)
        if isinstance(record.image, np.ndarray):
            return image, ".png"
        extension = posixpath.splitext(record.name or "")[1]
        if extension.lower() not in EXTENSIONS:
            extension = extension_of(record.format or "unknown")
        if extension.lower() not in EXTENSIONS:
            what = f"has an image of the format {record.format or 'unknown'}, which convert does not read from a tar"
            raise ExportError(f"{describe(record)} {what}: {REMEDY}")
        return image, extension

    def _add(self, files: dict[str, bytes]) -> None:
        """Write the files of a sample without times and owners, so exporting a store twice gives the same bytes."""
        if self._tar is None or self._samples == _SAMPLES or self._tar.offset >= _BYTES:
            self.close()
            self._tar = tarfile.open(self.folder / f"shard-{self._shards:06}.tar", "x")  # noqa: SIM115
            self._shards, self._samples = self._shards + 1, 0
        self._samples += 1
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            self._tar.addfile(member, io.BytesIO(data))
            self._tar.members.clear()  # type: ignore[attr-defined]  # otherwise it keeps all headers in memory

    @override
    def finish(self) -> None:
        super().finish()
        self.close()
        self.write_target()
        names = json.dumps(self.store.manifest.classes, ensure_ascii=False)
        (self.folder / CLASSES).write_text(names + "\n", encoding="utf-8")
        if files := self.store.manifest.file_fields:
            (self.folder / FIELDS_FILE).write_text(json.dumps(files) + "\n", encoding="utf-8")

    @override
    def close(self) -> None:
        tar, self._tar = self._tar, None
        if tar is not None:
            tar.close()


def _key(name: str) -> str:
    """Return the part of a name that is common to all files of a sample; "" for a name that is not valid in a tar."""
    found = _PATH.fullmatch(name)
    return found[1] if found and posixpath.normpath(name) == name and is_safe(name) else ""
