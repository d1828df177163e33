"""Stores of records of all kinds, and random queries with the same conditions in plain Python."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dbloader import Record
from dbloader.ext.queries.parse import EVENTS
from tests.support.stores import store_records

CLASSES = ("cat", "maine coon", 'a "quoted" \\ one', "class:dog", "", " blank ", "Katze ü")
WORDS = ("cat", "_01", "ü", "x y", "a,b", 'q"q', "é\\", "-dash", "line\nbreak", "damaged", "width<9")
FORMATS = ("JPEG", "PNG", "WEBP")
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip


def some_records(count: int, seed: int, *, labels: tuple[int, int] = (0, len(CLASSES) - 1)) -> list[Record]:
    """Return records with and without names, labels, sizes and images. Some names are not unique."""
    rng = random.Random(seed)
    records = []
    for _ in range(count):
        width, height = (int(rng.lognormvariate(5, 1)) + 1 for _ in range(2))
        values: dict[str, Any] = {
            "name": f"{rng.choice(WORDS)}/{rng.choice(WORDS)}{rng.randrange(count)}",
            "label": rng.randint(*labels),
            "image": rng.randbytes(rng.choice((1, 9, 200))),
            "format": rng.choice(FORMATS),
            "width": width,
        }
        for lost in rng.sample([*values], rng.choice((0, 0, 0, 1, 2))):
            del values[lost]
        fields = {
            "score": rng.choice((rng.random(), 0.5, 1, math.nan)),
            "n": rng.choice((rng.randrange(9), 2**60 + 1, None)),
            "note": rng.choice((*WORDS, "Red CAR", "")),
            "ok": rng.random() < 0.5,
        }
        fields = {name: value for name, value in fields.items() if rng.random() < 0.8}
        records.append(Record(**values, height=height if "width" in values else None, fields=fields))
    return records


def some_events(records: list[Record], seed: int) -> list[dict[str, str]]:
    """Return lines of a report: some about records, two about the same record, and one about a rejected file."""
    rng = random.Random(seed)
    names = [record.name for record in records if record.name]
    some = rng.sample(names, min(len(names), 40))
    lines = [{"name": name, "event": rng.choice(("damaged", "repaired", "odd")), "reason": "so"} for name in some]
    twice = [{**line, "event": "repaired"} for line in lines[:3]]
    return [*lines, *twice, {"name": "gone.jpg", "event": "rejected", "reason": "no image"}]


def write_records(
    place: str | Path, records: list[Record], events: list[dict[str, str]] | None = None, classes: Any = CLASSES
) -> None:
    store_records(place, records, events=events or (), classes=classes)


def random_query(rng: random.Random, length: int, events: list[dict[str, str]]) -> tuple[str, Any]:
    """Return a query, and a function that returns whether the record at an index matches the query."""
    words = [_group(rng, length, events) for _ in range(rng.choice((1, 1, 2, 3)))]
    text = rng.choice(("  ", " and ")).join(text for text, _ in words)
    if rng.random() < 0.2:
        other, also = random_query(rng, length, events)
        return f"{text} or {other}", lambda i, record: all(holds(i, record) for _, holds in words) or also(i, record)
    return text, lambda index, record: all(holds(index, record) for _, holds in words)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _group(rng: random.Random, length: int, events: list[dict[str, str]]) -> tuple[str, Any]:
    words = [_random_word(rng, length, events) for _ in range(rng.choice((1, 2, 3)))]
    if len(words) == 1 or rng.random() < 0.6:
        return words[0]
    minus = rng.choice(("", "-", "not "))
    text = f"{minus}( {' or '.join(text for text, _ in words)})"
    return text, lambda index, record: any(holds(index, record) for _, holds in words) != bool(minus)


def _random_word(rng: random.Random, length: int, events: list[dict[str, str]]) -> tuple[str, Any]:
    text, holds = rng.choice((_class, _label, _size, _name, _pattern, _index, _event, _field, _field))(
        rng, length, events
    )
    if rng.random() < 0.3:
        return f"-{text}", lambda index, record: not holds(index, record)
    return text, holds


def _class(rng: random.Random, *_: Any) -> tuple[str, Any]:
    label = rng.randrange(len(CLASSES))
    return f"class:{quoted(CLASSES[label])}", lambda _, record: record.label == label


def _label(rng: random.Random, *_: Any) -> tuple[str, Any]:
    label = rng.choice((None, 0, 3, -5, -(2**15), 70_000, 10**17))
    return f"label:{'none' if label is None else label}", lambda _, record: record.label == label


def _size(rng: random.Random, *_: Any) -> tuple[str, Any]:
    what, sign = rng.choice(("width", "height", "aspect", "bytes")), rng.choice([*_SIGNS])
    number = rng.choice(("0", "1", "9", "150", "1.5", "1e2", ".75", "-3", "1e300", "200", "70000.5"))

    def holds(_: int, record: Record) -> bool:
        width, height, image = record.width, record.height, record.image
        aspect = width / height if width and height else None
        value = {"width": width, "height": height, "aspect": aspect, "bytes": len(image or b"") or None}[what]
        return value is not None and _SIGNS[sign](value, float(number))

    return f"{what}{sign}{number}", holds


def _name(rng: random.Random, *_: Any) -> tuple[str, Any]:
    part = rng.choice((*WORDS, "/", "1", "cat/cat", "zebra", "12"))
    bare = rng.random() < 0.3 and part.isalnum() and part not in EVENTS
    return part if bare else f"name:{quoted(part)}", lambda _, record: part in (record.name or "")


def _pattern(rng: random.Random, *_: Any) -> tuple[str, Any]:
    part = rng.choice(("cat", "ü", "q", "[a]"))
    text, fits = rng.choice(((f"{part}*", str.startswith), (f"*{part}", str.endswith), (f"*{part}*?", _before_end)))
    return f"name:{quoted(text) if '[' in text else text}", lambda _, record: fits(record.name or "", part)


def _before_end(name: str, part: str) -> bool:
    return part in name[:-1]


def _field(rng: random.Random, *_: Any) -> tuple[str, Any]:
    name, sign = rng.choice(("score", "n", "note", "ok")), rng.choice([*_SIGNS])
    if name == "ok":
        value = rng.random() < 0.5
        sign = rng.choice(("=", "!="))
        text = "ok" if value and sign == "=" and rng.random() < 0.5 else f"ok{sign}{str(value).lower()}"
        return text, lambda _, record: "ok" in record.fields and _SIGNS[sign](record.fields["ok"], value)
    if name == "note":
        word = rng.choice((*WORDS, "red car"))
        if rng.random() < 0.5:
            return f"note ~ {quoted(word)}", lambda _, record: word.lower() in (record.fields.get("note") or "").lower()
        sign = rng.choice(("=", "!="))
        return (
            f"note{sign}{quoted(word)}",
            lambda _, record: bool(record.fields.get("note")) and _SIGNS[sign](record.fields["note"], word),
        )
    number = rng.choice((0.5, 1, 3, 2**60, 2**60 + 1, -1))
    known = (int, float)
    return (
        f"{name} {sign} {number}",
        lambda _, record: (
            isinstance(value := record.fields.get(name), known) and value == value and _SIGNS[sign](value, number)
        ),
    )


def _index(rng: random.Random, length: int, _: Any) -> tuple[str, Any]:
    one, two = sorted(rng.randrange(length + 5) for _ in range(2))
    return f"index:{one}-{two},3,{10**17}", lambda index, _: index == 3 or one <= index <= two


def _event(rng: random.Random, _: int, events: list[dict[str, str]]) -> tuple[str, Any]:
    event = rng.choice(("damaged", "repaired", "rejected", "odd"))
    names = {line["name"] for line in events if line["event"] == event}
    return event if event in EVENTS else f"event:{event}", lambda _, record: record.name in names
