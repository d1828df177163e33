"""Choose the columns of a listing that have the images and the labels."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from dbloader._describe import short_repr
from dbloader.errors import SourceError
from dbloader.ext.sources.checked_rows import flag_of, matching
from dbloader.ext.sources.labels import LABEL_NAMES
from dbloader.ext.sources.listing_columns import ALL, CHECKS, is_about_rows, is_certain, plain
from dbloader.ext.sources.listing_files import PROBED
from dbloader.ext.sources.listing_paths import encoded_path
from dbloader.ext.sources.listing_rows import is_text, read_header, text_layout
from dbloader.sources.base import Problem, readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.ext.sources.checked_rows import ListingRules


def choose_columns(rules: ListingRules) -> ListingRules:
    """Find the columns of images and labels by their names and by the first rows. Return the changed rules.

    Raises:
        SourceError: The user has named a column that is not there, or several columns may name the images.
    """
    listing, path, bare = rules.listing, rules.path, ""
    if not listing.label and path.name == "_classes.csv":  # Roboflow's file has a column for each class
        listing = replace(listing, label=ALL)
    elif path.suffix.lower() == ".txt" and path.is_file():
        layout = text_layout(path, rules.encoding)
        bare = "" if layout is None else layout.bare
        are_classes = layout is not None and layout.are_classes and not listing.label
        listing = replace(listing, label=layout.attributes) if layout and are_classes else listing
    elif not (listing.label or listing.text or rules.is_metadata):
        are_flags, is_sure = _are_flags(rules)
        listing = replace(listing, label=ALL) if are_flags else listing
        rules = rules._replace(is_guess=are_flags and not is_sure)
    return _probe(rules._replace(listing=listing), bare)


def _probe(rules: ListingRules, bare: str) -> ListingRules:
    """Look whether the paths in the first rows find files, and choose the column of images if its name is no sign.

    ``bare`` is an error message for a text file that may name no files; "" for any other listing.
    """
    path, listing = rules.path, rules.listing
    tried = probed = 0  # rows with a path; those whose path finds a file
    for number, values in (row for row in islice(rules.rows(), PROBED) if not isinstance(row, Problem)):
        columns, candidates = [*values], rules.path_columns([*values])
        named = [listing.image or "", *(name for name in listing.label if name != ALL), *listing.text]
        if missing := [name for name in filter(None, named) if not matching(name, columns)]:
            if is_text(path):  # in JSON, rows may have different columns
                shown = short_repr(columns, 200)
                raise SourceError(f"{readable(path)}: it has no column {missing[0]!r}: its columns are {shown}")
            continue
        paths = {column: encoded_path(str(values[column] or "")) for column in candidates}
        found = [column for column, file in paths.items() if isinstance(file, bytes) and rules.files.probe(file)]
        tried, probed = tried + 1, probed + bool(found)
        if candidates and not found and path.suffix.lower() == ".txt":
            before, _, last = str(values[candidates[0]]).replace("\t", " ").rpartition(" ")
            if before and isinstance(file := encoded_path(last), bytes) and rules.files.probe(file):
                raise SourceError(
                    f"{readable(path)}, row {number}: {short_repr(before, 50)} comes before the path: write the names "
                    "of the columns, such as id,path, as the first line, and tabs or commas between the columns"
                )
        if not candidates or rules.is_metadata or rules.listing.image or is_certain(candidates[0]):
            continue
        if len(found) > 1:
            one, other = found[:2]
            raise SourceError(
                f"{readable(path)}, row {number}: {one!r} and {other!r} may both be the path: choose one with "
                "--image-column (Listing(image=))"
            )
        if found:
            rules = rules._replace(listing=replace(rules.listing, image=found[0]))
    if bare and (rules.files.is_unknown or 2 * probed <= tried):
        raise SourceError(f"{readable(path)}: {bare}")
    return rules


def _are_flags(rules: ListingRules) -> tuple[bool, bool]:
    """Return (whether the columns besides the images may be classes, whether this is certain).

    Columns of classes have only the values 1, 0 and -1. A value of -1 makes them certain, and so does exactly one 1 in
    each row. One column is never enough. Two columns are classes only if each row has exactly one 1. If any column is
    about its row, such as is_train or verified, no column is a class.
    """
    is_flag = re.compile(r" *(?:[01](?:\.0)?|-1(?:\.0)?) *").fullmatch
    columns = [column for column in read_header(rules.path, rules.encoding) if column]
    path = rules.path_columns(columns)[:1]
    has_label = not {*map(plain, columns)}.isdisjoint(LABEL_NAMES)
    if not path or len(columns) < 3 or has_label or is_about_rows(columns, ("is", "has", *CHECKS)):
        return False, False
    has_signs, is_single = False, True
    for row in (row[1] for row in rules.rows() if not isinstance(row, Problem)):
        values = [row[column] for column in columns if column not in path]
        if not all(map(is_flag, values)) or not (is_single or len(values) > 2):
            return False, False
        has_signs = has_signs or "-" in "".join(values)
        is_single = is_single and sum(float(value) > 0 for value in values) == 1
    return is_single or len(columns) > 3, has_signs or is_single


def flag_warnings(rules: ListingRules, columns: tuple[str, ...]) -> Iterator[str]:
    """Yield a warning if columns of classes have a third value, such as CheXpert's -1 beside 0, or empty values."""
    first: dict[int | None, tuple[int, str]] = {}
    for number, values in (row for row in rules.rows() if not isinstance(row, Problem)):
        for column in columns:
            first.setdefault(flag_of(values.get(column)), (number, column))
    odd = {"-1 beside 0": first.get(-1) if 0 in first else None, "an empty value": first.get(2)}
    if found := {what: place for what, place in odd.items() if place}:
        (number, column), what = next(iter(found.values())), " and ".join(found)
        ways = "write 1 or 0, or name the other columns by --label-column (Listing(label=)): the rest stay numbers"
        where = f"first in row {number}, {column!r}"
        yield f"in the columns of classes, {what} became no ({where}): if it is unknown, {ways}"
