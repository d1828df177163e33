"""Read a text file that lists images. Each line has a path, and perhaps a label, a text or attributes."""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._describe import short_repr
from dbloader.errors import SourceError
from dbloader.sources.base import Problem, readable
from dbloader.sources.folder import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Lines = Callable[[], Iterator[str]]

_SAMPLE = 1000  # lines that decide what follows the paths
# The path ends with the first image extension before a space, a tab or the end of the line.
_LINE = re.compile(rf"(.*?(?:{'|'.join(map(re.escape, EXTENSIONS))}))(?:\s+(.*?))?\s*", re.IGNORECASE | re.DOTALL)
_BARE = re.compile(r"(\S+)(?:\s+(.*?))?\s*", re.DOTALL)
NO_IMAGE = (
    "names no image: a text file has a path on each line, such as cat/0.jpg, alone or before a label; for anything "
    "else, write the names of the columns, such as path,label, as the first line, and commas between the columns"
)
_DEVKIT = (
    "its lines have only numbers, and no paths: give a list with a path on each line; for ImageNet's validation "
    "images, Kaggle has one: dbloader convert val val.lmdb --listing LOC_val_solution.csv --classes train.lmdb"
)


class TextLayout(NamedTuple):
    """How the lines of a text file are written."""

    column: str = ""  # what follows the path: "label", "text", or "" for nothing
    attributes: tuple[str, ...] = ()  # names in the second line for the values after each path, as in CelebA
    are_classes: bool = False  # whether all these values are 1, 0 or -1
    bare: str = ""  # "" if paths have extensions; else the error to raise if the first words name no image
    are_numbered: bool = False  # whether the values after a path are columns called 2, 3 and so on
    header: str = ""  # separator in a table with a header; "" if the file is no table


def find_layout(lines: Lines, is_table: Callable[[list[str], str], bool], where: str) -> TextLayout | None:
    """Return how a text file is written; None if it is empty.

    ``is_table`` gets the parts of the first line and their separator. It returns whether the file is a table.
    """
    sample = [line.strip() for line in islice(filter(str.strip, lines()), _SAMPLE)]
    separator = next((mark for mark in "\t,;" if sample and is_table(sample[0].split(mark), mark)), "")
    if separator:
        return TextLayout(header=separator)
    found = [match for line in sample if (match := _LINE.fullmatch(line))]
    bare = ""
    if not found:  # lines such as apple_pie/1005649 or Abyssinian_100 1 1 1
        bare = _DEVKIT if all(re.fullmatch(r"[\d\s.+-]+", line) for line in sample) else NO_IMAGE
        found = [match for line in sample if line[0] != "#" and (match := _BARE.fullmatch(line))]
        if not found:
            return None
    elif sample[0].isdecimal() and len(sample) > 2 and not any(map(_LINE.fullmatch, sample[:2])):
        names, values = sample[1].split(), [(match[2] or "").split() for match in found]
        names = names[1:] if is_table(names[:1], "\t") else names
        return TextLayout(attributes=tuple(names), are_classes={*chain.from_iterable(values)} <= {"0", "1", "-1"})
    rests = [match[2] for match in found if match[2]]
    if not rests:
        if bare == _DEVKIT and len({*sample}) < len(sample):  # these are labels, even if images have numbers as names
            raise SourceError(f"{where}: {bare}")
        return TextLayout(bare=bare)
    if any(_LINE.fullmatch(rest) for rest in rests[:1]):
        raise SourceError(
            f"{where}: its lines name two files, {short_repr(found[0][0], 100)}: write a CSV with the columns path and "
            "mask, and give the option --file-field mask"
        )
    has_tabs = any("\t" in match[0] for match in found)
    are_numbers = all(re.fullmatch(r"-?[0-9.]+", rest) for rest in rests)
    is_text = any(" " in rest or "\t" in rest for rest in rests) or (has_tabs and 2 * len({*rests}) > len(rests))
    return TextLayout("text" if is_text and not are_numbers else "label", bare=bare)


def read_text(listing: Path, lines: Lines, layout: TextLayout) -> Iterator[tuple[int, dict[str, Any]] | Problem]:
    """Yield the number and the columns of each line, or why it cannot be used."""
    for number, line in enumerate(lines(), 1):
        if not line.strip() or (layout.attributes and number <= 2) or (layout.bare and line[0] == "#"):
            continue
        match = (_BARE if layout.bare else _LINE).fullmatch(line.strip())
        if match is None:
            yield Problem(f"row {number}", f"it names no image: {short_repr(line.strip(), 50)}")
        elif layout.attributes:
            values = (match[2] or "").split()
            if len(values) == len(layout.attributes):
                yield number, {"path": match[1], **dict(zip(layout.attributes, values, strict=True))}
            else:
                wrong = f"{len(values)} values, and {len(layout.attributes)} have a name"
                yield Problem(f"row {number}", f"it has {wrong} in row 2 of {readable(listing)}")
        elif layout.are_numbered:
            values = (match[2] or "").split("\t" if "\t" in (match[2] or "") else None)
            yield number, {"path": match[1], **{str(at): value for at, value in enumerate(values, 2)}}
        elif layout.column:
            yield number, {"path": match[1], layout.column: match[2] or ""}
        else:
            yield number, {"path": match[1]}
