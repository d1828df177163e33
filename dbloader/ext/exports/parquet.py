"""Parquet files in the form of Hugging Face's datasets: a folder of shards. All shards have the same columns.

``image`` is a struct of the file's bytes and its path, which is the record's name. ``label`` is a ClassLabel with the
classes of the store. Each other field is a column. The schema's metadata contains what columns cannot hold, such as the
shapes of arrays, under the key ``dbloader`` (docs/parquet.md).
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader.errors import ExportError
from dbloader.ext.exports.base import REMEDY, UNKNOWN_FORMAT, Exporter, all_fields, describe
from dbloader.records.manifest import TARGET

try:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dbloader.ext.sources.arrow_columns import ArrayRule, field_names, rule_of, to_lists
except ImportError as error:
    raise ExportError("writing Parquet needs pyarrow: pip install 'dbloader[parquet]'") from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

# As in Hugging Face's datasets, a group has up to 100 rows, and a shard about 500 MB.
_GROUP_ROWS, _GROUP_BYTES = 100, 64 * 2**20
_SHARD_BYTES = 500 * 10**6
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_DTYPES = {"halffloat": "float16", "float": "float32", "double": "float64"}  # pyarrow's name -> name in datasets
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


class ParquetExporter(Exporter):
    """Writes shards of about 500 MB. The constructor reads the records to find the types of their fields."""

    def __init__(self, store: Store, indices: Sequence[int], folder: Path) -> None:
        super().__init__(store, indices, folder)
        self._types: dict[str, Any] = {}  # field -> type of its column
        counts: dict[str, int] = {}
        for record in self.records():
            self._add_types(record)
            counts.update({name: counts.get(name, 0) + 1 for name in all_fields(record)})
        self._absent = [name for name, count in counts.items() if count < len(indices)]
        self._schema = self._make_schema()
        self._rows: list[dict[str, Any]] = []
        self._group_bytes = self._shard_bytes = self._shards = 0
        self._writer: Any = None
        (folder / "data").mkdir()

    def _add_types(self, record: Record) -> None:
        kinds: dict[str, Any] = {}
        new: dict[str, list[str]] = {}  # {known field: new fields that follow it}; "" means the beginning
        before = ""
        for name, value in all_fields(record).items():
            try:
                if value is not None and name in self.store.manifest.file_fields:
                    kind = _IMAGE
                else:
                    kind = rule_of(value) if isinstance(value, np.ndarray) else _type_of(value)
                kinds[name] = _merged(self._types[name], kind) if name in self._types else kind
            except ValueError as error:
                raise ExportError(
                    f"{describe(record)}: its field {name!r} {error}, which a column of Parquet "
                    f"cannot hold: change the field, or {REMEDY}"
                ) from error
            if name in self._types:
                before = name
            else:
                new.setdefault(before, []).append(name)
        if new:
            order = chain(new.get("", ()), *((name, *new.get(name, ())) for name in self._types))
            self._types = {name: self._types.get(name) for name in order}
        self._types |= kinds

    def _make_schema(self) -> Any:
        columns = [("image", _IMAGE)]
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        manifest = self.store.manifest
        if manifest.labelled or manifest.classes:
            columns.append(("label", pa.int64()))
            names = {"names": [*manifest.classes], "_type": "ClassLabel"}
            features["label"] = names if manifest.classes else _feature(pa.int64(), "", {})
        self._arrays = {name: kind for name, kind in self._types.items() if isinstance(kind, ArrayRule)}
        types = {name: _without_null(getattr(kind, "type", kind)) for name, kind in self._types.items()}
        columns += types.items()
        self._files = [name for name in manifest.file_fields if types.get(name) == _IMAGE]
        features |= {name: _feature(kind, name, manifest.field_classes) for name, kind in types.items()}
        features |= {name: {"_type": "Image"} for name in self._files}
        arrays = {name: rule._asdict() for name, rule in self._arrays.items()}
        own = {"absent": self._absent, "arrays": arrays, "files": self._files, "target": manifest.source.get(TARGET)}
        metadata = {"huggingface": {"info": {"features": features}}, "dbloader": own}
        return pa.schema(columns, {key: json.dumps(value) for key, value in metadata.items()})

    @override
    def write(self, record: Record) -> None:
        fields, image = all_fields(record), self._file(record)
        for name in self._absent:
            if name in fields and fields[name] is None:
                raise ExportError(
                    f"{describe(record)}: its field {name!r} is None, and other records have no such field, "
                    f"but Parquet would store both as null: {REMEDY}"
                )
        for name, rule in self._arrays.items():
            if (array := fields.get(name)) is not None and not rule.fits(array):
                raise ExportError(
                    f"{describe(record)}: its field {name!r} is empty, and Parquet would lose its shape {array.shape}, "
                    f"because the shapes in other records differ: {REMEDY}"
                )
        if [*fields] != [name for name in self._types if name in fields]:
            self.changes["with a different order of fields: convert gives all records the same order"] += 1
        column = None if image is None and record.name is None else {"bytes": image, "path": record.name}
        self._group_bytes += sum(map(_nbytes, (image, *fields.values())))
        for name in self._files:
            if fields.get(name) is not None:
                fields[name] = {"bytes": fields[name], "path": None}
        self._rows.append({**fields, "image": column, "label": record.label})
        if len(self._rows) >= _GROUP_ROWS or self._group_bytes >= _GROUP_BYTES:
            self._write_group()

    def _file(self, record: Record) -> bytes | None:
        if record.image is None:
            self.changes["without an image: convert leaves them out"] += 1
            return None
        if record.format is None and not isinstance(record.image, np.ndarray):
            self.changes[UNKNOWN_FORMAT] += 1
        return self.image_file(record)

    def _write_group(self) -> None:
        if self._writer is None:
            path = self.folder / "data" / f"{self._shards:05}"
            self._writer = pq.ParquetWriter(path, self._schema, use_dictionary=False, write_page_checksum=True)
            self._shards += 1
        try:
            self._writer.write_table(pa.table([*map(self._column, self._schema)], self._schema))
        except pa.ArrowException as error:
            raise ExportError(f"{self.folder}: cannot be written: {error}; {REMEDY}") from error
        self._shard_bytes += self._group_bytes
        self._rows, self._group_bytes = [], 0
        if self._shard_bytes >= _SHARD_BYTES:
            self.close()

    def _column(self, field: Any) -> Any:
        values, rule = [row.get(field.name) for row in self._rows], self._arrays.get(field.name)
        return to_lists(values, rule) if rule else pa.array(values, field.type)

    @override
    def finish(self) -> None:
        super().finish()
        if self._rows or not self._shards:
            self._write_group()
        self.close()
        for shard in range(self._shards):
            name = f"train-{shard:05}-of-{self._shards:05}.parquet"
            (self.folder / "data" / f"{shard:05}").rename(self.folder / "data" / name)

    @override
    def close(self) -> None:
        writer, self._writer, self._shard_bytes = self._writer, None, 0
        if writer is not None:
            writer.close()


def _type_of(value: Any) -> Any:
    """Return the column type that keeps a value unchanged. Raise ValueError if no type does."""
    if value is None:
        return pa.null()
    if isinstance(value, list):
        kind = pa.null()
        for item in value:
            kind = _merged(kind, _type_of(item))
        return pa.list_(kind)
    if isinstance(value, dict) and value:
        return pa.struct([(name, _type_of(item)) for name, item in value.items()])
    if type(value) not in _TYPES:
        raise ValueError("is an empty dict" if isinstance(value, dict) else f"holds a {type(value).__name__}")
    return _TYPES[type(value)]


def _merged(first: Any, second: Any) -> Any:
    """Return the column type for values of two types. Raise ValueError if no type fits both."""
    if pa.null() in (first, second) or first == second:
        return second if first == pa.null() else first
    if isinstance(first, ArrayRule) and isinstance(second, ArrayRule) and str(first) == str(second):
        same = (size if size == other else None for size, other in zip(first.shape, second.shape, strict=True))
        return ArrayRule(first.dtype, tuple(same))
    if isinstance(first, pa.DataType) and isinstance(second, pa.DataType):
        if pa.types.is_list(first) and pa.types.is_list(second):
            return pa.list_(_merged(first.value_type, second.value_type))
        if pa.types.is_struct(first) and pa.types.is_struct(second):
            names = field_names(first)
            if names == field_names(second):
                return pa.struct([(name, _merged(first.field(name).type, second.field(name).type)) for name in names])
    raise ValueError(f"is {second} here, but {first} in earlier values")


def _without_null(kind: Any) -> Any:
    """Replace the type null by string, because pyarrow 26 cannot read nulls of a struct in a list."""
    if pa.types.is_list(kind):
        return pa.list_(_without_null(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_null(field.type)) for field in kind])
    return pa.string() if pa.types.is_null(kind) else kind


def _feature(kind: Any, part: str, classes: dict[str, list[str]]) -> Any:
    """Return Hugging Face's feature for a type. Integers of a field with class names become a ClassLabel."""
    if pa.types.is_list(kind):
        return [_feature(kind.value_type, part, classes)]
    if pa.types.is_struct(kind):
        return {field.name: _feature(field.type, f"{part}.{field.name}", classes) for field in kind}
    if part in classes and pa.types.is_integer(kind):
        return {"names": classes[part], "_type": "ClassLabel"}
    return {"dtype": _DTYPES.get(str(kind), str(kind)), "_type": "Value"}


def _nbytes(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, (bytes, str)) else 0
