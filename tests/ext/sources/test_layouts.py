"""Any layout of files is understood, or refused or warned of with the option that decides. Ordinary ones are quiet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.layouts.base import Answer
from tests.support.layouts.catalog import LAYOUTS
from tests.support.layouts.outcome import REFUSED, RIGHT, WARNED, try_layout

ORDINARY = [name for name, layout in LAYOUTS.items() if layout.kind == 0]
RECORDED = json.loads(Path(__file__).with_name("layouts.json").read_text())
OTHERWISE = {
    "00 TSV with captions, ids and flags": "pandas makes 7 of 007",
    "09 Places365, the path is the class": "ImageFolder takes the outer folders",
    "16 image_id,label,score, files in a subfolder": "pandas makes 427214 of 0000427214",
    "19 YOLO polygons beside boxes": "Ultralytics refuses a box beside a polygon",
}
"""Layouts whose tool gives another answer than the right one, and why."""


def test_catalog_has_every_kind_three_times_and_twenty_ordinary_layouts() -> None:
    kinds = [layout.kind for layout in LAYOUTS.values()]
    assert {kind: kinds.count(kind) for kind in range(1, 33)} == dict.fromkeys(range(1, 33), 3)
    assert len(ORDINARY) == 20


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_layout_is_understood_or_the_message_names_what_decides(name: str, tmp_path: Path) -> None:
    outcome = try_layout(LAYOUTS[name], tmp_path)
    good = (RIGHT,) if name in ORDINARY else (RIGHT, WARNED, REFUSED)
    assert outcome.word in good, outcome


@pytest.mark.parametrize("name", [name for name in sorted(LAYOUTS) if LAYOUTS[name].tool])
def test_answer_is_what_the_tool_of_the_user_gives(name: str, tmp_path: Path) -> None:
    answer, recorded = LAYOUTS[name].make(tmp_path), RECORDED[name]
    assert recorded["tool"].startswith(LAYOUTS[name].tool)
    assert _agrees(answer, recorded) == (name not in OTHERWISE)


def _agrees(answer: Answer, recorded: dict[str, Any]) -> bool:
    """Return whether everything that a tool has given is in the answer."""
    fields = recorded.get("fields", {})
    labels = {_last(name): label for name, label in answer.labels.items()}
    several = {name: {key for key, value in fields[name].items() if value == 1} for name in fields}
    boxes = {_last(name): [*found] for name, found in answer.boxes.items()}
    given = {_last(name): values for name, values in answer.fields.items()}
    return (
        "refuses" not in recorded
        and all(_name_of(labels, name) == str(label) for name, label in recorded.get("labels", {}).items())
        and all(several[name] == {*label} for name, label in labels.items() if isinstance(label, tuple))
        and all(_same_boxes(boxes[name], found) for name, found in recorded.get("boxes", {}).items())
        and all(fields[name].items() >= given[name].items() for name in fields.keys() & given.keys())
        and recorded.get("sizes", {}).keys() <= {_last(name) for name in answer.images}
    )


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _name_of(labels: dict[str, Any], name: str) -> str:
    """Return the label of a file, whose name may lack its extension."""
    return next((str(label) for key, label in labels.items() if name in (key, key.rpartition(".")[0])), "no such file")


def _same_boxes(boxes: list[Any], recorded: list[Any]) -> bool:
    labels = [box[0] for box in boxes] == [box[0] for box in recorded]
    return labels and np.allclose([box[1:] for box in boxes], [box[1:] for box in recorded])
