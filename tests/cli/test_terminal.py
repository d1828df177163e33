"""What a person at a terminal sees beyond the results: the next step, colors where wanted, lines that fit, and Tab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dbloader import convert
from tests.support.images import WAIT_S, plant_photos, running
from tests.support.shell import on_terminal, open_terminal

if TYPE_CHECKING:
    from tests.support.shell import Shell

BIN = Path(sys.executable).parent


# The next step


@pytest.mark.slow
def test_commands_that_make_a_store_end_with_the_command_that_shows_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_the_next_step_is_told_neither_to_a_pipe_nor_with_quiet_or_json(
    shell: Shell, root: Path, place: Path, option: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if option is not None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "dbloader view" not in shell("convert", root, place, *filter(None, [option])).stdout


# Colors and width


@pytest.mark.slow
def test_no_picture_is_drawn_where_colors_are_not_wanted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "")  # an empty one asks for nothing
    assert "\x1b[38;2;" in on_terminal("show", store, "0", output=True).stderr
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(name, value)
            shown = on_terminal("show", store, "0", output=True)
        assert "0000.jpg" in shown.stderr
        assert "\x1b" not in shown.stderr


@pytest.mark.slow
def test_a_terminal_that_cannot_go_back_in_a_line_gets_no_bar(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert on_terminal("verify", store).stderr == ""


@pytest.mark.slow
def test_the_bars_of_classes_fit_a_narrow_terminal(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(plant_photos(tmp_path / "images", 6, ("cat", "a class of some length")), place)
    monkeypatch.setenv("COLUMNS", "40")  # some library has set it to 80
    lines = on_terminal("info", place, columns=40, output=True).stderr.splitlines()
    bars = [line for line in lines if "█" in line]
    assert len(bars) == 2
    assert max(map(len, bars)) == 39


# Completion in other shells than bash, which tests/cli/test_main.py asks


@pytest.fixture
def completing(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "train.lmdb").touch()
    return {"cwd": tmp_path, "env": {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="the shell fish is not installed")
def test_tab_completes_commands_options_and_places_in_fish(completing: dict[str, object]) -> None:
    script = "_DBLOADER_COMPLETE=fish_source dbloader | source\n" + "\n".join(
        f"complete -C 'dbloader {line}'" for line in ("ver", "convert --on-", "info tr")
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=True, **completing  # type: ignore[call-overload]
    )  # fmt: skip
    words = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert words == ["verify", "--on-bad", "--on-damaged", "train.lmdb"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="the shell zsh is not installed")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("ver", "dbloader verify "), ("convert --on-d", "--on-damaged "), ("info tr", "train.lmdb ")],
)
def test_tab_completes_commands_options_and_places_in_zsh(
    completing: dict[str, object], typed: str, completed: str
) -> None:
    ours, its = open_terminal()
    try:
        with running(["zsh", "-f", "-i"], stdin=its, stdout=its, stderr=its, **completing) as process:
            os.close(its)
            os.write(ours, b'autoload -Uz compinit; compinit -D; eval "$(_DBLOADER_COMPLETE=zsh_source dbloader)"\n')
            os.write(ours, f"dbloader {typed}\t".encode())
            shown = ""
            with suppress(OSError):  # raised on Linux when the other end is closed
                while completed not in shown and (part := os.read(ours, 65536)):
                    shown += part.decode()
            assert completed in shown
            process.kill()
    finally:
        os.close(ours)
