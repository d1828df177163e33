"""Convert the values of a record to BSON types, and back; docs/format.md lists the types.

The functions that check a value raise FieldError.
"""

from __future__ import annotations

import functools
import io
import struct
from typing import Any

import numpy as np
from bson.binary import USER_DEFINED_SUBTYPE, Binary
from bson.int64 import Int64

from dbloader.errors import DamagedRecordError, FieldError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UINT32_MAX = 2**32 - 1  # the columns width and height are uint32
_MAX_DEPTH = 100  # MongoDB allows this many nested levels, including the document itself


def checked_str(key: str, value: object) -> str:
    """Return a str without lone surrogates, which UTF-8 cannot encode."""
    if not isinstance(value, str):
        raise FieldError(f"field {key!r} must be a str, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FieldError(f"field {key!r} is not valid Unicode: {value!r}") from error
    return str.__str__(value)  # turns a subclass, such as np.str_ or an enum, into a plain str


def checked_int(key: str, value: object, least: int = INT64_MIN, greatest: int = INT64_MAX) -> int:
    """Return an integer from ``least`` to ``greatest`` as an int."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise FieldError(f"field {key!r} must be an int, got {value!r}")
    number = int(value)
    if not least <= number <= greatest:
        raise FieldError(f"field {key!r} must be from {least} to {greatest}, got {number}")
    return number


def checked_size(key: str, value: object) -> list[Int64]:
    """Return a width and a height in pixels as a list for BSON."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise FieldError(f"field {key!r} must be (width, height), got {value!r}")
    return [Int64(checked_int(key, pixels, 0, UINT32_MAX)) for pixels in value]


def pack(key: str, value: Any, depth: int = 1) -> Any:
    """Return a value in the types that bson encodes; ``unpack`` reverses this."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)  # turns a subclass of float, such as np.float64, into a plain float
    if isinstance(value, str):
        return checked_str(key, value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)  # stored as a binary of subtype 0
    if isinstance(value, int):
        return checked_int(key, value)
    if isinstance(value, np.ndarray):
        return Binary(array_bytes(key, value), USER_DEFINED_SUBTYPE)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        return pack(key, value.item())
    if isinstance(value, (list, tuple, dict)) and depth == _MAX_DEPTH:
        raise FieldError(f"field {key.split('.')[0].split('[')[0]!r} has more than {_MAX_DEPTH - 1} nested levels")
    if isinstance(value, (list, tuple)):
        return [pack(f"{key}[{position}]", item, depth + 1) for position, item in enumerate(value)]
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str) or "\0" in name or name.startswith("$"):
                # BSON ends names with NUL, and decodes {"$ref": ...} as a reference to another document.
                raise FieldError(f"field {key!r} has a key that is not str, contains NUL or begins with '$': {name!r}")
            checked_str(key, name)
        return {name: pack(f"{key}.{name}", item, depth + 1) for name, item in value.items()}
    raise FieldError(
        f"field {key!r} has the type {type(value).__module__}.{type(value).__qualname__}; a record holds bytes, str, "
        "int, float, bool, None, numpy arrays, and lists and dicts of these"
    )


def unpack(value: Any) -> Any:
    """Return the value that ``pack`` packed."""
    if isinstance(value, Binary):
        return unpack_array(value).copy(order="K") if value.subtype == USER_DEFINED_SUBTYPE else bytes(value)
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if isinstance(value, dict):
        return {name: unpack(item) for name, item in value.items()}
    return int(value) if isinstance(value, Int64) else value


def array_bytes(key: str, array: np.ndarray[Any, Any]) -> bytes:
    """Return an array as the bytes of a .npy file (https://numpy.org/neps/nep-0001-npy-format.html)."""
    if isinstance(array, np.ma.MaskedArray):
        raise FieldError(f"field {key!r} is a masked array; store its data and its mask as two fields")
    if array.dtype.hasobject or not array.dtype.itemsize or not _is_kept(array.dtype):
        raise FieldError(f"field {key!r} is an array of the dtype {array.dtype}, which a .npy file cannot hold")
    file = io.BytesIO()
    try:
        np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)
    except ValueError:  # version 1 cannot store dtypes with long or non-Latin names; version=None would warn
        np.lib.format.write_array(file, array, version=(3, 0), allow_pickle=False)
    return file.getvalue()


def _is_kept(dtype: np.dtype[Any]) -> bool:
    """Return whether a .npy file can store a dtype. It cannot store overlapping fields, or some packages' dtypes."""
    try:
        return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype
    except (TypeError, ValueError):
        return False


def unpack_array(data: bytes | memoryview) -> np.ndarray[Any, Any]:
    """Return the array in a .npy file, possibly as a view of ``data``."""
    try:
        if data[6:8] != b"\x01\x00":  # in .npy versions 2 and 3, the header's length is a uint32, not a uint16
            array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False, max_header_size=len(data))
        else:
            begin = _HEADER.size + _HEADER.unpack_from(data)[1]
            shape, fortran_order, dtype = _read_header(bytes(data[:begin]))
            array = np.ndarray(shape, dtype, data, begin, order="F" if fortran_order else "C")
    except Exception as error:  # NumPy's header parser raises many types of errors, even MemoryError
        raise DamagedRecordError(f"one of its arrays cannot be read: {error}") from error
    if not array.dtype.itemsize:  # if elements have no bytes, a damaged header could claim any number of them
        raise DamagedRecordError(f"one of its arrays has the dtype {array.dtype}, whose elements have no bytes")
    return array


# A .npy file begins with its magic and version (8 bytes), and the length of the rest of the header.
_HEADER = struct.Struct("<8sH")


@functools.lru_cache(maxsize=1024)  # parsing a header takes 40 us, and a store has few different headers
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, whether the array is in Fortran order, and the dtype."""
    file = io.BytesIO(header)
    np.lib.format.read_magic(file)
    # By default, NumPy refuses headers of more than 10,000 bytes, but a dtype with many fields has such a header.
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=len(header))
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded, because loading them could run any code")
    if not dtype.itemsize or min(shape, default=0) < 0:  # NumPy would divide by an itemsize of 0
        raise ValueError(f"its header has the shape {shape} and the dtype {dtype}")
    return shape, fortran_order, dtype
