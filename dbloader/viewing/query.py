"""Parse a query: words and alternatives. A record must match all of them. docs/viewer.md lists the words."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._describe import short_repr
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

SIZES = ("width", "height", "aspect", "bytes")
EVENTS = ("damaged", "repaired", "rejected")
"""Events of the conversion's report that are words by themselves."""

FIELD = r"[^\W\d][\w.-]*"
"""Pattern of the fields that a query can name."""

_COLON = ("class", "label", "name", "index", "event")
_NUMERIC = ("<", "<=", ">", ">=", "=")
_SIGNS = {"bool": ("=",), "int": _NUMERIC, "float": _NUMERIC, "text": ("~", "=")}
_MOST_LETTERS, _MOST_WORDS = 10_000, 32
_WITHIN = r'(?:[^"\\]|\\["\\]|\\(?!["\\]))*'  # between quotes: \" is a quote, and \\ a backslash
_WORD = re.compile(rf'(-?)(?:({FIELD})(:|<=|>=|<|>|=|~))?((?:"{_WITHIN}"|[^\s"()])*)(?=[\s)]|\Z)')
_GROUP = re.compile(r"-?\(|\)|or(?=[\s(])")
_QUOTED = re.compile(f'"({_WITHIN})"')
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")
_INTEGER = re.compile("-?[0-9]{1,18}")
_RANGES = re.compile("[0-9]{1,18}(?:-[0-9]{1,18})?(?:,[0-9]{1,18}(?:-[0-9]{1,18})?)*")


class Word(NamedTuple):
    """A word of a query: one condition.

    Attributes:
        position: Position of its first letter in the query, from 1.
        negated: Whether records must not match it.
        key: ``"class"``, ``"label"``, ``"name"``, ``"index"``, ``"event"``, one of ``SIZES``, a field, or ``"or"``.
        sign: ``"<"``, ``"<="``, ``">"``, ``">="`` or ``"="`` for a size or a field, also ``"~"`` for a field of texts;
            ``":"`` for other keys.
        value: A float for a size; an int or None (no label) for ``"label"``; a list of ranges for ``"index"``; a list
            of words for ``"or"``; a float, bool or text for a field; the text for other keys.
    """

    position: int
    negated: bool
    key: str
    sign: str
    value: Any


def parse(text: str, fields: Mapping[str, str] | None = None) -> list[Word]:
    """Return the words of a query.

    Args:
        text: The query.
        fields: The fields that have a column, and the kind of each.

    Raises:
        OptionError: A word is wrong. The message has its position, the allowed words, and an example.
    """
    if len(text) > _MOST_LETTERS:
        raise OptionError(f"the query has {len(text):,} letters; at most {_MOST_LETTERS:,} are allowed")
    words: list[Word] = []
    group: list[Word] | None = None  # the words between open parentheses
    at, is_ready = 0, True  # ready for a word: within parentheses, the last one was "or"
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        mark = (_GROUP.match(rest) or [""])[0]
        if mark.endswith("(") and group is None:
            group = []
            words.append(Word(at + 1, mark[0] == "-", "or", ":", group))
        elif mark == ")" and group and not is_ready:
            group, is_ready = None, True
        elif mark == "or" and group and not is_ready:
            is_ready = True
        else:
            match = _WORD.match(text, at)
            if match is None and rest.count('"') % 2:
                raise query_error(text.find('"', at) + 1, 'a quote is opened and not closed; write it as in name:"a b"')
            if match is None or not match[0] or not is_ready:
                what = "parentheses contain words with or between them, such as (class:cat or class:dog)"
                raise query_error(at + 1, f"{what}; quote a name that contains them")
            (words if group is None else group).append(_word(at + 1, fields or {}, *match.groups()))
            mark, is_ready = match[0], group is None
        at += len(mark)
    if group is not None:
        raise query_error(words[-1].position, "a parenthesis is opened and not closed")
    if len(words) > _MOST_WORDS:
        raise query_error(words[_MOST_WORDS].position, f"at most {_MOST_WORDS} words are allowed, got {len(words)}")
    return words


def query_error(position: int, what: str) -> OptionError:
    """Return the error for the word at a position, which counts from 1."""
    return OptionError(f"query, letter {position}: {what}")


def _word(position: int, fields: Mapping[str, str], minus: str, key: str | None, sign: str | None, raw: str) -> Word:
    negated = bool(minus)
    value = _QUOTED.sub(lambda match: re.sub(r'\\(["\\])', r"\1", match[1]), raw)
    if key is None:
        if raw in EVENTS:
            return Word(position, negated, "event", ":", raw)
        key, sign = "name", ":"
    if key in SIZES and sign != ":":
        return Word(position, negated, key, sign or "", _number(position, f"{key}{sign}", value))
    if key in fields and sign and sign in _SIGNS[fields[key]]:
        if fields[key] == "bool" and value not in ("true", "false"):
            raise query_error(position, f"{key}= needs true or false, got {short_repr(value, 50)}")
        given: Any = value == "true" if fields[key] == "bool" else value
        if fields[key] in ("int", "float"):
            given = _number(position, f"{key}{sign}", value)
        return Word(position, negated, key, sign, given)
    if key not in _COLON or sign != ":":
        known = ", ".join([*(f"{word}:" for word in _COLON), *(f"{size}<" for size in SIZES)])
        known = ", ".join([known, *(f"{name}{_SIGNS[kind][0]}" for name, kind in fields.items()), *EVENTS])
        got = short_repr(f"{key}{sign}{raw}", 50)
        what = f"{got} is not understood: a word is one of {known} or a part of a name"
        rest = "sizes are compared by <, <=, >, >= or =; write quotes around a part of a name that looks like a word"
        raise query_error(position, f'{what}; {rest}, such as "{key}{sign}"')
    if not value and not (key == "class" and raw):  # a class may be called ""
        raise query_error(position, f"{key}: needs something after it, such as {key}:{_EXAMPLES[key]}")
    if key == "label":
        if value != "none" and not _INTEGER.fullmatch(value):
            raise query_error(position, f"a label is an integer or none, such as label:3, got {short_repr(value, 50)}")
        return Word(position, negated, key, ":", None if value == "none" else int(value))
    if key == "index":
        if not _RANGES.fullmatch(value):
            what = "indices are integers and ranges, such as index:5 or index:1,5-9, got"
            raise query_error(position, f"{what} {short_repr(value, 50)}")
        bounds = [[int(bound) for bound in part.split("-")] for part in value.split(",")]
        if any(part[-1] < part[0] for part in bounds):
            what = "a range goes from the lower index to the higher one, such as 1-5, got"
            raise query_error(position, f"{what} {short_repr(value, 50)}")
        return Word(position, negated, key, ":", [range(part[0], part[-1] + 1) for part in bounds])
    return Word(position, negated, key, ":", value)


_EXAMPLES = {"class": "cat", "label": "3", "name": "_012", "index": "5", "event": "damaged"}


def _number(position: int, start: str, text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(number):
        what = f"{start} needs a number, such as {start}256 or {start}1e6, got {short_repr(text, 50)}"
        raise query_error(position, what)
    return number
