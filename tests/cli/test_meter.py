"""How far a command has come is shown: by a bar that fits the terminal, or by lines where there is none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest

import dbloader
from dbloader.cli import main
from dbloader.cli.meter import Meter
from tests.support.images import WAIT_S, command, plant_photos, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant_photos(tmp_path_factory.mktemp("meter") / "images", 300)


@pytest.fixture(scope="module")
def store(root: Path) -> Path:
    dbloader.convert(root, root.parent / "s.lmdb")
    return root.parent / "s.lmdb"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    def run(*arguments: str | Path) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["dbloader", *map(str, arguments)])
        with pytest.raises(SystemExit):
            main()
        printed = capfd.readouterr()
        return printed.out, printed.err

    return run


def test_without_a_terminal_a_line_comes_each_time_and_at_the_end(
    run: Callable[..., tuple[str, str]], root: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.cli.meter.EVERY_S", 0.0)
    place = tmp_path / "o.lmdb"
    for title, unit, arguments in (
        ("Converting", "images", ["convert", root, place]),
        ("Verifying", "records", ["verify", store]),
        ("Copying", "records", ["copy", store, tmp_path / "c.lmdb"]),
    ):
        stdout, stderr = run(*arguments)
        assert stdout
        lines = stderr.splitlines()
        of = rf"{title}: [\d,]+ of 300 {unit} \(\d+ %\)(, [\d,]+ {unit}/s)?(, [\d.]+ MB/s)?"
        begun = [line for line in lines if not line.startswith("Looking for images: ")]
        assert len(begun) > 2
        for line in begun[:-1]:
            assert re.fullmatch(rf"{of}(, \d\d:\d\d left)?", line), line
        assert re.fullmatch(rf"{of}, in \d\d:\d\d", begun[-1]), begun[-1]
        assert f"{title}: 300 of 300 {unit} (100 %)" in begun[-1]
        assert "\r" not in stderr
        assert "█" not in stderr
    stderr = run("warm", store)[1]
    assert re.search(r"^Warming: [\d.]+ kB of [\d.]+ kB \(100 %\), .*, in 00:00$", stderr, re.MULTILINE)


def test_what_is_done_soon_prints_no_line(
    run: Callable[..., tuple[str, str]], root: Path, store: Path, tmp_path: Path
) -> None:
    for arguments in (
        ["convert", root, tmp_path / "o.lmdb"],
        ["verify", store],
        ["copy", store, tmp_path / "c.lmdb"],
    ):
        assert run(*arguments)[1] == ""


def test_what_fails_ends_with_its_error_and_quiet_prints_no_line(
    run: Callable[..., tuple[str, str]], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.cli.meter.EVERY_S", 0.0)
    assert run("verify", store, "--quiet") == ("", "")
    data = bytearray(store.read_bytes())
    with dbloader.open_store(store) as opened:
        image = opened[250].image
    assert isinstance(image, bytes)
    data[data.index(image) + len(image) // 2] ^= 1
    damaged = tmp_path / "d.lmdb"
    damaged.write_bytes(data)
    lines = run("verify", damaged)[1].splitlines()
    assert lines[-1].startswith("Error: record ")
    assert not any(", in " in line for line in lines)


def test_lines_come_every_thirty_seconds(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    clock = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    with Meter("Looking for images", "images") as meter:
        for second in range(1, 301):
            clock += 1
            if second <= 60:
                meter.update(100 * second, None)
            else:
                meter.update(1000 + 50 * (second - 61), 20_000, title="Converting", nbytes=5_000_000 * (second - 61))
    lines = capfd.readouterr().err.splitlines()
    assert lines[:3] == [
        "Looking for images: 3,000 images, 100 images/s",
        "Looking for images: 6,000 images, 100 images/s",
        "Converting: 2,450 of 20,000 images (12 %), 50 images/s, 5.0 MB/s, 05:51 left",
    ]
    assert lines[-1] == "Converting: 12,950 of 20,000 images (64 %), 50 images/s, 5.0 MB/s, in 03:59"
    assert len(lines) == 11


def frames(columns: int, *arguments: str | Path) -> list[str]:
    """What a terminal of that width is shown, one after another."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    shown = b""
    try:
        with running(command(*arguments), stdout=subprocess.DEVNULL, stderr=its) as process:
            os.close(its)
            with contextlib.suppress(OSError):  # as Linux says that the other end is closed
                while part := os.read(ours, 65536):
                    shown += part
            assert process.wait(WAIT_S) == 0
    finally:
        os.close(ours)
    return [frame for frame in re.split(r"[\r\n]", shown.decode()) if frame.strip()]


@pytest.mark.parametrize("columns", [120, 80, 50, 40, 30, 20, 8])
def test_a_bar_fits_the_terminal_and_nothing_of_it_is_cut(store: Path, tmp_path: Path, columns: int) -> None:
    shown = frames(columns, "copy", store, tmp_path / "c.lmdb")
    layouts = (
        r"Copying: +\d+%\|.*\| \d+/300 \[[\d:]+<[\d:?]+, +(\?|[\d.]+) records/s\]",
        r"(Copying: )? *\d+% \d+/300 \[[\d:?]+, +(\?|[\d.]+) records/s\]",
        r" *\d+% \d+/300 \[[\d:?]+\]",
        r" *\d+% \[[\d:?]+\]",
        r" *\d+%",
        r"(Copying: )?0( records)?( \[00:00, \? records/s\])?",  # before the first call
    )
    for frame in shown:
        assert len(frame) <= columns
        assert any(re.fullmatch(layout, frame.strip()) for layout in layouts), frame
    assert "100%" in shown[-1]


@pytest.mark.parametrize("columns", [100, 50])
def test_the_bar_of_a_conversion_fits_too(root: Path, tmp_path: Path, columns: int) -> None:
    shown = frames(columns, "convert", root, tmp_path / "c.lmdb")
    assert all(len(frame) <= columns for frame in shown)
    rate = r"[\d.]+ ?images/s"
    whole = (
        rf"Converting: 100%\|.*300/300 \[.*{rate}, [\d.]+ MB/s\]"
        if columns > 80
        else rf"(Converting: )?100% 300/300 \[00:00, {rate}\]"
    )
    assert re.fullmatch(whole, shown[-1].strip()), shown[-1]
