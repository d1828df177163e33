"""Find the records that match a query, in the columns of the store."""

from __future__ import annotations

import fnmatch
import operator
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import listed, short_repr
from dbloader.ext.queries.columns import Columns, blocks
from dbloader.ext.queries.parse import EVENTS, Condition, Group, own_form, parse, query_error
from dbloader.records.columns import CHUNK
from dbloader.records.field_columns import PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from dbloader.stores.base import Store

    Array = np.ndarray[Any, Any]

_COMPARE = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip


def find_matching(store: Store, query: str, booleans: Collection[str] = ()) -> Any:
    """Return the indices of the records that match a query. See ``select``.

    Args:
        store: The store.
        query: The query.
        booleans: Names of boolean fields that other stores have, if several stores get the same query. With "checked"
            in ``booleans``, the query ``checked`` means the field "checked", and a store without this field raises an
            error. Otherwise such a store would be searched for records with "checked" in their names.

    Raises:
        OptionError: The query is wrong, or contains a class, event or field that the store does not have.
        TypeError: The query is not a str.
    """
    if not isinstance(query, str):
        raise TypeError(f"where must be a query, such as 'score>0.5', got {short_repr(query)}")
    return select(Columns(store), query, booleans)


def select(columns: Columns, query: str, booleans: Collection[str] = ()) -> Any:
    """Return the indices of the records that match a query, ascending.

    The result is a range if all records match, otherwise an array of uint32 or int64, shape (records,).

    Raises:
        OptionError: The query is wrong, or contains a class, event or field that the store does not have.
    """
    manifest = columns.store.manifest
    length = manifest.length
    kinds = dict.fromkeys(booleans, "bool") | columns.kinds
    group = parse(query, kinds, manifest.fields.keys() - manifest.columns.keys())
    keep = _holds(columns, group, np.ones(length, bool)) if group.parts else np.ones(length, bool)
    if keep.all():
        return range(length)
    indices = np.empty(np.count_nonzero(keep), np.promote_types(np.uint32, np.min_scalar_type(length)))
    count = 0
    for part in blocks(length):
        found = np.flatnonzero(keep[part])
        indices[count : count + len(found)] = found + part.start
        count += len(found)
    return indices


def _holds(columns: Columns, part: Condition | Group, within: Array) -> Array:
    """Return which records match: bool, shape (records,). Values outside the mask ``within`` may be wrong."""
    if isinstance(part, Condition):
        return _compare(columns, part, within)
    if part.operator == "not":
        return ~_holds(columns, part.parts[0], within)
    if part.operator == "or":
        found = np.zeros_like(within)
        for one in part.parts:
            found |= _holds(columns, one, within)
        return found
    keep = within.copy()
    for one in sorted(part.parts, key=_is_slow):
        keep &= _holds(columns, one, keep)
    return keep


def _is_slow(part: Condition | Group) -> bool:
    """Return whether a part of a query may read names or texts. Slow parts are checked last, on fewer records."""
    return isinstance(part, Group) or part.key == "name" or isinstance(part.value, str)


def _compare(columns: Columns, condition: Condition, within: Array) -> Array:
    key, sign, value = condition.key, condition.sign, condition.value
    holds: Array = np.zeros_like(within)
    if key == "name" or (key.startswith(PREFIX) and isinstance(value, str)):
        _match_texts(columns, condition, within, holds)
    elif key == "event":
        holds[_indices_with(columns, condition)] = True
    elif key == "index" and sign == ":":
        for indices in value:
            holds[indices.start : indices.stop] = True
    elif sign == ":":  # the key is "class" or "label"
        for label in _labels_of(columns, condition) if key == "class" else [value]:
            labels, known = columns.known("label", slice(None))
            holds |= ~known if label is None else known & (labels == label)
    elif key == "index":
        holds[:] = _COMPARE[sign](np.arange(len(holds)), value)
    else:
        for part in blocks(len(holds)):
            values, known = columns.known(key, part)
            holds[part] = known & _COMPARE[sign](values, value)
    return holds


def _match_texts(columns: Columns, condition: Condition, within: Array, holds: Array) -> None:
    """Set the mask ``holds`` for records whose name or text fulfils a condition.

    The value of a condition on names is a part of the name, or a pattern with ``*`` or ``?``. ``~`` ignores the case.
    """
    key, sign, wanted = condition.key, condition.sign, condition.value
    part = (wanted.casefold() if sign == "~" else wanted).encode("utf-8", "surrogatepass")
    is_pattern = key == "name" and ("*" in wanted or "?" in wanted)
    pattern = re.compile(fnmatch.translate(wanted.replace("[", "[[]")))
    for number in range(-(-len(holds) // CHUNK)):
        here = slice(number * CHUNK, (number + 1) * CHUNK)
        if not within[here].any():
            continue
        block = columns.block(key, number)
        first, last = block.offsets[[0, -1]].tolist()
        data, offsets = block.data[first:last].tobytes(), block.offsets - first
        if is_pattern:
            holds[here] = [pattern.match(name.decode(errors="replace")) is not None for name in _cut(data, offsets)]
            continue
        if key == "name":
            holds[here] = _find(data, offsets, part)
            continue
        known = np.diff(offsets) > 0
        if sign == "~":
            holds[here] = known & _find(data.lower(), offsets, part)
            if not data.isascii():  # bytes.lower() changes only ASCII letters, so use casefold() for the other texts
                for at, text in enumerate(_cut(data, offsets), here.start):
                    holds[at] = holds[at] if text.isascii() else part in text.decode().casefold().encode()
        else:
            equal = np.array([text == part for text in _cut(data, offsets)])
            holds[here] = known & (equal == (sign == "="))


def _cut(data: bytes, offsets: Array) -> Iterator[bytes]:
    return (data[begin:end] for begin, end in pairwise(offsets.tolist()))


def _find(data: bytes, offsets: Array, part: bytes) -> Array:
    """Return which texts contain ``part``: bool, shape (texts,).

    ``offsets`` has the position of each text in ``data``, then the end of the last text.
    """
    found = np.zeros(len(offsets) - 1, bool)
    if not part or len(data) < len(part):
        return found | (not part)
    # Search all texts at once. A match that extends into the next text does not count.
    array, last = np.frombuffer(data, np.uint8), len(data) - len(part) + 1
    places = array[:last] == part[0]
    for at, byte in enumerate(part[1:], 1):
        places &= array[at : last + at] == byte
    begins = np.flatnonzero(places)
    texts = offsets.searchsorted(begins, "right") - 1
    found[texts[begins + len(part) <= offsets[texts + 1]]] = True
    return found


def _indices_with(columns: Columns, condition: Condition) -> Any:
    found = columns.events()
    if condition.value not in (*found, *EVENTS):
        what = f"events are {listed(found)}" if found else "the report has no events"
        raise query_error(condition.position, f"no record has the event {short_repr(condition.value, 50)}; {what}")
    return found.get(condition.value, [])


def _labels_of(columns: Columns, condition: Condition) -> list[int]:
    classes, wanted = columns.store.manifest.classes, condition.value
    labels = [label for label, name in enumerate(classes) if name == wanted]
    if not labels:
        remedy = f"classes are {listed(classes)}" if classes else "the store has no class names"
        remedy += f"; {form}" if (form := own_form(wanted)) else ""
        raise query_error(condition.position, f"no class is called {short_repr(wanted, 50)}; {remedy}")
    return labels
