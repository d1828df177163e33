"""Apply the classes that the user gives to a source, such as the classes of the training data.

A source numbers its own classes. `use_classes` maps these numbers to the positions in the given list.
"""

from __future__ import annotations

import glob
import os
import re
import unicodedata
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dbloader._describe import short_repr
from dbloader._options import checked_names
from dbloader._places import is_mongo, is_remote
from dbloader.errors import DBLoaderError, NotAStoreError, OptionError, SourceError, StoreError
from dbloader.ext.sources.archive import TARS, ZIPS
from dbloader.ext.sources.class_folders import folded, number_warnings
from dbloader.ext.sources.labels import read_classes, read_numbered
from dbloader.ext.sources.lmdb_files import find_lmdb
from dbloader.ext.sources.recognize import find_archives
from dbloader.records.manifest import CLASS_LISTS
from dbloader.sources.base import Listing, Tally, full_path, name_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.sources.base import Source

NUMBERS = "numbers"

_NAMED = 5  # a message names at most this many classes
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_TRAIN = ("train", "training", "Train", "Training", "TRAIN")
_SPLIT = re.compile(r"(?i)(?<![a-z])(?:valid(?:ation)?|val|test(?:ing)?|dev|eval(?:uation)?)(?=set(?![a-z])|(?![a-z]))")
_SHARDED = (*TARS, *ZIPS, ".parquet", ".arrow")
_SHARD = re.compile(r"\{[0-9]+\.\.[0-9]+\}|[0-9]{5,}")  # numbers of shards, which may differ between train and val
_FORMS = (
    f"a store, a .txt with a name on each line, a .json list, {NUMBERS}, or names with commas: cat,dog (a single name "
    "needs a comma: cat,)"
)


def given_classes(classes: str | os.PathLike[str] | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """Return the names that the option ``classes`` gives. Return None and "numbers" unchanged.

    Raises:
        OptionError: The option gives no names, or names that are blank or equal.
        SourceError: The file with the names cannot be read.
    """
    if classes is None or classes == NUMBERS:
        return classes
    if isinstance(classes, (str, os.PathLike)):
        names = _names_at(os.fspath(classes))
    else:
        names = checked_names("classes", classes, "('cat', 'dog')")
    if not names or len({*names}) < len(names) or not all(name.strip() for name in names):
        raise OptionError(f"classes (--classes) must be different names, got {short_repr(list(names), 100)}")
    return names


def _names_at(place: str) -> tuple[str, ...]:
    """Return the names of the classes in a store or a file, or the names that a text lists."""
    path = Path(place)
    if path.suffix.lower() in (".txt", ".names") and path.is_file():
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{place}: the names of the classes cannot be read: {error}") from error
        if comment := next((line for line in lines if line.startswith("#")), None):
            what = f"the line {short_repr(comment, 50)} looks like a comment, not like the name of a class"
            raise SourceError(f"{place}: {what}: remove it, or give the names as a .json list")
        return tuple(line.strip() for line in lines if line.strip())
    if path.suffix.lower() == ".json" and path.is_file():
        return read_numbered(path) or read_classes(path.parent, path.name) or ()
    if is_mongo(place) or is_remote(place) or (path.exists() and path.suffix.lower() not in (".csv", ".tsv")):
        from dbloader.stores.open import open_store

        try:
            with open_store(place) as store:
                if not store.manifest.classes:
                    way = f"classes='{NUMBERS}' (--classes {NUMBERS}) takes names such as 3 as labels"
                    raise OptionError(f"classes (--classes): {store.place} has no names of classes; {way}")
                return store.manifest.classes
        except NotAStoreError as error:
            raise OptionError(f"classes (--classes): {short_repr(place, 100)} is no store; give {_FORMS}") from error
    if "," in place:
        return tuple(name.strip() for name in place.removesuffix(",").split(","))
    name = short_repr(place, 100)
    what = f"{name} is no store" if path.exists() else f"there is no file or store {name}"
    raise OptionError(f"classes (--classes): {what}; give {_FORMS}")


def use_classes(found: Source, given: str | tuple[str, ...]) -> None:
    """Number a source's classes by their positions in ``given``. With "numbers", the class "7" gets the label 7.

    Raises:
        OptionError: A class of the source is not in ``given``; with "numbers", its name is no integer.
    """
    own = found.classes
    if not isinstance(given, str):
        given = _without_numbers(given, own)
        number = class_numbers(own, given)
        if unknown := [name for name in own if name not in number]:
            alike = {folded(name): f" (given: {name!r})" for name in given}
            names = [f"{name!r}{alike.get(folded(name), '')}" for name in unknown]
            raise _error(found, names, f"not among the {len(given):,} given, such as {short_repr(given[0], 40)}")
        known = {*getattr(found, "labels", {}).values()}
        if not own and max(known, default=0) == len(given) and 0 not in known:
            raise OptionError(
                f"classes (--classes): the labels of {found.place} end at {len(given)}, but the {len(given)} names "
                "have the labels from 0 on: if its labels begin at 1, subtract 1, or give a name for 0, such as none"
            )
        found.given_classes, found.label_table = given, [number[name] for name in own] if own else [*range(len(given))]
    elif not own:
        raise OptionError(f"classes (--classes) {NUMBERS}: the labels of {found.place} are integers: leave it out")
    elif odd := [name for name in own if not _INTEGER.fullmatch(name)]:
        raise _error(found, [*map(repr, odd)], "no integer")
    else:
        found.given_classes, found.label_table = (), [*map(int, own)]
        if len({*found.label_table}) < len(own):
            raise OptionError(f"{found.place}: two of its classes are the same integer: {short_repr(list(own), 100)}")
    describe_labels(found, found.label_table)


def class_numbers(own: Sequence[str], given: Sequence[str]) -> dict[str, int]:
    """Return {name of ``own``: its position in ``given``}. A name may differ by its Unicode form, NFC or NFD."""
    number = {name: label for label, name in enumerate(given)}
    ours, theirs = (Counter(unicodedata.normalize("NFC", name) for name in names) for names in (own, given))
    by_form = {unicodedata.normalize("NFC", name): label for label, name in enumerate(given)}
    for name in own:
        form = unicodedata.normalize("NFC", name)
        if name not in number and ours[form] == theirs[form] == 1:  # else several names have this form
            number[name] = by_form[form]
    return number


def _without_numbers(given: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the half of lines such as "n01440764 tench" or "0 cat" that has a source's names; otherwise the lines.

    Lines such as "0 cat" are sorted by their numbers.
    """
    parts = [line.split(maxsplit=1) for line in given]
    if any(len(part) < 2 for part in parts) or {*own} & {*given} or not own:
        return given
    if all(_INTEGER.fullmatch(number) for number, _ in parts):
        parts.sort(key=lambda part: int(part[0]))
        if [int(number) for number, _ in parts] not in ([*range(len(parts))], [*range(1, len(parts) + 1)]):
            return given  # positions would be other labels than the numbers, so this becomes an error
    for names in map(tuple, zip(*parts, strict=True)):
        if {*own} <= {*names} and len({*names}) == len(names):
            return names
    return given


def describe_labels(found: Source, labels: Sequence[int] | None) -> None:
    """Write the new labels of classes into a source's report lines. Remove warnings that are no longer right.

    ``labels`` has the label of each class; None if the label is the position of the class.
    """
    own = found.classes
    decided = {*number_warnings(found)}
    found.warnings = tuple(warning for warning in found.warnings if warning not in decided)
    if own:
        said = re.compile("|".join(map(re.escape, {name_range(own), name_range(own, found.label_table)})))
        is_so = name_range(own, labels)
        found.understood = tuple(said.sub(lambda _: is_so, line) for line in found.in_words(Tally()))


def numbered(found: Source, label: int | None) -> int | None:
    """Return the label to store for an entry's label; None if no class has the entry's label."""
    if label is None or found.label_table is None:
        return label
    return found.label_table[label] if 0 <= label < len(found.label_table) else None


def _error(found: Source, names: list[str], what: str) -> OptionError:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    counts = f"{len(names):,} of the {len(found.classes):,} classes of {found.place}"
    named = f"{'is' if len(names) == 1 else 'are'} {what}: {', '.join(names[:_NAMED])}{more}"
    return OptionError(f"classes (--classes): {counts} {named}")


def check_class_lists(found: Source) -> None:
    """Raise OptionError if images have several classes without names: training would not know the number of classes."""
    if found.target == CLASS_LISTS and not (found.classes or found.stores):
        raise OptionError(
            f"{found.place}: its labels are lists of integers, which do not show how many classes there are: give the "
            "names of all classes in their order (--classes names.txt, or --classes cat,dog)"
        )


def follow_train(
    found: Source,
    source: str | os.PathLike[str],
    listing: str | os.PathLike[str] | Listing | None,
    read: Callable[..., Source],
) -> None:
    """Number the classes of a split, such as ``val``, as in ``train`` beside it. Ultralytics does this too.

    If ``train`` lacks a class, warn that the classes differ. If the files number their classes, as in COCO, do not
    compare with ``train``, and report this in the line about labels. Do not compare tars either, because opening a tar
    reads all of it: warn instead.
    """
    listing = None if listing is None else Listing.of(listing)
    if not found.classes or (listing is None and is_mongo(source)):
        return
    train, rows_of = _train_of(source), listing and _train_of(listing.path)
    if found.numbers_classes or found.stores or (listing is None and find_lmdb(source) is not None):
        if (beside := rows_of or train) is not None:
            _add_about_labels(found, f" (not compared with {_named(beside)}; see --classes)")
        return
    if listing is None and find_archives(source, TARS):
        if train is not None:
            what = f"{_named(train)} may have other classes, and the same label may then mean another class"
            way = "convert it first, and give its store as classes= (--classes train.lmdb)"
            found.warnings = (*found.warnings, f"{what}: {way}")
        return
    listed = replace(listing, path=rows_of) if listing and rows_of else None
    not_read = None
    for place, rows in [(source, listed), (train, listed)] if listed else [(train, None)]:
        if place is None:
            continue
        name, own = _named(place if rows is None else rows.path), found.classes
        try:
            other = read(place, rows)
        except DBLoaderError:
            not_read = name
            continue
        with closing(other):
            number = class_numbers(own, other.classes)
            if not {*map(folded, own)} & {*map(folded, other.classes)}:  # unrelated, such as pictures of a training run
                _add_about_labels(found, f" (none of them is in {name})" * bool(other.classes))
                return
            if len(number.keys() & {*own}) < len(own):
                first = short_repr(next(name for name in own if name not in number), 40)
                what = f"{name} has other classes ({len(other.classes):,}; here {len(own):,}) and lacks {first}"
                way = "convert both with the names of all classes as classes= (--classes names.txt)"
                found.warnings = (*found.warnings, f"{what}, so the same label may mean another class: {way}")
            elif other.classes != own:
                use_classes(found, other.classes)
                says = f" (classes of {name}: {len(other.classes):,}, of which {len(own):,} occur here)"
                _add_about_labels(found, says)
                found.warnings = (*found.warnings, *number_warnings(other))
            return
    if not_read is not None:
        _add_about_labels(found, f" ({not_read} cannot be read, so its classes are not compared; see --classes)")


def _add_about_labels(found: Source, says: str) -> None:
    """Append words to the report's line about the labels of a source."""
    found.understood = tuple(line + says * line.startswith("labels:") for line in found.in_words(Tally()))


def _named(place: str | os.PathLike[str]) -> str:
    return os.fspath(place) if is_remote(place) else full_path(place)


def _train_of(path: str | os.PathLike[str]) -> str | Path | None:
    """Return the path of the training split beside ``data/val`` or ``val/labels.csv``; None if there is none."""
    if is_remote(path):
        scheme, _, rest = os.fspath(path).partition("://")
        parts = Path("/", rest).parts
        places = (f"{scheme}:/{other}" for other in _train_paths(parts) if other.parts[:2] == parts[:2])
        return None if scheme.startswith("http") else next(filter(_has_folders, places), None)
    for other in _train_paths(Path(path).absolute().parts):  # absolute: "." shows no split
        shards = _SHARD.sub("*", other.name) if other.name.lower().endswith(_SHARDED) else ""
        if glob.has_magic(shards) and any(other.parent.glob(shards)):
            return other.with_name(shards)
        if other.exists():
            return other
    return None


def _train_paths(parts: tuple[str, ...]) -> Iterator[Path]:
    """Yield the paths with "train" in place of a split such as "val" in the last part, the part before it, or both."""
    *outer, before, last = ("", *parts)
    for word in _TRAIN:
        for tail in ((before, _SPLIT.sub(word, last)), (_SPLIT.sub(word, before), last)):
            if tail != (before, last):
                yield Path(*outer, *tail)
        if _SPLIT.search(before) and _SPLIT.search(last):
            yield Path(*outer, _SPLIT.sub(word, before), _SPLIT.sub(word, last))


def _has_folders(place: str) -> bool:
    """Return whether there are folders at a place in object storage, or this cannot be found out."""
    from dbloader.ext.remote.bucket import Bucket

    try:
        return bool(Bucket(place).folders()[0])
    except StoreError:
        return True
