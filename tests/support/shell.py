"""Run the command line in this process or in a separate terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from dbloader.cli import main
from tests.support.images import WAIT_S, Outcome, command, running


class Shell:
    """Runs the command line in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *arguments: object) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["dbloader", *map(str, arguments)])
        self._capfd.readouterr()
        with pytest.raises(SystemExit, match=r"^\d+$") as caught:
            main()
        stdout, stderr = self._capfd.readouterr()
        assert isinstance(caught.value.code, int)
        return Outcome(caught.value.code, stdout, stderr)


def check_error(outcome: Outcome, message: str, status: int = 2) -> None:
    """Check that a command printed one line on stderr, nothing else, and exited with a status."""
    assert outcome.status == status
    assert outcome.stdout == ""
    assert re.fullmatch(rf"Error: .*(?:{message}).*\n", outcome.stderr), outcome.stderr


def open_terminal() -> tuple[int, int]:
    """Open a terminal, and return our end and the program's end. Skip the test if no terminal can be opened."""
    try:
        return pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal device (/dev/ptmx) can be opened here: {error}")


def on_terminal(*arguments: str | Path, columns: int = 100, output: bool = False, code: str = "") -> Outcome:
    """Run a command, or Python code with arguments, whose stderr is a terminal of this width.

    With ``output``, stdout is the terminal too.
    """
    line = [sys.executable, "-c", code, *arguments] if code else command(*arguments)
    ours, its = open_terminal()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    try:
        with running(line, stdout=its if output else subprocess.PIPE, stderr=its) as process:
            os.close(its)
            shown = b""
            with suppress(OSError):  # raised on Linux when the other end is closed
                while part := os.read(ours, 65536):
                    shown += part
            stdout, _ = process.communicate(timeout=WAIT_S)
    finally:
        os.close(ours)
    return Outcome(process.returncode, stdout or "", shown.decode())
