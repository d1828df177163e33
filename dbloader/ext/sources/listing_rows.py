"""Read the rows of a listing: CSV, TSV, JSON, JSON lines, or a text file that names images."""

from __future__ import annotations

import csv
import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from bson.json_util import object_hook

from dbloader._describe import counted, short_repr
from dbloader.errors import SourceError, SourceNotFoundError
from dbloader.ext.sources.listing_columns import path_columns
from dbloader.ext.sources.listing_text import NO_IMAGE, find_layout, read_text
from dbloader.sources.base import Problem, readable
from dbloader.sources.folder import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dbloader.ext.sources.listing_text import TextLayout

    Row = tuple[int, Any] | Problem


def read_rows(
    listing: Path, encoding: str | None = None, *, are_numbered: bool = False
) -> Iterator[tuple[int, dict[str, Any]] | Problem]:
    """Yield the number and columns of each row, or the reason why the row cannot be used.

    With ``are_numbered``, the values after the paths of a text file become the columns 2, 3 and so on.
    """
    extension = listing.suffix.lower()
    if extension not in _READERS:
        way = _WAYS.get(extension, "")
        raise SourceError(f"{readable(listing)}: a listing is one of {', '.join(_READERS)}, got {extension!r}{way}")
    read = _READERS[extension] if extension != ".txt" else partial(_read_txt, are_numbered=are_numbered)
    for row in read(listing, encoding):
        if not isinstance(row, Problem) and not isinstance(row[1], dict):
            where = f"{readable(listing)}, row {row[0]}"
            hint = _PANDAS * isinstance(row[1], list)
            raise SourceError(f"{where}: must be an object that has a path, got {short_repr(row[1], 50)}{hint}")
        yield row


def read_lines(listing: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (number, {"name": line}) for each line of a text file. Leave out empty lines."""
    for number, line in enumerate(_lines(listing), 1):
        if name := line.rstrip("\r\n"):
            yield number, {"name": name}


def is_text(listing: Path) -> bool:
    """Return whether a listing is a CSV, TSV or text file. All values in such files are text."""
    return listing.suffix.lower() in (".csv", ".tsv", ".txt")


def read_header(listing: Path, encoding: str | None = None) -> tuple[str, ...]:
    """Return the columns in the header of a CSV or TSV; () for an empty file or another kind of listing."""
    with suppress(csv.Error):  # reading the rows raises the error again, with the number of the row
        if listing.suffix.lower() in (".csv", ".tsv"):
            return tuple(next(filter(None, _split_lines(listing, encoding)), ()))
    return ()


def text_layout(listing: Path, encoding: str | None = None) -> TextLayout | None:
    """Return the layout of a text file; None if the file is empty."""

    def is_table(first: list[str], mark: str) -> bool:
        is_header = bool(path_columns(first))
        return is_header or (mark != "\t" and len(first) > 1 and bool(made_up_header(first, f"{where}, row 1")))

    where = readable(listing)
    return find_layout(lambda: _lines(listing, encoding), is_table, where)


def _split_lines(listing: Path, encoding: str | None, separator: str = "") -> Any:
    header, lines = next(_lines(listing, encoding), ""), _lines(listing, encoding)
    if said := re.fullmatch(r"sep=(.)\s*", header):  # Excel's own first line
        separator, lines = said[1], chain([next(lines)[:0]], lines)
        header = next(islice(_lines(listing, encoding), 1, None), "")
    usual = "\t,;|" if listing.suffix.lower() == ".tsv" else ",;\t|"  # some spreadsheets separate by ; in a .csv
    separator = separator or next((mark for mark in usual if mark in header), usual[0])
    first, *others = header.split(separator)
    # Roboflow writes a space after each comma. The space is not a part of a name or value.
    padded = bool(others) and all(name[:1] == " " and name.strip() for name in others) and first[:1] != " "
    return csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=padded)


def _read_txt(listing: Path, encoding: str | None, *, are_numbered: bool = False) -> Iterator[Row]:
    layout = text_layout(listing, encoding)
    if layout is None:
        raise SourceError(f"{readable(listing)}: {NO_IMAGE}")
    if layout.header:
        return _read_csv(listing, encoding, layout.header)
    layout = layout._replace(are_numbered=are_numbered and not layout.attributes)
    return read_text(listing, lambda: _lines(listing, encoding), layout)


def _read_csv(listing: Path, encoding: str | None, separator: str = "") -> Iterator[Row]:
    lines = _split_lines(listing, encoding, separator)
    header: list[str] = []
    number = 1
    try:
        for values in lines:
            if not header:
                where = f"{readable(listing)}, row {number}"
                header = made_up_header(values, where) or values  # empty if the line is empty
                _check_different([*filter(None, header)], where)  # empty names: spreadsheets may end lines with commas
                if header is values:
                    number = lines.line_num + 1
                    continue
            if len(values) == len(header):
                row = dict(zip(header, values, strict=True))
                row.pop("", None)  # pandas' index, or an empty last column
                yield number, row
            elif values:
                fields = counted(len(header), "field")
                yield Problem(f"row {number}", f"the header has {fields}, but this row has {len(values)}")
            number = lines.line_num + 1
    except csv.Error as error:
        why = str(error) + "; values of any length fit into a .jsonl" * ("limit" in str(error))
        if "new-line" in why:
            why = "its line ends are those of an old Mac: save it with those of Windows or Unix"
        raise SourceError(f"{readable(listing)}, row {number}: cannot be read: {why}") from error


def made_up_header(row: Sequence[str], where: str) -> list[str]:
    """Return names for the columns of a table without a header; [] if its first row is a header.

    Raises:
        SourceError: The first row names an image, but the meaning of the other values is unclear.
    """
    images = [value.lower().endswith(EXTENSIONS) for value in row]
    if not any(images):
        return []
    if sum(images) == 1 and len(row) <= 2:
        return ["path" if is_image else "label" for is_image in images]
    if images[:1] == [True] and len(row) == 6 and all(re.fullmatch(r"-?[0-9.]*", value) for value in row[1:5]):
        return ["path", "x1", "y1", "x2", "y2", "label"]  # as keras-retinanet and others write it
    has_box = sum(bool(re.fullmatch(r"-?[0-9.]+", value)) for value in row) >= 4
    such = "path,label,mask (and give --file-field mask if masks are image files)"
    such = "path,left,top,width,height,label or path,xmin,ymin,xmax,ymax,label" if has_box else such
    raise SourceError(f"{where}: names an image, and is no header: add a header such as {such}")


def _read_jsonl(listing: Path, encoding: str | None) -> Iterator[Row]:
    for number, line in enumerate(_lines(listing, encoding), 1):
        if line.strip():
            yield number, _parse(line, f"{readable(listing)}, row {number}")


def _read_json(listing: Path, encoding: str | None) -> Iterator[Row]:
    where = readable(listing)
    rows = _parse("".join(_lines(listing, encoding)), where)
    if isinstance(rows, dict) and all(name.lower().endswith(EXTENSIONS) for name in rows):
        rows = ({**(of if isinstance(of, dict) else {"label": of}), "path": name} for name, of in rows.items())
    elif isinstance(rows, dict) and (pairs := _pairs(rows)) is not None:
        rows = [{"path": path, "label": label} for path, label in pairs]
    elif isinstance(rows, dict) and (objects := _only_objects(rows)):
        rows = objects
    elif isinstance(rows, dict):
        lengths = {name: len(values) if isinstance(values, list) else None for name, values in rows.items()}
        if None in lengths.values() or len({*lengths.values()}) > 1:
            is_pandas = "data" in rows or all(isinstance(values, dict) for values in rows.values())
            got = f"the lengths are {short_repr(lengths)}{f'{_PANDAS}{EXPORT_COCO}' * is_pandas}"
            raise SourceError(f"{where}: all its values must be lists of the same length; {got}")
        columns = [name.removesuffix("_list") for name in rows]
        _check_different(columns, where)
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*rows.values(), strict=True))
    elif not isinstance(rows, list):
        raise SourceError(f"{where}: must be an object of lists or an array of objects, got {short_repr(rows, 50)}")
    yield from enumerate(rows, 1)


EXPORT_COCO = "; from a labeling tool, export COCO"


def _pairs(content: dict[str, Any]) -> list[tuple[str, Any]] | None:
    """Return the paths and labels in JSON of StyleGAN, FiftyOne or Food-101; None for other JSON, such as a table."""
    labels, names = content.get("labels"), content.get("classes")
    if content.keys() == {"labels"} and isinstance(labels, list):  # dataset.json of StyleGAN
        pairs = [pair for pair in labels if isinstance(pair, list) and [*map(type, pair)] == [str, int]]
        return [(path, label) for path, label in pairs] if len(pairs) == len(labels) else None
    if content.keys() == {"classes", "labels"} and isinstance(labels, dict) and isinstance(names, list):  # FiftyOne
        known = dict(enumerate(names))
        return [(path, known.get(label, label) if type(label) is int else label) for path, label in labels.items()]
    if not path_columns([*content]) and all(  # {"cat": ["cat/0", "cat/1"]} in Food-101
        isinstance(paths, list) and all(isinstance(path, str) and path.startswith(f"{name}/") for path in paths)
        for name, paths in content.items()
    ):
        return [(path, name) for name, paths in content.items() for path in paths]
    return None


_PANDAS = "; with pandas, use to_json('FILE.json', orient='records') or to_csv('FILE.csv', index=False)"
_READERS: dict[str, Callable[[Path, str | None], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".txt": _read_txt,
}
_WAYS = {  # what to do with a file of another kind
    "": ": rename it",
    ".parquet": "; with pandas, read_parquet and to_csv convert it",
    ".xml": "; for VOC, give the folder of .xml files; from CVAT, export COCO",
    ".lst": "; for MXNet, write a CSV with path,label; else rename it to .txt",
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "; in the spreadsheet program, save it as CSV UTF-8"),
}


def _only_objects(values: dict[str, Any]) -> list[Any]:
    """Return the only list in an object, such as {"version": 1, "data": [{…}]}; [] unless the list has only objects."""
    lists = [value for value in values.values() if isinstance(value, list)]
    return lists[0] if len(lists) == 1 and all(isinstance(item, dict) for item in lists[0]) else []


def _check_different(columns: list[str], where: str) -> None:
    if len({*columns}) < len(columns):
        names = ", ".join(map(repr, columns))
        raise SourceError(f"{where}: two of the columns {names} have the same name; rename or drop one")


def _lines(listing: Path, encoding: str | None = None) -> Iterator[str]:
    """Yield the lines as text. Each line is decoded separately, because an error must name the row.

    UTF-16 and UTF-32 are decoded as a whole, because the byte of a newline may be a part of another character.
    """
    try:
        file = listing.open("rb")
    except OSError as error:
        kind = SourceNotFoundError if isinstance(error, FileNotFoundError) else SourceError
        raise kind(f"{readable(listing)}: the listing cannot be read: {error.strerror}") from error
    if encoding is None and file.peek(2)[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):  # as Excel's "Unicode text"
        encoding = "utf-16"
    if encoding is not None and len("\n".encode(encoding)) > 1:
        with file, TextIOWrapper(file, encoding, newline="") as text:
            try:
                yield from text
            except UnicodeError as error:
                raise SourceError(f"{readable(listing)}: is not {encoding} (--encoding): {error}") from error
        return
    with file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode(encoding or ("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                name = encoding or "UTF-8"
                reason = f"is not {name} ({error.reason}); save the listing as UTF-8, or give its encoding (--encoding)"
                raise SourceError(f"{readable(listing)}, row {number}: {reason}") from error


def _parse(text: str, where: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise SourceError(f"{where}: is not JSON: {error}") from error


def _extended(value: dict[str, Any]) -> Any:
    """Decode MongoDB's Extended JSON for bytes, an array or a float. Return any other object unchanged.

    No key in a record begins with a dollar sign. Such a key therefore shows Extended JSON.
    """
    if value.keys() in ({"$binary"}, {"$numberDouble"}):
        return object_hook(value)
    return value


# One decoder for all rows: json.loads would make a decoder for each row, and take three times as long.
_DECODER = json.JSONDecoder(object_hook=_extended)
