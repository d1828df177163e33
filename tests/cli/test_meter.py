"""A terminal shows progress as a bar. Elsewhere, progress is printed as lines."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from dbloader import convert, open_store
from dbloader.conversion.meter import Meter
from tests.support.shell import Shell, on_terminal

LINE = r"(Converting|Verifying|Copying): +\d+% \d+/12 \[.*(images|records)/s.*\]"


def test_progress_is_printed_at_intervals_and_at_the_end(
    shell: Shell, root: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.conversion.meter.EVERY_S", 1e-9)
    for arguments in (["convert", root, tmp_path / "o.lmdb"], ["verify", store]):
        check_progress(shell, *arguments)


def check_progress(shell: Shell, *arguments: object) -> None:
    outcome = shell(*arguments)
    assert outcome.status == 0
    lines = [line for line in outcome.stderr.splitlines() if not line.startswith("Looking for images: ")]
    assert len(lines) > 1
    assert all(re.fullmatch(LINE, line) for line in lines), lines
    assert "100% 12/12" in lines[-1]


def test_error_message_is_printed_after_progress(shell: Shell, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.conversion.meter.EVERY_S", 1e-9)
    assert shell("verify", store, "--quiet").stderr == ""
    data = bytearray(store.read_bytes())
    with open_store(store) as opened:
        image = opened[11].image
    assert isinstance(image, bytes)
    data[data.index(image) + len(image) // 2] ^= 1
    store.write_bytes(data)
    lines = shell("verify", store).stderr.splitlines()
    assert lines[-1].startswith("Error: record ")
    assert "100%" in lines[-2]  # verify went on after the damaged record


def test_printed_rate_excludes_the_search_and_earlier_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = 1000.0
    monkeypatch.setattr("tqdm.std.time", lambda: clock)
    monkeypatch.setattr("time.time", lambda: clock)
    with Meter("Looking for images", "images") as meter:
        for second in range(1, 301):
            clock += 1
            if second <= 60:
                meter.update(100 * second, None)
            else:
                meter.update(1000 + 50 * (second - 61), 20_000, title="Converting", nbytes=5_000_000 * (second - 61))
    lines = capfd.readouterr().err.splitlines()
    assert lines[:3] == [
        "Looking for images: 3000 images [00:30, 100.00 images/s]",
        "Looking for images: 6000 images [01:00, 100.00 images/s]",
        "Converting:  12% 2500/20000 [00:30<05:50, 50.00 images/s, 5.0 MB/s]",
    ]
    assert lines[-1] == "Converting:  65% 12950/20000 [03:59<02:21, 50.00 images/s, 5.0 MB/s]"


def test_each_step_has_its_own_total(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dbloader.conversion.meter.EVERY_S", 1e-9)
    with Meter("Verifying", "records") as meter:
        for total in (10, 40):
            for done in (0, total // 2, total):
                meter.update(done, total)
    shown = dict.fromkeys(re.findall(r"(\d+% \d+/\d+) \[", capfd.readouterr().err))
    assert [*shown] == ["0% 0/10", "50% 5/10", "100% 10/10", "50% 20/40", "100% 40/40"]


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_quiet_and_json_hide_the_progress(
    shell: Shell, root: Path, place: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert shell("convert", root, place, option).stderr == ""


@pytest.mark.slow
def test_progress_bar_fits_the_terminal(store: Path) -> None:
    outcome = on_terminal("verify", store, columns=30)
    assert outcome.status == 0
    frames = [frame for frame in re.split(r"[\r\n]", outcome.stderr) if frame.strip()]
    assert all(len(frame) <= 30 for frame in frames)
    assert re.fullmatch(r"Verifying: 100%\|█\| 12/12.*", frames[-1].strip()), frames[-1]


@pytest.mark.slow
def test_dumb_terminal_gets_no_bar(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert on_terminal("verify", store).stderr == ""


CONVERT = "import sys; from dbloader import convert; print(convert(sys.argv[1], sys.argv[2]{}).records)"


@pytest.mark.slow
def test_convert_in_python_shows_a_bar_on_a_terminal_only(root: Path, place: Path, tmp_path: Path) -> None:
    shown = on_terminal(root, place, code=CONVERT.format(""))
    assert (shown.status, shown.stdout) == (0, "12\n")
    assert re.search(r"Converting: 100%\|█+\| 12/12 ", shown.stderr)
    silent = on_terminal(root, tmp_path / "silent.lmdb", code=CONVERT.format(", progress=None"))
    assert (silent.status, silent.stdout, silent.stderr) == (0, "12\n", "")


def test_convert_in_python_shows_nothing_in_a_short_log(
    root: Path, place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = {*threading.enumerate()}
    convert(root, place)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("dbloader.conversion.meter.EVERY_S", 1e-9)
    convert(root, place, overwrite=True)
    assert "Converting: 100% 12/12 [" in capfd.readouterr().err
    monkeypatch.setattr("sys.stderr", None)  # as in a program without a console
    assert convert(root, place, overwrite=True).records == 12
    wrong: Any = True
    with pytest.raises(TypeError, match="progress must be 'bar', a function or None, got True"):
        convert(root, place, overwrite=True, progress=wrong)
    assert {*threading.enumerate()} <= threads  # a process with threads is hard to fork
