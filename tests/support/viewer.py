"""The viewer, as people start it, and a browser without a screen."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from tests.support.images import WAIT_S, command, running

if TYPE_CHECKING:
    from collections.abc import Iterator


class Viewer(NamedTuple):
    """A running ``dbloader view``: its process, the link and the lines that it has printed."""

    process: subprocess.Popen[str]
    link: str
    lines: list[str]

    @property
    def address(self) -> str:
        return self.link.partition("/?")[0]

    def stop(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit status and what else it has printed, on both streams."""
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, rest


@contextmanager
def viewer(*arguments: Any, **environment: str) -> Iterator[Viewer]:
    """Run ``dbloader view`` with some arguments; a variable that is empty is not set."""
    variables = {name: value for name, value in {**os.environ, **environment}.items() if value}
    words = command("view", *map(str, arguments))
    with running(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("Ctrl-C"):
                break
        else:
            raise AssertionError(f"it has ended: {lines}")
        (link,) = [line.removeprefix("Open ") for line in lines if line.startswith("Open ")]
        yield Viewer(process, link, lines)


@contextmanager
def browser(link: str) -> Iterator[httpx.Client]:
    """A client that has opened a link, and has its cookie."""
    with httpx.Client(base_url=link.partition("/?")[0], timeout=WAIT_S, trust_env=False) as client:
        assert client.get(link).status_code == 303
        yield client
