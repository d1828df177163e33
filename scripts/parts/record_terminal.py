"""Run a newcomer's first commands in a terminal, and draw what it shows as an SVG that moves.

    pip install pyte
    python scripts/parts/record_terminal.py docs/images/first-minutes.svg

Each command is really run, in a folder of photographs. Only the waiting is shortened: a line appears at most two
seconds after the one above it. The recording begins with the conversion already done, because an empty terminal would
show nothing. Where nothing may move (prefers-reduced-motion, or a program that shows no CSS), the
picture shows the end of the recording.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import pyte

HERE = Path(__file__).resolve().parents[2]
COLUMNS, SHOWN = 92, 27  # characters, lines
CELL, LINE, MARGIN = 8.4, 19, 16  # pixels
READ_S, END_S, SLOWEST_S = 1.6, 6.0, 2.0  # seconds before a command, at the end, and between two lines
STILL_S = 5.0  # seconds in which the finished conversion stands still
TRAIN = """\
from dbloader import LMDBDataset, create_loader

dataset = LMDBDataset("train.lmdb")
loader = create_loader(dataset, batch_size=64, input_size=224, is_training=True)
for images, labels in loader:
    pass  # your training step
print(tuple(images.shape), images.dtype, loader.stats().samples, "samples")
"""
COMMANDS = (
    "ls photographs",
    "dbloader convert photographs/ train.lmdb",
    "dbloader info train.lmdb",
    "cat train.py",
    "python train.py",
    "dbloader view train.lmdb --no-open",
)
DONE = 2  # commands that are already done when the recording begins
UNTIL = {"dbloader view": "Ctrl-C"}  # a command that runs until Ctrl-C, and the output to wait for before Ctrl-C


class Shown(NamedTuple):
    """A line of the terminal: when it appeared, in seconds, and its pieces (text, color, bold)."""

    at: float
    pieces: list[tuple[str, str, bool]]


def record(folder: Path) -> list[Shown]:
    screen = pyte.Screen(COLUMNS, 300)
    stream = pyte.ByteStream(screen)
    appeared: dict[int, float] = {}
    now = 0.0

    def feed(data: bytes) -> None:
        stream.feed(data)
        for row in range(screen.cursor.y + 1):
            if screen.display[row].strip():
                appeared.setdefault(row, now)

    for number, command in enumerate(COMMANDS):
        if number == DONE:
            appeared = dict.fromkeys(appeared, 0.0)
            now = STILL_S
        feed(b"\x1b[32m$ \x1b[0m\x1b[1m" + command.encode() + b"\x1b[0m\r\n")
        now += READ_S / 2
        for waited, data in output(command, folder):
            now += min(waited, SLOWEST_S)
            feed(data.replace(os.fsencode(folder), b"/home/you"))
        now += READ_S
        feed(b"\r\n" if command != COMMANDS[-1] else b"")
    last = max(appeared)
    return [Shown(appeared.get(row, -1), pieces(screen.buffer[row])) for row in range(last + 1)]


def output(command: str, folder: Path) -> list[tuple[float, bytes]]:
    """Run a command in a separate terminal. Return its pieces of output, each with the seconds before it."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TERM": "xterm-256color", "PYTHONPATH": str(HERE), "DISPLAY": ":0"}
    process = subprocess.Popen(
        command.split(), cwd=folder, env=environment, stdin=side, stdout=side, stderr=side, start_new_session=True
    )
    os.close(side)
    end = next((text for start, text in UNTIL.items() if command.startswith(start)), None)
    written: list[tuple[float, bytes]] = []
    before = time.monotonic()
    while True:
        try:
            data = os.read(main, 1 << 16) if select.select([main], [], [], 60)[0] else b""
        except OSError:  # the program has closed its end of the terminal
            data = b""
        if not data:
            break
        written.append((time.monotonic() - before, data))
        before = time.monotonic()
        if end and end.encode() in b"".join(data for _, data in written):
            os.killpg(process.pid, 2)
            break
    process.wait()
    os.close(main)
    return written


def pieces(row: Any) -> list[tuple[str, str, bool]]:
    """Join neighboring cells of a line that have the same look."""
    found: list[tuple[str, str, bool]] = []
    for column in range(COLUMNS):
        cell = row[column]
        color = {"default": "#d6deeb", "green": "#7fdbca", "brown": "#ecc48d", "red": "#ef7a85"}.get(cell.fg, "#82aaff")
        if found and found[-1][1:] == (color, cell.bold):
            found[-1] = (found[-1][0] + cell.data, color, cell.bold)
        else:
            found.append((cell.data, color, cell.bold))
    return found


def drawn(lines: list[Shown]) -> str:
    end = max(line.at for line in lines) + END_S
    width, height = COLUMNS * CELL + 2 * MARGIN, SHOWN * LINE + 2 * MARGIN
    above = {0.0: 0}  # second: number of lines that have scrolled off the top by then
    css, rows = [], []
    for number, line in enumerate(lines):
        text, column = "", 0
        for words, color, bold in line.pieces:
            length = len(words)
            if words.strip():
                weight = ' font-weight="bold"' if bold else ""
                words = words.rstrip()
                size = f'x="{MARGIN + column * CELL:.1f}" textLength="{len(words) * CELL:.1f}"'
                text += f'<tspan {size} fill="{color}"{weight}>{escape(words)}</tspan>'
            column += length
        if not text:
            continue
        part = 100 * line.at / end
        if line.at > 0:
            css.append(f"@keyframes l{number}{{0%,{part:.2f}%{{opacity:0}}{part + 0.01:.2f}%,100%{{opacity:1}}}}")
            css.append(f".l{number}{{animation-name:l{number}}}")
        rows.append(f'<text class="l l{number}" y="{MARGIN + (number + 0.75) * LINE:.1f}">{text}</text>')
        if number >= SHOWN:
            above[line.at] = number - SHOWN + 1
    bottom, steps = 0, ""
    for at, lines_above in sorted(above.items()):  # the picture jumps, without movement between two steps
        part = 100 * at / end
        steps += f"{part:.2f}%{{transform:translateY({-bottom * LINE}px)}}"
        steps += f"{part + 0.01:.2f}%{{transform:translateY({-lines_above * LINE}px)}}"
        bottom = lines_above
    steps += f"100%{{transform:translateY({-bottom * LINE}px)}}"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" xml:space="preserve">
<title>A terminal: dbloader convert, info, a training and view, one after the other</title>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}
#all{{transform:translateY({-bottom * LINE}px)}}
@media (prefers-reduced-motion:no-preference){{
.l,#all{{animation-duration:{end:.1f}s;animation-iteration-count:infinite;animation-timing-function:linear}}
#all{{animation-name:all}}
@keyframes all{{{steps}}}
{chr(10).join(css)}
}}
</style>
<rect width="100%" height="100%" rx="10" fill="#0b1624"/>
<svg x="0" y="{MARGIN // 2}" width="100%" height="{height - MARGIN}"><g id="all">
{chr(10).join(rows)}
</g></svg>
</svg>
"""


def main(place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="dbloader-") as name:
        folder = Path(name)
        subprocess.run([sys.executable, HERE / "scripts" / "parts" / "photographs.py", folder / "all"], check=True)
        (folder / "all" / "train").rename(folder / "photographs")
        (folder / "train.py").write_text(TRAIN)
        lines = record(folder)
    recording = drawn(lines)
    if tempfile.gettempdir() in recording:
        raise SystemExit("the recording shows a path of this machine")
    place.write_text(recording, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
