"""NumPy arrays as lists in lists: a column of Arrow, and a rule in the metadata of its schema that gives them back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_AXES, _MOST = 32, 2**31


class ArrayRule(NamedTuple):
    """Dtype and shape of the arrays in a column."""

    dtype: str
    shape: tuple[int | None, ...]  # None for an axis whose size differs between arrays

    def __str__(self) -> str:
        return f"an array of {self.dtype} with {len(self.shape)} axes"

    @property
    def type(self) -> Any:
        """Return the type of the column."""
        kind = pa.from_numpy_dtype(np.dtype(self.dtype))
        for _ in self.shape:
            kind = pa.list_(kind)
        return kind

    def fits(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether lists tell the shape: after an axis of size 0, all axes have a fixed size."""
        return 0 not in array.shape or None not in self.shape[array.shape.index(0) + 1 :]


def rule_of(array: np.ndarray[Any, Any]) -> ArrayRule:
    """Return the rule for one array; ValueError if lists do not keep it."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or not array.dtype.isnative:
        raise ValueError(f"is an array of {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError("is an array in Fortran's order")
    return ArrayRule(array.dtype.name, array.shape)


def read_rule(value: Any, kind: Any) -> ArrayRule:
    """Return the rule in metadata for a column; ValueError if it is malformed or does not fit the column's type."""
    try:
        rule = ArrayRule(str(value["dtype"]), tuple(value["shape"]))
        sizes = [size for size in rule.shape if size is not None]
        if len(rule.shape) <= _MOST_AXES and all(type(size) is int and 0 <= size < _MOST for size in sizes):
            for _ in rule.shape:
                kind = kind.value_type if types.is_list(kind) else None
            if kind == pa.from_numpy_dtype(np.dtype(rule.dtype)):
                return rule
    except (LookupError, TypeError, pa.ArrowException):
        pass
    raise ValueError(f"{value!r:.99} does not describe its arrays")


def to_lists(arrays: Sequence[np.ndarray[Any, Any] | None], rule: ArrayRule) -> Any:
    """Return a column with arrays; None becomes null."""
    missing = np.array([array is None for array in arrays])
    empty = np.zeros((0,) * len(rule.shape), rule.dtype)
    filled = [empty if array is None else array for array in arrays]
    column = pa.array(np.concatenate([array.reshape(-1) for array in filled]), mask=None if rule.shape else missing)
    for axis in reversed(range(len(rule.shape))):
        lists = [math.prod(array.shape[:axis]) for array in filled]
        sizes = np.repeat([array.shape[axis] for array in filled], lists)
        offsets = pa.array(np.concatenate(([0], sizes)).cumsum(), pa.int32())
        column = pa.ListArray.from_arrays(offsets, column, mask=None if axis else pa.array(missing))
    return column


def from_lists(column: Any, rule: ArrayRule) -> Iterator[np.ndarray[Any, Any] | None]:
    """Yield the arrays in a column; ValueError if one of them has not the shape of the rule."""
    for row in range(len(column)):
        values = column.slice(row, 1)
        if values.null_count:
            yield None
            continue
        shape: list[int] = []
        for size in rule.shape:
            found = {*pc.unique(pc.list_value_length(values)).to_pylist()} or {size}
            if len(found) > 1 or None in found or (size is not None and size not in found):
                raise ValueError(f"an array has not the shape {rule.shape}")
            shape += found
            values = values.flatten()
        if values.null_count:
            raise ValueError("an array has empty values")
        yield values.to_numpy(zero_copy_only=False).reshape(shape)
