"""Records are decoded as they were encoded, and values that cannot be stored are refused."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import bson
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbloader import Record
from dbloader.errors import FieldError
from dbloader.records.decode import decode, decode_encoded, decode_values
from dbloader.records.record import RESERVED_FIELDS, STANDARD_FIELDS, checked_field_name, encode
from tests.support.samples import same
from tests.support.values import ARRAYS, FIELD_NAMES, TEXT, UINT32, VALUES

HEAD, TAIL, SALT = 4 + 5 + 8, 7 + 8 + 1, 0x9E3779B9


def stored(record: Record, index: int = 0) -> Record:
    """Encode and decode a record."""
    return decode(encode(record).document(index, 0), index, 0)


def stored_field(value: Any) -> Any:
    return stored(Record(fields={"field": value})).fields["field"]


def plain(record: Record) -> Any:
    return [getattr(record, name) for name in (*STANDARD_FIELDS, "index", "fields")]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    name=st.none() | TEXT.filter(bool),
    label=st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
    image=st.none() | st.binary(max_size=200) | ARRAYS,
    width=st.none() | UINT32,
    height=st.none() | UINT32,
    image_format=st.none() | TEXT,
    damaged=st.none() | TEXT,
    resized_from=st.none() | st.tuples(UINT32, UINT32),
    fields=st.dictionaries(FIELD_NAMES, VALUES, max_size=4),
    index=st.integers(0, 2**63 - 1),
)
def test_decoded_record_equals_the_encoded_one(
    name: Any, label: Any, image: Any, width: Any, height: Any, image_format: Any, damaged: Any, resized_from: Any,
    fields: Any, index: int,
) -> None:  # fmt: skip
    record = Record(name, label, image, width, height, image_format, damaged, resized_from, fields, index)
    written = encode(record)
    assert written[2:6] == (name, label, width, height)
    document = written.document(index, SALT)
    for back in (decode(document, index, SALT), decode_values(bson.decode(document), index, SALT)):
        assert same(plain(back), plain(record))
        assert list(back.fields) == list(fields)
    again = decode_encoded(document, index, SALT)
    assert again[1:] == written[1:]
    assert again.document(5, SALT) == written.document(5, SALT)


@pytest.mark.parametrize(
    "value",
    [
        -(2**63), 2**63 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 0, -0.0, math.inf, -math.inf, math.nan, 5e-324,
        True, False, None, "", "\0", "a\0b", "日本 🐈", b"", b"\0", [], {}, [None], {"": 1}, {"a.b": {"c$": 1}},
        [[], {}, [[b""]], {"": {"b.c": None}}],
    ],
)  # fmt: skip
def test_extreme_values_are_unchanged(value: Any) -> None:
    assert same(stored_field(value), value)


class Color(enum.IntEnum):
    RED = 3


class Split(enum.StrEnum):
    VAL = "val"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int8(-3), -3),
        (np.uint64(2**63 - 1), 2**63 - 1),
        (np.float16(0.5), 0.5),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(math.inf), math.inf),
        (np.bool_(True), True),
        (np.str_("ü"), "ü"),
        (Color.RED, 3),
        (Split.VAL, "val"),
        ([np.int64(1), {"a": np.float64(2)}], [1, {"a": 2.0}]),
        ((1, (2, 3), [()]), [1, [2, 3], [[]]]),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"xaxb")[1::2], b"ab"),
        (np.bytes_(b"ab"), b"ab"),
    ],
)
def test_numpy_and_enum_values_become_python_values(value: Any, expected: Any) -> None:
    assert same(stored_field(value), expected)
    assert encode(Record(fields={"x": value})) == encode(
        Record(fields={"x": expected})
    )  # the value for the column, too
    if isinstance(expected, bytes):
        assert same(stored(Record(image=value)).image, expected)


def test_numpy_integers_are_accepted_as_labels_and_sizes() -> None:
    record = Record(label=np.int16(3), width=np.uint8(4), height=np.int64(5))  # type: ignore[arg-type]
    record.resized_from = (np.int32(6), np.int32(7))  # type: ignore[assignment]
    back = stored(record)
    assert (back.label, back.width, back.height, back.resized_from) == (3, 4, 5, (6, 7))
    assert back.resized_from is not None
    assert {type(value) for value in (back.label, back.width, back.height, *back.resized_from)} == {int}


OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]})


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=">i2").reshape(2, 3, 4),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(20)[::-3],
        np.array(5),
        np.array(b"x"),
        np.zeros((0, 3)),
        np.zeros((2, 0), "U3"),
        np.array(["2020-01-01", "NaT"], "M8[D]"),
        np.zeros(2, [("a", "<f4"), ("b", ">i2", (3,)), ("c", [("d", "S3")])]),
        np.zeros(2, np.dtype([("a", "i1"), ("b", "<i8")], align=True)),
        np.zeros(1, [(f"field {number}", "f4") for number in range(1000)]),
        np.zeros(2, [("Größe", "<f4"), ("日本", "<i8", (2,)), (("title", "name"), "S3")]),
        np.array([1.5, math.nan], np.longdouble),
        np.array([True, False]),
    ],
    ids=lambda array: f"{str(array.dtype)[:20]}{array.shape}",
)
def test_arrays_keep_dtype_and_shape_and_own_their_memory(array: np.ndarray[Any, Any]) -> None:
    for back in (stored_field(array), stored(Record(image=array)).image):
        assert isinstance(back, np.ndarray)
        assert same(back, array)
        back[...] = back.copy()  # the array is writable
        root = back
        while isinstance(root.base, np.ndarray):
            root = root.base
        assert root.base is None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({1, 2}, "builtins.set"),
        (np.complex64(1), "numpy.complex64"),
        (np.longdouble(1), f"numpy.{np.longdouble.__name__}"),
        (np.datetime64("2020-01-01T00:00:00", "ns"), "numpy.datetime64"),
        (enum.Enum("Shade", "DARK").DARK, "tests.records.test_record.Shade"),  # type: ignore[attr-defined]
    ],
)
def test_error_about_a_value_of_unknown_type_names_its_field(value: Any, kind: str) -> None:
    for fields, path in (
        ({"a": 1, "what": value}, "what"),
        ({"what": [0, [value]]}, r"what\[1\]\[0\]"),
        ({"what": {"in": {"side": value}}}, r"what\.in\.side"),
    ):
        with pytest.raises(FieldError, match=rf"^field '{path}' has the type {kind}; a record holds bytes, str, int"):
            encode(Record(fields=fields))


def test_array_that_an_npy_file_cannot_store_is_refused() -> None:
    # A .npy file would return the dtype of another package as raw bytes.
    rational = pytest.importorskip("numpy._core._rational_tests").rational
    arrays = [np.zeros(2, dtype) for dtype in ("O", [("a", "O")], "V0", OVERLAPPING, rational)]
    for array in (np.ma.masked_array([1, 2], [True, False]), *arrays):
        for record in (Record(fields={"mask": array}), Record(image=array)):
            with pytest.raises(FieldError, match=r"^field '(mask|image)' is (an array of the dtype |a masked)"):
                encode(record)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fields": {"a": [0, 2**63]}}, rf"'a\[1\]' must be from -{2**63} to {2**63 - 1}, got {2**63}$"),
        ({"fields": {"a": np.uint64(2**63)}}, f"'a' must be from -{2**63} to {2**63 - 1}, got {2**63}$"),
        *(({"label": n}, f"'label' must be from -{2**63 - 1} to ") for n in (2**63, -(2**63))),
        *(({"width": n}, f"'width' must be from 0 to 4294967295, got {n}$") for n in (-1, 2**32)),
        *(({"label": value}, "'label' must be an int, got ") for value in (True, 1.0, "1", np.float32(1), [1])),
        ({"height": True}, "'height' must be an int, got "),
        *(({text: b"a"}, f"'{text}' must be a str, got ") for text in ("name", "format", "damaged")),
        ({"name": "a\udcff"}, "'name' is not valid Unicode: "),
        ({"fields": {"a": {"b": ["\udcff"]}}}, r"'a\.b\[0\]' is not valid Unicode: '\\udcff'$"),
        ({"fields": {"a": {"\udcff": 1}}}, r"'a' is not valid Unicode: '\\udcff'$"),
        ({"name": ""}, r"'name' may not be empty; leave it out \(None\) instead$"),
        ({"image": "a"}, "'image' must be the bytes of an image file or an array, got "),
        *(({"resized_from": value}, r"'resized_from' must be \(width, height\), got ") for value in (5, (1,), "12")),
        ({"resized_from": (1, -1)}, "'resized_from' must be from 0 to 4294967295, got "),
        ({"resized_from": (1.5, 1)}, "'resized_from' must be an int, got "),
        # PyMongo would return {"$ref": ..., "$id": ...} as a DBRef.
        *(
            ({"fields": {"a": [{key: 1}]}}, r"'a\[0\]' has a key that is not str, contains NUL or begins with '\$': ")
            for key in (1, b"a", "$ref", "a\0b")
        ),
    ],
    ids=str,
)
def test_value_of_wrong_type_or_range_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError, match=f"^field {message}"):
        encode(Record(**values))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *(
            (name, "^a field's name may not be empty, contain")
            for name in ("", ".", "a.b", "a.", "$a", "$", "a\0", "\0")
        ),
        *((name, f"^'{name}' is a reserved field; give your field") for name in sorted(RESERVED_FIELDS)),
        *((name, "^a field's name must be a str, got ") for name in (1, None, b"a", ("a",))),
        ("\udcff", r"is not valid Unicode: '\\udcff'$"),
    ],
)
def test_invalid_or_reserved_field_name_is_refused(name: Any, message: str) -> None:
    assert {*STANDARD_FIELDS, "_id", "index", "crc32", "gridfs"} == RESERVED_FIELDS
    for use in (checked_field_name, lambda name: encode(Record(fields={name: 1}))):
        with pytest.raises(FieldError, match=message):
            use(name)


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"in": value}, lambda value: (value, 1)])
def test_field_may_be_nested_99_levels_deep(wrap: Callable[[Any], Any]) -> None:
    value: Any = 1
    for _ in range(99):
        value = wrap(value)
    assert stored_field(value) == json.loads(json.dumps(value))
    for deeper in (1, 2, 2000):
        for _ in range(deeper):
            value = wrap(value)
        with pytest.raises(FieldError, match=r"^field 'a' has more than 99 nested levels$"):
            encode(Record(fields={"a": value}))
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(FieldError, match=r"^field 'a' has more than 99 nested levels$"):
        encode(Record(fields={"a": itself}))


def test_record_beyond_the_size_of_a_document_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(name="a", image=bytes(100), fields={"x": "y"})
    size = len(encode(record).document(0, 0))
    monkeypatch.setattr("dbloader.records.record.MAX_DOCUMENT", size)
    assert len(encode(record).document(0, 0)) == size
    monkeypatch.setattr("dbloader.records.record.MAX_DOCUMENT", size - 1)
    with pytest.raises(FieldError, match=rf"^record 'a' has {size} bytes; a document has at most {size - 1}$"):
        encode(record)
    monkeypatch.setattr("dbloader.records.record.MAX_DOCUMENT", 99)
    with pytest.raises(FieldError, match=r"^field 'image' has 100 bytes; a document has at most 99$"):
        encode(record)
    monkeypatch.setattr("dbloader.records.record.bson.encode", Mock(side_effect=ValueError("would overflow")))
    with pytest.raises(FieldError, match=r"^record 'a' cannot be stored: would overflow$"):
        encode(Record(name="a"))
