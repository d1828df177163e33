"""Every command except `view` has --json, and then prints only JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dbloader.conversion.parts.part import convert_part
from dbloader.conversion.parts.publish import publish
from tests.support.conversion import plan_conversion
from tests.support.images import run, subcommands

# The test replaces STORE by a store, NEW by a new place, FOLDER by a folder of images, PLAN by a plan with its part,
# and SHARDS by a store of shards.
ARGUMENTS = {
    "cache": ("NEW", "--fill", "SHARDS"),
    "convert": ("FOLDER", "NEW"),
    "show": ("STORE", "0"),
    "copy": ("STORE", "NEW"),
    "export": ("STORE", "NEW"),
    "plan": ("FOLDER", "NEW", "--shards", "2"),
    "part": ("PLAN", "0"),
    "parts": ("PLAN",),
    "publish": ("PLAN",),
    "bench": ("STORE", "--seconds", "0.01", "--rounds", "1", "--workers", "1"),
}
LINES = ("ls",)  # commands that print one line of JSON for each record


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*subcommands()} - {"view"}))
def test_command_prints_only_valid_json(name: str, root: Path, store: Path, tmp_path: Path) -> None:
    planned = str(tmp_path / "planned")
    words = {"STORE": str(store), "NEW": str(tmp_path / "new"), "FOLDER": str(root), "PLAN": planned, "SHARDS": planned}
    if {"PLAN", "SHARDS"} & {*ARGUMENTS.get(name, ())}:
        plan_conversion(root, planned, 1)
        convert_part(planned, 0)
    if name == "cache":
        publish(planned)
    arguments = [words.get(word, word) for word in ARGUMENTS.get(name, ("STORE",))]
    outcome = run(name, *arguments, "--json")
    assert (outcome.stderr, outcome.stdout.isascii()) == ("", True)
    for text in outcome.stdout.splitlines() if name in LINES else [outcome.stdout]:
        assert isinstance(json.loads(text, parse_constant=pytest.fail), (dict, list))
