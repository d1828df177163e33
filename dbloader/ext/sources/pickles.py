"""Read pickled values in LMDB files of other programs.

A pickle is a program. This module allows only instructions that make plain values. Stand-ins replace numpy's functions,
and only store their arguments.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dbloader._describe import short_repr
from dbloader.records.record import checked_field_name

if TYPE_CHECKING:
    from collections.abc import Sequence

# A pickle of an image and a label has 10 to 60 instructions. The limit refuses a pickle with endless nesting.
_MAX_INSTRUCTIONS = 1000

# Possible keys of the image and of the label in a dict. The first key that the dict has is used.
_IMAGES, _LABELS = ("image", "img", "data", "jpg", "jpeg", "png"), ("label", "class", "target", "cls")

_ALLOWED = re.compile(
    "PROTO|FRAME|STOP|MARK|NONE|NEW(TRUE|FALSE)|BININT[12]?|LONG1|BINFLOAT|(SHORT_)?BINUNICODE|(SHORT_)?BINBYTES|BINBYTES8|"
    "BYTEARRAY8|(EMPTY_)?DICT|SETITEMS?|(EMPTY_)?TUPLE|TUPLE[123]|EMPTY_LIST|APPENDS?|(STACK_)?GLOBAL|REDUCE|BUILD|MEMOIZE|(LONG_)?BIN(PUT|GET)"
)
# Exceptions of pickle and pickletools for wrong data.
_WRONG = (
    *(pickle.UnpicklingError, ValueError, TypeError, LookupError, AttributeError),
    *(EOFError, OverflowError, MemoryError, RecursionError),
)


def unpickled(data: bytes) -> Any:
    """Return the value of a pickle. Raise ValueError for anything but plain values and uint8 arrays."""
    try:
        used = set()
        for number, (code, argument, _) in enumerate(pickletools.genops(data)):
            used.add(code.name)
            if not _ALLOWED.fullmatch(code.name):
                raise ValueError(f"it has the instruction {code.name}, which plain values and arrays do not need")
            if number >= _MAX_INSTRUCTIONS or ("PUT" in code.name and int(argument or 0) >= _MAX_INSTRUCTIONS):
                raise ValueError(f"it has more than {_MAX_INSTRUCTIONS:,} instructions")
        # BUILD with a dict could set attributes of a stand-in. This would change how the next pickle is read.
        if "BUILD" in used and {"DICT", "EMPTY_DICT"} & used:
            raise ValueError("it has both a dict and an array")
        value = _Unpickler(data).load()
        if isinstance(value, (tuple, list)):
            return tuple(part.array() if isinstance(part, _Array) else part for part in value)
        return value.array() if isinstance(value, _Array) else value
    except _WRONG as error:
        way = "load it yourself, and hand its image to dbloader.write_store"
        raise ValueError(f"its pickle is refused: {error}; {way}") from error


class _Type:
    """Stands in for numpy's dtype."""

    code, order = "", "|"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]


class _Array:
    """Stands in for numpy's ndarray."""

    axes: Any = None
    shape: Any
    kind: Any
    fortran: Any
    data: Any

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.kind, self.fortran, self.data = state

    def array(self) -> np.ndarray[Any, Any]:
        if self.kind.code != "u1":
            raise ValueError(f"its array is of type {short_repr(self.kind.code)}, not uint8")
        pixels = np.frombuffer(self.data, np.uint8).reshape(self.shape, order="F" if self.fortran else "C")
        return pixels if self.axes is None else pixels.transpose(self.axes)


class _Unpickler(pickle.Unpickler):  # noqa: TID251 - runs only allowed instructions, and loads no class or function
    """Calls its own methods instead of the functions that a pickle names. A pickle cannot change these methods."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._left = len(data)  # number of bytes that `_encode` may still make

    def find_class(self, module: str, name: str) -> Any:
        known: dict[str, Any] = {
            "numpy.dtype": self._dtype,
            "numpy.ndarray": None,  # an argument of _reconstruct
            "numpy.core.multiarray._reconstruct": self._reconstruct,
            "numpy.core.multiarray.scalar": self._scalar,
            "numpy.core.numeric._frombuffer": self._frombuffer,
            "_codecs.encode": self._encode,  # in protocol 2, bytes are a call of this function
        }
        wanted = f"{module}.{name}"
        try:
            return known[wanted.replace("numpy._core.", "numpy.core.", 1)]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {short_repr(wanted)}, which may run any code") from None

    def _dtype(self, code: Any, *_: object) -> _Type:
        made = _Type()
        if not isinstance(code, str):  # the message omits the value: the repr of a nested value could be endless
            raise pickle.UnpicklingError("a dtype's code is not text")
        made.code = code
        return made

    def _reconstruct(self, *_: object) -> _Array:
        return _Array()

    def _frombuffer(self, data: Any, kind: Any, shape: Any, order: Any, axes: Any = None) -> _Array:
        made = _Array()
        made.axes = axes
        made.__setstate__((1, shape, kind, order == "F", data))
        return made

    def _scalar(self, kind: Any, data: Any) -> int:
        if kind.code[:1] not in ("i", "u"):
            raise ValueError(f"its number is of type {short_repr(kind.code)}, not an integer")
        if len(data) > 8:
            raise ValueError(f"its integer has {len(data)} bytes, more than 8")
        return int.from_bytes(data, "big" if kind.order == ">" else "little", signed=kind.code[:1] == "i")

    def _encode(self, text: Any, _: object) -> bytes:
        self._left -= len(text)
        if self._left < 0:
            raise ValueError("it would make more bytes than it contains")
        return bytes(text.encode("latin1"))


def image_of(value: Any) -> bytes:
    """Return the image file in an unpickled value. An array of pixels becomes a PNG."""
    if isinstance(value, dict):
        value = value.get(_first_of(_IMAGES, value))
    if isinstance(value, tuple) and value:
        value = value[0]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if not isinstance(value, np.ndarray):
        raise ValueError(f"a {type(value).__name__} is in place of the image")  # noqa: TRY004
    if value.ndim == 1 or (value.ndim == 2 and 1 in value.shape):  # an encoded file, as cv2.imencode returns it
        return value.tobytes()
    if value.ndim == 3 and value.shape[2] not in (1, 3, 4) and value.shape[0] in (1, 3, 4):
        value = value.transpose(1, 2, 0)
    return _png(value)


def label_of(value: Any) -> tuple[int | None, dict[str, Any]]:
    """Return (label, fields) of an unpickled value; ValueError for a tuple that is not an image and a label.

    The values of a dict become fields, except the image and the label.
    """
    if isinstance(value, dict):
        known = _first_of(_IMAGES, value), _first_of(_LABELS, value)
        fields = {checked_field_name(name): part for name, part in value.items() if name not in known}
        number, text = label_of((b"", value.get(known[1] or "")))
        return number, {**fields, **text}
    if not isinstance(value, tuple) or len(value) < 2:
        return None, {}
    label = value[1]
    if len(value) > 2 or not isinstance(label, (int, str, type(None))):
        raise ValueError(f"it is not an image and a label, but {', '.join(type(part).__name__ for part in value[:9])}")
    return (None, {"text": label}) if isinstance(label, str) else (label, {})


def _first_of(names: Sequence[str], value: dict[Any, Any]) -> str | None:
    return next((name for name in names if name in value), None)


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not pixels.size or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))):
        raise ValueError(f"an array of shape {pixels.shape} is not an image")
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", compress_level=1)
    return file.getvalue()
