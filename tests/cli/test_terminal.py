"""In a terminal, commands also print colors and the next step, and shorten lines to fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbloader import convert
from tests.support.images import plant_photos
from tests.support.shell import Shell, on_terminal


@pytest.mark.slow
def test_convert_and_copy_print_the_view_command(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, viewed in (
        (["convert", root, "a b.lmdb"], "'a b.lmdb'"),
        (["copy", "a b.lmdb", "c.lmdb"], "c.lmdb"),
        (["copy", "c.lmdb", "train.lmdb", "val.lmdb", "--split", "0.5,0.5"], "train.lmdb val.lmdb"),
        (["copy", "c.lmdb", "d.lmdb", "--skip-damaged"], "d.lmdb"),
    ):
        shown = on_terminal(*arguments, output=True)
        assert shown.status == 0
        assert shown.stderr.splitlines()[-1] == f"Look at it: dbloader view {viewed}"


@pytest.mark.parametrize("option", ["--quiet", "--json", None])
def test_next_step_is_not_printed_to_a_pipe_or_with_quiet_or_json(
    shell: Shell, root: Path, place: Path, option: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if option is not None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "dbloader view" not in shell("convert", root, place, *filter(None, [option])).stdout


@pytest.mark.slow
def test_dumb_terminal_gets_no_bar(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert on_terminal("verify", store).stderr == ""


@pytest.mark.slow
def test_bars_of_classes_fit_a_narrow_terminal(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(plant_photos(tmp_path / "images", 6, ("cat", "a class of some length")), place)
    monkeypatch.setenv("COLUMNS", "40")  # as if a library had set the width to 80
    lines = on_terminal("info", place, columns=40, output=True).stderr.splitlines()
    bars = [line for line in lines if "█" in line]
    assert len(bars) == 2
    assert max(map(len, bars)) == 39
