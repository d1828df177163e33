"""Find the columns of a listing that have the paths of the images, the labels, or numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dbloader.errors import FieldError
from dbloader.ext.sources.class_folders import is_split
from dbloader.records.record import checked_field_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

PATH_COLUMNS = ("path", "image", "file", "filename")
LABEL_COLUMNS = ("label", "class", "target")
ALL = "*"  # the value of `Listing.label` that makes each remaining column a class

# Further names of the column with the images' paths, as `plain` returns them.
_PATHS = {
    *PATH_COLUMNS, "filepath", "imagepath", "imgpath", "imagefile", "imgfile", "imagefilename", "imagename", "imgname",
    "img", "images",
}  # fmt: skip
_IDS = {
    "id",
    "idcode",
    "imageid",
    "imageindex",
    "imgid",
    "fileid",
    "name",
    "uuid",
}  # a column with such a name has paths only if its values name files
# Names of columns with texts about an image, such as captions, as `plain` returns them.
_TEXTS = {
    "text", "texts", "txt", "caption", "captions", "sentence", "sentences", "description", "prompt", "comment", "words",
    "transcription", "conversations", "messages",
}  # fmt: skip
CHECKS = {"verified", "checked"}  # words in the names of columns that are about the row, not the image
# Columns about an image file, not about its content.
_FACTS = {
    "split", "subset", "partition", "fold", "usage", "width", "height", "size", "bytes", "date", "time", "timestamp",
    "url", "license", "seed", "patient", "patientid", "subjectid", "question",
}  # fmt: skip
_CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("x1", "y1", "x2", "y2"),
    ("x0", "y0", "x1", "y1"),
    ("left", "top", "right", "bottom"),
)
_SIDES = (  # the left upper corner, width and height
    ("left", "top", "width", "height"),
    ("xmin", "ymin", "width", "height"),
    ("x1", "y1", "width", "height"),
    ("x", "y", "w", "h"),
    ("x", "y", "width", "height"),
)
_LIKE_BOXES = {
    "box", "boundingbox", "xcenter", "ycenter", "centerx", "centery", "xc", "yc", "cx", "cy",
    "regionshapeattributes",  # VGG Image Annotator
}  # fmt: skip

INTEGER = re.compile(r"0|-?[1-9][0-9]*")
# Floats as Python, C and pandas write them. 1e5 may be a part of a hash: an exponent needs a sign or a decimal point.
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)?\.[0-9]+(?:[eE][+-]?[0-9]{1,3})?|[0-9]e[+-][0-9]{2,3}|inf)|nan|NaN")
MISSING = {"NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None"}  # what other programs write for a missing value
_UNCLEAR = re.compile(r"[-?]|-?[0-9]+\.|-?[0-9]{1,3}(,[0-9]{3})+")  # numbers or missing values, if others are numbers
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_EXACT = 2**53  # pandas and other programs may have rounded larger integers to floats


def plain(column: str) -> str:
    """Return the name of a column in lower case, without spaces, - and _."""
    return re.sub(r"[\s_-]", "", column).lower()


def path_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that may name the images. If there are several, all are equally likely."""
    for known in ({*PATH_COLUMNS}.__contains__, lambda column: plain(column) in _PATHS, lambda c: plain(c) in _IDS):
        if found := [column for column in columns if known(column)]:
            return found
    return []


def is_certain(column: str) -> bool:
    """Return whether the name of a column alone shows that it has the paths of the images."""
    return plain(column) in _PATHS


def label_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that may have the labels."""
    return [column for column in columns if column in LABEL_COLUMNS] or [
        column for column in columns if plain(column) in (*LABEL_COLUMNS, "predictionstring")
    ]


def are_texts(columns: Collection[str]) -> bool:
    """Return whether the columns have only texts about the images, and facts about the texts and files."""
    names = {*map(plain, columns)}
    texts = tuple(names & _TEXTS)
    return bool(texts) and all(name in _IDS | _FACTS or name.startswith(texts) for name in names)


def may_be_label(column: str) -> bool:
    """Return whether the only column besides the images may have labels."""
    return not (plain(column) in _TEXTS | _FACTS or is_about_rows([column]) or box_like_columns([column]))


def is_about_rows(columns: Sequence[str], words: Collection[str] = CHECKS) -> bool:
    """Return whether one of the columns is about the row, such as is_train or verified, not about the image."""
    found = re.split(r"[\W_]+", " ".join(columns).lower())
    return any(map(is_split, found)) or not {*words}.isdisjoint(found)


def box_columns(columns: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the four columns of a box, () without them, and whether the last two are its width and height."""
    by_name = {re.sub(r"[\W_]", "", column).lower(): column for column in columns}
    by_name |= {name.removeprefix("bbox"): column for name, column in by_name.items() if name.startswith("bbox")}
    found = next((names for names in (*_CORNERS, *_SIDES) if by_name.keys() >= {*names}), ())
    return tuple(map(by_name.__getitem__, found)), found in _SIDES


def size_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns with the width and height of the image of a box; () without them."""
    by_name = {plain(column): column for column in columns}
    known = (("width", "height"), ("imagewidth", "imageheight"))
    return next((tuple(map(by_name.__getitem__, names)) for names in known if by_name.keys() >= {*names}), ())


def box_like_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that seem to have boxes in a form that is not read, such as bbox or x_center."""
    by_name = {plain(column): column for column in columns}
    return [column for name, column in by_name.items() if name.startswith("bbox") or name in _LIKE_BOXES]


def field_name(column: str, others: Collection[str]) -> str:
    """Return the name of a column's field: the column's name, or a similar one if no field may have that name."""
    try:
        return checked_field_name(column)
    except FieldError:
        name = column.translate(dict.fromkeys(map(ord, ".$\0"), "_")) + "_"
        while name in others:
            name += "_"
        return checked_field_name(name)


class ColumnTypes:
    """Finds which columns of a CSV hold only integers, only numbers, or only booleans. Empty values do not count.

    A column with "007", "+3", "1e5", "3,5", "N/A" or an integer beyond 2**53 stays text. As numbers, they would change.
    """

    def __init__(self, kept: Collection[str]) -> None:
        self._types: dict[str, Callable[[str], Any]] = dict.fromkeys(kept, str)

    def add(self, values: Mapping[str, Any]) -> None:
        """Take the values of a row into account."""
        types = self._types
        for name, value in values.items():
            known = types.get(name)
            if known is str or value == "":
                continue
            new = _type_of(value)
            if known is not None and known is not new:
                both = {known, new}
                new = float if both == {int, float} else _almost if both <= {int, float, _almost, _unclear} else str
            types[name] = new

    def found(self) -> dict[str, Callable[[str], Any]]:
        """Return {column: function from text to value} for each column that is not text."""
        return {name: of for name, of in self._types.items() if of not in (str, _almost, _unclear)}

    def almost_numbers(self) -> list[str]:
        """Return the columns that stay text, although they have only missing values and numbers such as 3,5 or 5."""
        return [name for name, of in self._types.items() if of is _almost]


def _type_of(value: object) -> Callable[[str], Any]:
    if not isinstance(value, str):
        return str
    if INTEGER.fullmatch(value):
        return int if abs(int(value)) <= _EXACT else str
    if is_float(value):
        return float
    if value in MISSING or _UNCLEAR.fullmatch(value):
        return _unclear
    if re.fullmatch(r"-?[0-9]+,[0-9]+|-?[0-9]{1,3}(,[0-9]{3})+\.[0-9]+", value):  # decimal comma, or 1,000.5
        return _almost
    if value != value.strip(" ") and _type_of(value.strip(" ")) in (int, float):
        return _almost
    return boolean if value in _BOOLEANS else str


def _almost(text: str) -> str:
    return text


def _unclear(text: str) -> str:
    return text


def boolean(text: str) -> bool:
    """Return the boolean that a text means."""
    return _BOOLEANS[text]


def is_float(text: str) -> bool:
    """Return whether a text is a number with a fraction or an exponent."""
    return _FLOAT.fullmatch(text) is not None
