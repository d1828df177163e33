"""The viewer as a process, and HTTP clients for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from typing import Any, NamedTuple

import httpx

from tests.support.images import WAIT_S, command, running

END_OF_LINES = "Ctrl-C ends the viewer."


class Viewer(NamedTuple):
    """A running ``dbloader view``, and the lines that it has printed."""

    process: subprocess.Popen[str]
    lines: list[str]

    @property
    def link(self) -> str:
        (link,) = [line.removeprefix("Open ") for line in self.lines if line.startswith("Open ")]
        return link

    @property
    def port(self) -> int:
        return httpx.URL(self.link).port or 80

    def next_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """Press Ctrl-C, or send a signal; return the exit status and the rest of the output."""
        if number == signal.SIGINT:  # a terminal sends the signal to all processes of a command
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, rest


@contextmanager
def viewer(*arguments: Any, **environment: str) -> Iterator[Viewer]:
    """Run ``dbloader view``. Empty environment variables are removed."""
    variables = {name: value for name, value in {**os.environ, **environment}.items() if value}
    options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with running(command("view", *map(str, arguments)), env=variables, **options) as process:
        shown = Viewer(process, [])
        while shown.lines[-1:] != [END_OF_LINES]:
            shown.lines.append(shown.next_line())
            assert shown.lines[-1], f"it has ended: {shown.lines}"
        yield shown
        if process.poll() is None:
            process.terminate()
            process.wait(WAIT_S)


@contextmanager
def browser(link: str) -> Iterator[httpx.Client]:
    """Yield a client that has opened a link and has its cookie."""
    with httpx.Client(base_url=link.partition("/?")[0], timeout=WAIT_S, trust_env=False) as client:
        assert client.get(link).status_code == 303
        yield client


class Answer(NamedTuple):
    """The answer to a request; the names of its headers are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(
    port: int, target: str | bytes = "/", *lines: str, method: str = "GET", host: str | None = "127.0.0.1"
) -> Answer:
    """Send a request with exactly these bytes and further header lines."""
    hosts = [] if host is None else [f"Host: {host}"]
    first = method.encode() + b" " + (target.encode("latin-1") if isinstance(target, str) else target) + b" HTTP/1.1"
    rest = "\r\n".join(["", *hosts, *lines, "Connection: close", "", ""])
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        # the viewer may answer before it has read the whole request
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(first + rest.encode("latin-1"))
        with HTTPResponse(connection, method=method) as answer:
            answer.begin()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            assert len(headers) == len(answer.getheaders()), "a header occurs twice"
            return Answer(answer.status, headers, answer.read())
