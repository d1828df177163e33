"""Parse queries of the viewer's search and of the option ``where``. docs/queries.md describes their language.

A condition compares a value of the record with a given value, such as ``width<64``. Conditions that follow each other
must all hold; ``or``, ``not`` and parentheses combine them.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from dbloader._describe import listed, short_repr
from dbloader.errors import OptionError
from dbloader.records.field_columns import PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

SIZES = ("width", "height", "aspect", "bytes")
EVENTS = ("damaged", "repaired", "rejected")
"""Events of the conversion's report. Each of these words is a condition by itself."""

_NUMBERS = ("<", "<=", ">", ">=", "=", "!=")
_SIGNS = {
    **dict.fromkeys(SIZES, _NUMBERS), "label": (":", *_NUMBERS), "index": (":", *_NUMBERS),
    "class": (":",), "name": (":",), "event": (":",),
}  # fmt: skip
KEYS = tuple(_SIGNS)
"""Keys that exist for every store. An extra field with the name of a key, such as ``bytes``, is ``field.bytes``."""

_SIGNS_OF_KIND = {"bool": ("=", "!="), "int": _NUMBERS, "float": _NUMBERS, "text": ("~", "=", "!=")}
_MOST_LETTERS, _DEEPEST = 10_000, 20
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}

_QUOTED = r'"(?:[^"\\]|\\["\\]|\\(?!["\\]))*"'  # between the quotes, \" means a quote, and \\ means a backslash
_WORD = rf'(?:{_QUOTED}|[^\s()"])+'
_CONDITION = re.compile(rf"({_QUOTED}|[^\W\d][\w.-]*)\s*(<=|>=|==|!=|<>|[<>=~:])\s*({_WORD})?")
_UNQUOTED_KEY = re.compile(r'[^<>=!~:"]+(?=[<>=!~:])')  # matches 1st in 1st=3
_NAME_PART = re.compile(_WORD)
_KEYWORD = re.compile(r"(or|and|not)(?=[\s()]|\Z)|([()])", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?)([kKmMgG]?[bB]?)")
_INTEGER = re.compile("-?[0-9]{1,18}")
_RANGES = re.compile("[0-9]{1,18}(?:-[0-9]{1,18})?(?:,[0-9]{1,18}(?:-[0-9]{1,18})?)*")

# Words and signs of other query languages. A word alone searches in names, but these rarely occur there, so they are
# an error without quotes.
_MISSING = "write class:cat, or label:none for records without a label"
_COMPARISONS = "write score>0.2 score<0.5, or (label:1 or label:2)"
_TEXTS = "name:*.png matches whole names, and caption~cat finds parts of texts"
_FOREIGN_WORDS = {
    **dict.fromkeys(("is", "null", "none", "nan"), _MISSING), **dict.fromkeys(("like", "contains"), _TEXTS),
    **dict.fromkeys(("true", "false", "where", "xor"), _COMPARISONS),
    "in": "write (class:cat or class:dog)", "between": "write score>=0.2 score<=0.5",
}  # fmt: skip
_FOREIGN = re.compile("[&|!,;<>=~'`^$%\\[\\]{}≤≥≠\u2018\u2019\u201c\u201d]|\\A[+](?![.0-9])")
_QUOTES = "'`\u2018\u2019\u201c\u201d"
_OWN_FORMS = {
    "&": "write and", "|": "write or", "!": "write not", "[{,": "write (label:1 or label:2)",
    "<>=≤≥≠": "write each comparison by itself, the field first: score>0.2 score<0.5",
    "~": "write not before a condition, and caption~cat for texts that contain cat",
    _QUOTES: 'quotes are "', "+": "conditions need no +",
    "": _TEXTS,
}  # fmt: skip


class Condition(NamedTuple):
    """A comparison of a record's value with a given value.

    Attributes:
        position: Position of the condition's first letter in the query, from 1.
        key: ``"class"``, ``"label"``, ``"name"``, ``"index"``, ``"event"``, one of ``SIZES``, or ``field.`` and the
            name of an extra field.
        sign: ``":"``, ``"~"`` (contains), or a comparison such as ``"<="``.
        value: The given value. For a size, label, index or field of numbers, it is a float or an int. But after the
            sign ``":"``, it is an int or None (no label) for a label, and a list of ranges for an index. For a field of
            booleans, it is a bool. For all other keys, it is a text.
    """

    position: int
    key: str
    sign: str
    value: Any


class Group(NamedTuple):
    """Parts that are combined by ``"and"`` or ``"or"``, or the one part that ``"not"`` negates."""

    operator: str
    parts: list[Condition | Group]


def parse(text: str, fields: Mapping[str, str], others: Collection[str] = ()) -> Group:
    """Return a query as a group of parts that must all hold. For an empty query, the group has no parts.

    Args:
        text: The query.
        fields: Name of each extra field that has a column -> kind of the column.
        others: The extra fields without a column. Queries cannot compare such a field, and the error names the reason.

    Raises:
        OptionError: The query is wrong. The message has the position, and what is allowed.
    """
    if len(text) > _MOST_LETTERS:
        raise OptionError(f"the query has {len(text):,} letters; at most {_MOST_LETTERS:,} are allowed")
    parser = _Parser(text, fields, others)
    found = parser.alternatives(0)
    if parser.rest:
        parser.fail("a parenthesis is closed and not opened")
    return found if found.operator == "and" else Group("and", [found])


def query_error(position: int, what: str) -> OptionError:
    """Return the error for a mistake at a position in a query. Positions count from 1."""
    return OptionError(f"query, letter {position}: {what}")


class _Parser:
    def __init__(self, text: str, fields: Mapping[str, str], others: Collection[str]) -> None:
        self._text, self._fields, self._others = text, fields, others
        self._at = 0
        self._skip("")

    @property
    def rest(self) -> str:
        return self._text[self._at :]

    def fail(self, what: str) -> NoReturn:
        raise query_error(self._at + 1, what)

    def _skip(self, word: str) -> None:
        self._at += len(word)
        self._at += len(self.rest) - len(self.rest.lstrip())

    def alternatives(self, depth: int) -> Group:
        """Read conditions and ``or`` up to the end or a closing parenthesis."""
        groups = [self._conjunction(depth)]
        while self._keyword() == "or":
            self._skip("or")
            groups.append(self._conjunction(depth))
        if len(groups) == 1:
            return groups[0]
        if not all(group.parts for group in groups):
            self.fail("or needs conditions before and after it, such as class:cat or class:dog")
        return Group("or", [*groups])

    def _conjunction(self, depth: int) -> Group:
        parts: list[Condition | Group] = []
        while self.rest and (word := self._keyword()) not in ("or", ")"):
            if word == "and":
                if parts:
                    self._skip("and")
                if not parts or not self.rest:
                    self.fail("and needs conditions before and after it")
            parts.append(self._part(depth))
        return Group("and", parts)

    def _keyword(self) -> str:
        match = _KEYWORD.match(self.rest)
        return match[0].lower() if match else ""

    def _part(self, depth: int) -> Condition | Group:
        if depth > _DEEPEST:
            self.fail(f"parentheses and the word not may be nested at most {_DEEPEST} deep")
        word = self._keyword()
        if word == "not" or (self.rest[:1] == "-" and self.rest[1:2].strip()):
            self._skip(word or "-")
            if not self.rest:
                self.fail("not needs a condition after it, such as not class:cat")
            return Group("not", [self._part(depth + 1)])
        if word == "(":
            start = self._at
            self._skip("(")
            group = self.alternatives(depth + 1)
            if self._keyword() != ")":
                raise query_error(start + 1, "a parenthesis is opened and not closed")
            if not group.parts:
                raise query_error(start + 1, "the parentheses are empty")
            self._skip(")")
            return group
        if word:
            self.fail(f"{word} needs conditions before and after it; to find this word in names, quote it")
        return self._condition()

    def _condition(self) -> Condition:
        match = _CONDITION.match(self.rest) or _NAME_PART.match(self.rest)
        end = match.end() if match else 0
        if match is None or self.rest[end:].startswith('"'):
            self._at += end
            self.fail('a quote is opened and not closed; write it as in name:"a b"')
        position, word = self._at + 1, match[0]
        if len(match.groups()) == 3:
            key, sign, raw = match.groups()
            found = self._comparison(position, _unquoted(key), sign, raw)
        elif word.lower() in EVENTS:
            found = Condition(position, "event", ":", word.lower())
        elif self._kind(word) == "bool":
            found = Condition(position, PREFIX + word.removeprefix(PREFIX), "=", value=True)
        elif (key := _UNQUOTED_KEY.match(word)) and self._kind(key[0]) and not _CONDITION.match(f"{key[0]}="):
            self.fail(f'quote the name of the field: "{key[0]}"{word[key.end() :]}')
        elif what := self._why_no_name(word):
            self.fail(f"{what}; to find this text in names, quote it: {_quoted(word)}")
        else:
            found = Condition(position, "name", ":", _unquoted(word))
        self._skip(word)
        return found

    def _why_no_name(self, word: str) -> str:
        """Return why a word is probably a mistake; "" if the word may be a part of a name."""
        if form := own_form(word):
            return f"{short_repr(word, 50)} is no condition: {form}"
        keys = {key.lower() for key in (*_SIGNS, *self._fields, *self._others, *_FOREIGN_WORDS)}
        if word.lower() in keys or self.rest[len(word) :].startswith("("):
            words = [*word.lower().split("."), *self.rest[len(word) :].lower().split()[:1]]  # a.between(, a like
            forms = (_FOREIGN_WORDS[each] for each in words if each in _FOREIGN_WORDS)
            return f"{word} alone is no condition: {next(forms, _COMPARISONS)}"
        return ""

    def _kind(self, key: str) -> str | None:
        """Return the kind of a field, such as "int"; None if no field with this name has a column."""
        return None if key in _SIGNS else self._fields.get(key) or self._fields.get(key.removeprefix(PREFIX))

    def _comparison(self, position: int, key: str, sign: str, raw: str | None) -> Condition:
        sign = {"==": "=", "<>": "!="}.get(sign, sign)
        field = PREFIX + key.removeprefix(PREFIX)
        kind = self._kind(key)
        signs = _SIGNS_OF_KIND[kind] if kind else _SIGNS.get(key, ())
        if not signs and field.removeprefix(PREFIX) in self._others:
            what = "queries use fields whose values are all numbers, all booleans, or all texts of up to 2,000 bytes"
            raise query_error(position, f"{key} cannot be compared: {what}")
        if not signs:
            known = listed((*_SIGNS, *self._fields))
            quote = f'to find this text in names, quote it: "{key}{sign}{raw or ""}"'
            what = f"this store has no field {short_repr(key)}; a condition begins with one of {known}; {quote}"
            raise query_error(position, what)
        if sign not in signs:
            other = f": {'not ' * (sign == '!=')}{key}:{(raw or '').strip(_QUOTES)}" if sign in ("=", "!=") else ""
            raise query_error(position, f"use {' or '.join(signs)} after {key}, not {sign}{other}")
        value: Any = _unquoted(raw or "")
        if raw is None or (key == "name" and not value):  # every name contains ""
            raise query_error(position, f"{key}{sign} needs a value after it")
        quote = f"; for this text, write {key}{sign}{_quoted(value)}" if kind == "text" or key == "name" else ""
        if key not in ("class", "index") and (form := own_form(raw, "*?" if kind == "text" else "")):
            raise query_error(position, f"{short_repr(raw, 50)} is no value: {form}{quote}")
        if kind and raw.lower() in ("null", "none", "nan"):
            some = {"text": f'{key}~""', "bool": f"({key} or {key}=false)"}.get(kind, f"({key}<0 or {key}>=0)")
            raise query_error(position, f"to find records without a value, write not {some}{quote}")
        if kind == "bool":
            if value.lower() not in ("true", "false"):
                raise query_error(position, f"{key}{sign} needs true or false, got {short_repr(value, 50)}")
            value = value.lower() == "true"
        elif kind in ("int", "float") or (kind is None and sign != ":"):
            value = _number(position, key, sign, value)
        elif key == "label":
            value = _as_label(position, value)
        elif key == "index":
            value = _as_ranges(position, value)
        return Condition(position, field if kind else key, sign, value)


def _unquoted(raw: str) -> str:
    return re.sub(_QUOTED, lambda match: re.sub(r'\\(["\\])', r"\1", match[0][1:-1]), raw)


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def own_form(raw: str, also: str = "") -> str:
    """Return a hint if a condition has signs of other query languages, such as "write and" for &; otherwise "".

    Signs within quotes do not count. ``also`` contains further such signs.
    """
    plain = re.sub(_QUOTED, "", raw)
    if not _FOREIGN.search(plain) and not any(letter in plain for letter in also):
        return ""
    return next(form for letters, form in _OWN_FORMS.items() if not letters or any(one in plain for one in letters))


def _number(position: int, key: str, sign: str, text: str) -> float:
    match = _NUMBER.fullmatch(text)
    number = math.nan
    if match and (not match[2] or key == "bytes"):
        number = float(match[1]) * _UNITS[match[2].lower()]
        if re.fullmatch("[+-]?[0-9]+", text):
            number = int(text)  # floats are not exact from 2**53 on
    if not math.isfinite(number):
        such = f"{key}{sign}" + {"bytes": "5kB", "label": "3"}.get(key, f"256 or {key}{sign}1e6")
        remedy = f"; class:{text} finds a class by its name" if key == "label" else ""
        raise query_error(position, f"{key}{sign} needs a number, such as {such}, got {short_repr(text, 50)}{remedy}")
    return number


def _as_label(position: int, value: str) -> int | None:
    if value.lower() != "none" and not _INTEGER.fullmatch(value):
        raise query_error(position, f"a label is an integer or none, such as label:3, got {short_repr(value, 50)}")
    return None if value.lower() == "none" else int(value)


def _as_ranges(position: int, value: str) -> list[range]:
    if not _RANGES.fullmatch(value):
        what = "indices are integers and ranges, such as index:5 or index:1,5-9, got"
        raise query_error(position, f"{what} {short_repr(value, 50)}")
    bounds = [[int(bound) for bound in part.split("-")] for part in value.split(",")]
    if any(part[-1] < part[0] for part in bounds):
        what = "a range goes from the lower index to the higher one, such as 1-5, got"
        raise query_error(position, f"{what} {short_repr(value, 50)}")
    return [range(part[0], part[-1] + 1) for part in bounds]
