"""Check the options that choose records and labels for a copy, and find the chosen records in the columns."""

from __future__ import annotations

import hashlib
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader._describe import counted, short_repr
from dbloader._options import check_path
from dbloader.errors import OptionError
from dbloader.ext.copying.listings import find_rows, join_marks, read_labels
from dbloader.ext.queries.select import find_matching
from dbloader.records.columns import NO_LABEL
from dbloader.sampling.rng import bits, derive_keys
from dbloader.sources.base import full_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dbloader.ext.copying.listings import Labels, RecordNames

    Array = np.ndarray[Any, Any]

_SHOWN = 5
_ROUNDING = 1e-6  # the sum of fractions may differ from 1 by this much


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The checked options of `copy_store` that choose records and labels. `copy_store` describes them."""

    select: Path | None
    drop: Path | None
    classes: tuple[str, ...]
    where: str | None
    labels: Path | None
    marks: tuple[Path, ...]
    rename_classes: Mapping[str, str]
    split: tuple[float, ...] | None
    seed: int

    def given(self) -> dict[str, Any]:
        """Return the options that are given, by name."""
        return {option.name: value for option in fields(self) if (value := getattr(self, option.name))}

    def described(self) -> dict[str, Any]:
        """Return the options that change the copy, in a form that a manifest can store."""
        used = {name: value for name, value in self.given().items() if name != "seed"}
        if self.split:
            used["seed"] = self.seed
        return {name: _plain(value) for name, value in used.items()}


def listing_path(name: str, listing: str | os.PathLike[str] | None) -> Path | None:
    """Return the path of a listing. Refuse a file of marks, because it also lists records that are only tagged."""
    check_path(name, listing, none=True)
    if listing is None:
        return None
    if os.fspath(listing).endswith(".marks.jsonl"):
        raise OptionError(f"{name} (--{name}): {listing} is a file of marks: pass it as marks (--marks)")
    return Path(listing)  # Path("") counts as given, so "" raises an error when it is read


def checked_fractions(split: Any) -> tuple[float, ...]:
    """Return the fractions in ``split``, a sequence or a text such as "0.9,0.1"; OptionError for other values."""
    with suppress(TypeError, ValueError):
        given = tuple(map(float, split.split(",") if isinstance(split, str) else split))
        if len(given) > 1 and all(0 < part < 1 for part in given) and abs(sum(given) - 1) <= _ROUNDING:
            return given
    wanted = "two or more fractions with the sum 1, such as 0.8,0.2 for two destinations"
    raise OptionError(f"split (--split) must be {wanted}, got {short_repr(split)}")


def _plain(value: Any) -> Any:
    return full_path(value) if isinstance(value, Path) else [*map(_plain, value)] if isinstance(value, tuple) else value


class Selection(NamedTuple):
    """The records of each destination. A position is the number of a record among the records of all sources.

    Attributes:
        parts: Positions of the records of each destination, in ascending order.
        labels: New labels: int64, shape (records of all sources,); None if no label changes.
        classes: Class names, the same for every destination.
        complete: Whether there is one destination, which gets all records.
        tables: For each source, {old label: new label} of the copied classes, for boxes and lists of classes; None if
            no label of the source changes.
    """

    parts: list[Any]
    labels: Array | None
    classes: tuple[str, ...]
    complete: bool
    tables: list[dict[int, int] | None]

    def digest(self, number: int) -> str:
        """Return the SHA-256, in hex, of one destination's positions, labels and classes."""
        positions = np.asarray(self.parts[number], "<i8")
        digest = hashlib.sha256("\0".join(self.classes).encode() + b"\0")
        digest.update(positions.tobytes())
        digest.update(b"" if self.labels is None else self.labels[positions].astype("<i8").tobytes())
        return digest.hexdigest()


def select_records(names: RecordNames, choice: Choice) -> Selection:
    """Return the records of each destination of a copy."""
    old = np.concatenate([store.column("label") for store in names.stores])
    dropped, marked = join_marks(choice.marks, names)
    keep = _match(names, choice)
    keep[dropped] = False
    if len(keep) and not keep.any():
        places = ", ".join(store.place for store in names.stores)
        raise OptionError(f"there is nothing to copy: no record of {places} matches all conditions")
    new, classes = _unite_labels(names, old, keep, marked, choice)
    if len(names.stores) > 1:
        repeated = names.repeated(keep)
        if first := [*islice(repeated, _SHOWN)]:
            count = len(first) + sum(1 for _ in repeated)
            what = f"{counted(count, 'record')} with the same name as a record of an earlier source"
            some = ", ".join(map(repr, first)) + ", …" * (count > len(first))
            warnings.warn(f"{what}: {some}; all are copied", UserWarning, stacklevel=4)
    positions = np.flatnonzero(keep)
    changed = None if np.array_equal(new[keep], old[keep]) else new
    tables = [_table(store.manifest.classes, classes, choice) for store in names.stores]
    if choice.split is None:
        return Selection([positions], changed, classes, len(positions) == len(keep), tables)
    parts = _split(positions, new[positions], choice.split, choice.seed)
    return Selection(parts, changed, classes, complete=False, tables=tables)


def _table(own: Sequence[str], united: Sequence[str], choice: Choice) -> dict[int, int] | None:
    """Return {old label: new label} for the remaining classes of a store; None if no label changes."""
    wanted, rename = choice.classes, choice.rename_classes
    if own == united and not rename:
        return None
    new = {name: label for label, name in enumerate(united)}
    left = ((label, rename.get(name, name)) for label, name in enumerate(own) if not wanted or name in wanted)
    return {label: new[name] for label, name in left if name in new}


def _match(names: RecordNames, choice: Choice) -> Array:
    """Return a mask of the records that match all conditions: bool, shape (records,)."""
    stores = names.stores
    keep = np.ones(names.starts[-1], bool)
    if choice.select:
        keep[:] = False
        for _, _, positions in find_rows(choice.select, names):
            keep[positions] = True
    if choice.drop:
        for _, _, positions in find_rows(choice.drop, names, must_exist=False):
            keep[positions] = False
    if choice.where:
        booleans = {name for store in stores for name, kind in store.manifest.columns.items() if kind == "bool"}
        for start, store in zip(names.starts, stores, strict=False):
            found = np.zeros(len(store), bool)
            found[find_matching(store, choice.where, booleans)] = True
            keep[start : start + len(store)] &= found
    if choice.classes:
        _check_known("classes (--class)", choice.classes, [store.manifest.classes for store in stores])
        for start, store in zip(names.starts, stores, strict=False):
            labels = [at for at, name in enumerate(store.manifest.classes) if name in choice.classes]
            keep[start : start + len(store)] &= np.isin(store.column("label"), labels)
    return keep


def _unite_labels(
    names: RecordNames, old: Array, keep: Array, marked: list[Labels], choice: Choice
) -> tuple[Array, tuple[str, ...]]:
    """Return the new label of each record, and the class names. Classes with the same name become one class."""
    # The origin of a label is a store or a listing. Each origin has its own class names.
    count, wanted = len(names.stores), choice.classes
    labels, origin = old, np.repeat(np.arange(count), np.diff(names.starts))
    places = [store.place for store in names.stores]
    classes: list[tuple[str | None, ...]] = [
        tuple(name if not wanted or name in wanted else None for name in store.manifest.classes)
        for store in names.stores
    ]
    common = classes[0] if len({*classes}) == 1 else ()  # classes of integers in a listing, if all stores agree
    listed = read_labels(choice.labels, names) if choice.labels else None
    for listing in filter(None, (listed, *marked)):
        labels = np.where(listing.given, listing.labels, labels)
        origin = np.where(listing.given, len(classes), origin)
        classes.append(listing.classes or common)
        places.append(listing.where)
    if listed and listed.given[keep].all():  # the copy has only the listing's classes
        classes[:count] = [()] * count
    has_label = keep & (labels != NO_LABEL)
    bare = [at for at, own in enumerate(classes) if not own and np.any(has_label & (origin == at))]
    if bare and any(classes):
        named = places[next(at for at, own in enumerate(classes) if own)]
        raise OptionError(
            f"{named} has class names, but the labels of {places[bare[0]]} are integers: give the class name of each "
            "record in a listing (--labels)"
        )
    united, tables = _unite_classes(classes, places, choice.rename_classes)
    new = labels.copy()
    for at, table in enumerate(tables):
        if len(table):
            mine = has_label & (origin == at)
            inside = mine & (labels >= 0) & (labels < len(table))
            new[inside] = table[labels[inside]]
            if (wrong := mine & (~inside | (new < 0))).any():
                raise OptionError(f"{places[at]}: the label {labels[wrong][0]} has no class")
    return new, united


def _unite_classes(
    classes: Sequence[Sequence[str | None]], places: Sequence[str], rename: Mapping[str, str]
) -> tuple[tuple[str, ...], list[Array]]:
    """Unite lists of class names. Return all names, and for each list an array that maps its labels to new labels.

    None marks a class that is left out; its new label is -1. The names are sorted only if all lists are sorted.
    """
    known = [[name for name in own if name is not None] for own in classes]
    _check_known("rename_classes (--rename-class)", rename, known)
    if len({*map(tuple, known)} - {()}) <= 1 and not rename and [*map(len, known)] == [*map(len, classes)]:
        return tuple(next(filter(None, known), ())), [np.arange(len(own)) for own in known]
    for own, place in zip(known, places, strict=True):
        if twice := next((name for name in own if own.count(name) > 1), None):
            raise OptionError(f"{place}: two classes are called {twice!r}, so a name does not identify a class")
    renamed = dict.fromkeys(rename.get(name, name) for name in chain(*known))
    united = tuple(sorted(renamed) if all(own == sorted(own) for own in known) else renamed)
    label = {name: number for number, name in enumerate(united)}
    return united, [
        np.array([-1 if name is None else label[rename.get(name, name)] for name in own], np.int64) for own in classes
    ]


def _split(positions: Array, labels: Array, fractions: Sequence[float], seed: int) -> list[Array]:
    """Divide positions at random into parts with these fractions.

    Each part gets its rounded share of all records. Its share of each label is off by at most one or two records.
    """
    shares = np.array(fractions) * len(positions)
    sizes = np.floor(shares).astype(np.int64)
    sizes[np.argsort(sizes - shares, kind="stable")[: len(positions) - sizes.sum()]] += 1
    if not sizes.all():
        raise OptionError(f"split (--split): a destination would get none of the {counted(len(positions), 'record')}")
    # Sort the records by label, and randomly within each label. Spread each part evenly along this order.
    evenly = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes.tolist()])
    sequence = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(evenly, kind="stable")]
    of_label = bits(labels, derive_keys(2, "split", seed, "label"))
    of_record = bits(positions, derive_keys(2, "split", seed, "record"))
    part = np.empty_like(sequence)
    part[np.lexsort((of_record, of_label))] = sequence
    return [positions[part == number] for number in range(len(sizes))]


def _check_known(option: str, names: Iterable[str], known: Iterable[Iterable[str]]) -> None:
    there = {*chain.from_iterable(known)}
    for name in names:
        if name not in there:
            shown = ", ".join(map(repr, islice(sorted(there), _SHOWN))) + ", …" * (len(there) > _SHOWN)
            raise OptionError(f"{option}: no class is called {name!r}; the classes are {shown or 'without names'}")
