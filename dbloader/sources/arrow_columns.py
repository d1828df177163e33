"""Which column of a table is the image, which one the label, and how the others become fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import types

from dbloader.errors import FieldError, SourceError
from dbloader.records.record import checked_field_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo", "image_bytes", "bytes")
LABELS = ("label", "labels", "class", "target", "cls")
OWN = b"dbloader"
"""Key of a schema's metadata in exports of dbloader: nothing about their columns has to be guessed."""

_KEPT = (
    types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_large_string,
    types.is_binary, types.is_large_binary, types.is_fixed_size_binary,
)  # fmt: skip


class Columns(NamedTuple):
    """What the columns of a table are."""

    image: str
    path: str | None  # column of the image's path, such as "image.path"; None without one
    label: str | None
    classes: tuple[str, ...] | None  # names of a ClassLabel; None without one
    fields: dict[str, tuple[str, Any]]  # by column: the name of the field, and the type that its values are read as
    absent: frozenset[str]  # columns in which null says that the record has no such field
    is_own: bool
    warnings: tuple[str, ...]

    @property
    def without_image(self) -> list[str]:
        """All that is not bytes of the image."""
        return [name for name in (self.path, self.label, *self.fields) if name is not None]


def find_columns(schema: Any, where: str) -> Columns:
    """Return what the columns of a schema are; SourceError if no column, or none for certain, is the image."""
    names = schema.names
    if len({*names}) < len(names):
        raise SourceError(f"{where}: two of its columns have the same name: rename one")
    own = _metadata(schema, OWN)
    is_own = own is not None and "image" in names
    features = ((_metadata(schema, b"huggingface") or {}).get("info") or {}).get("features") or {}
    kinds = {name: features[name].get("_type") for name in names if isinstance(features.get(name), dict)}
    warnings: list[str] = []
    image = "image" if is_own else _image(schema, kinds, where, warnings)
    labels = [name for name in names if kinds.get(name) == "ClassLabel"]
    label: str | None
    if is_own:
        label = "label" if "label" in names else None
    else:
        by_name = [name for name in LABELS if name in names and name != image and _is_label(schema.field(name).type)]
        label = _first(labels, LABELS) or next(iter(labels or by_name), None)
        if len(labels) > 1:
            warnings.append(f"of the columns of classes, {_some(labels)}, {label!r} is the label; others became fields")
    class_names = features[label].get("names") if label in labels else None
    fields: dict[str, tuple[str, Any]] = {}
    for name in names:
        if name not in (image, label):
            as_text: list[str] = []
            field = _field_name(name, names)
            fields[name] = field, _as_read(schema.field(name).type, as_text)
            try:
                pa.array([], schema.field(name).type).cast(fields[name][1])
            except (pa.ArrowException, ValueError, TypeError) as error:
                what = f"the column {name!r} has the type {schema.field(name).type}, which cannot be a field"
                raise SourceError(f"{where}: {what}: leave it out of the file") from error
            if field != name:
                warnings.append(f"the column {name!r} became the field {field!r}: no field may have its name")
            if as_text:
                warnings.append(f"the values of the column {name!r} of the type {as_text[0]} became text")
    return Columns(
        image,
        _path(image, schema.field(image).type),
        label,
        tuple(map(str, class_names)) if isinstance(class_names, list) else None,
        fields,
        frozenset(map(str, (own or {}).get("absent") or ())),
        is_own,
        tuple(warnings),
    )


def _image(schema: Any, kinds: dict[str, Any], where: str, warnings: list[str]) -> str:
    names = schema.names
    kind_of = {name: schema.field(name).type for name in names}
    found = [
        name
        for name, kind in kind_of.items()
        if kinds.get(name) == "Image" and (_has_bytes(kind) or types.is_string(kind))
    ]
    found = found or [name for name, kind in kind_of.items() if types.is_struct(kind) and _has_bytes(kind)]
    found = found or [name for name, kind in kind_of.items() if _has_bytes(kind)]
    found = found or [name for name, kind in kind_of.items() if types.is_string(kind) and name in IMAGES]
    image = found[0] if len(found) == 1 else _first(found, IMAGES)
    if image is None:
        which = f"{_some(found)} may all be the image" if found else f"none of {_some(names)} holds images"
        raise SourceError(f"{where}: of its columns, {which}: name the one to take 'image'")
    if len(found) > 1:
        warnings.append(f"of the columns of images, {_some(found)}, {image!r} is the image; others became fields")
    return image


def _path(image: str, kind: Any) -> str | None:
    if types.is_struct(kind):
        return f"{image}.path" if "path" in kind.names and types.is_string(kind.field("path").type) else None
    return image if types.is_string(kind) else None


def _has_bytes(kind: Any) -> bool:
    """Return whether values of a type are bytes, or a struct that has some, as Hugging Face stores images."""
    if types.is_struct(kind):
        return "bytes" in kind.names and _has_bytes(kind.field("bytes").type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_label(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind))


def _as_read(kind: Any, as_text: list[str]) -> Any:
    """Return the type that values are read as, which a record can hold; adds types that become text to ``as_text``."""
    if isinstance(kind, pa.BaseExtensionType):  # such as datasets' Array2D, once datasets is imported
        return _as_read(kind.storage_type, as_text)
    if types.is_dictionary(kind):
        return _as_read(kind.value_type, as_text)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_as_read(kind.value_type, as_text))
    if types.is_struct(kind):
        return pa.struct([(field.name, _as_read(field.type, as_text)) for field in kind])
    if any(is_kept(kind) for is_kept in _KEPT):
        return kind
    as_text.append(str(kind))
    return pa.string()


def _field_name(column: str, others: Sequence[str]) -> str:
    """Return the name of a column's field: the column's, changed if no field may have it."""
    try:
        return checked_field_name(column)
    except FieldError:
        name = column.translate({ord(character): "_" for character in ".$\0"}) + "_"
        while name in others:
            name += "_"
        return name


def _metadata(schema: Any, key: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads((schema.metadata or {})[key])
    except (KeyError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _first(names: Iterable[str], preferred: Sequence[str]) -> str | None:
    return next((name for name in preferred if name in names), None)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
