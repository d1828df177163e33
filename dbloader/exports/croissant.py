"""A description of an exported image folder in Croissant 1.0 (https://docs.mlcommons.org/croissant/)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterable

_VOCABULARY = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet", "format",
    "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
    "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{word: f"cr:{word}" for word in _VOCABULARY},
}
_TYPES = {bool: "sc:Boolean", int: "sc:Integer", float: "sc:Float"}
_IMAGES = {"fileSet": {"@id": "images"}}


def data_type(values: set[type]) -> str:
    """Return Croissant's name of the type of a column, by the types of its values."""
    values = values - {type(None)}
    return _TYPES.get(values.pop(), "sc:Text") if len(values) == 1 else "sc:Text"


def describe_folder(
    name: str, formats: Iterable[str], patterns: Iterable[str], table: tuple[str, str] | None, columns: dict[str, str]
) -> dict[str, Any]:
    """Return the description of a folder of images, or of the images in a table beside them.

    ``table`` is the name and SHA-256 of a JSON lines file with ``columns``, of which the first is the path of an image.
    """
    Image.init()
    types = [Image.MIME.get(image_format, "application/octet-stream") for image_format in formats]
    files: list[dict[str, Any]] = [
        {"@type": "cr:FileSet", "@id": "images", "encodingFormat": [*dict.fromkeys(types)], "includes": [*patterns]}
    ]
    path = {**_IMAGES, "extract": {"fileProperty": "fullpath"}}
    fields = [_field("image", "sc:ImageObject", {**_IMAGES, "extract": {"fileProperty": "content"}})]
    if table is None:
        fields.append(_field("label", "sc:Text", {**path, "transform": {"regex": "^([^/]+)/"}}))
    else:
        title, digest = table
        files.append({"@type": "cr:FileObject", "@id": title, "name": title, "contentUrl": title, "sha256": digest})
        files[-1]["encodingFormat"] = "application/jsonlines"
        fields += [
            _field(column, kind, {"fileObject": {"@id": title}, "extract": {"column": column}})
            for column, kind in columns.items()
        ]
        # The other way round, mlcroissant compares paths with text, which are never the same.
        fields[1]["references"] = fields[1]["source"]
        fields[1]["source"] = {**path, "transform": {"regex": "^(.*)$"}}
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "distribution": files,
        "recordSet": [{"@type": "cr:RecordSet", "@id": "records", "name": "records", "field": fields}],
    }


def _field(name: str, kind: str, source: dict[str, Any]) -> dict[str, Any]:
    return {"@type": "cr:Field", "@id": f"records/{name}", "name": name, "dataType": kind, "source": source}
