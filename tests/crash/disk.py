"""Simulate power losses: log how a command changes its files, and rebuild the files that a power loss could leave.

disk_log.c logs the changes. A change is certain to survive once it is synced: data by a sync of its file, and a name by
a sync of its folder. What else survives is given by one of three models. No model assumes that a file system keeps more
than POSIX promises: a sync of a file does not keep its name, and changes that are not synced survive in any order.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

MODELS = ("synced", "subset", "names")
"""Changes that survive although they are not synced: none, any of them, or the names before the data and its length.

In the model "names", an unsynced file is empty, or has its length and zeros for its data.
"""

_SOURCE = Path(__file__).with_name("disk_log.c")
_HEAD = struct.Struct("6Q")
_BLOCK = 4096  # a write survives by blocks of this size
_NAMES = "CDLUR"
_LATE = 20


class Change(NamedTuple):
    """A change of files, from the log of disk_log.c. Files and folders have numbers in place of inodes."""

    kind: str
    file: int
    folder: int
    to: int
    offset: int
    data: bytes

    @property
    def names(self) -> list[str]:
        return [os.fsdecode(name) for name in self.data.split(b"\0")]


class Disk:
    """The content of a folder, by numbers of files and folders. The number of the folder itself is 0."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, str], int] = {}
        self.files: dict[int, bytearray] = {}

    @classmethod
    def read(cls, folder: Path, numbers: dict[int, int]) -> Disk:
        """Read a folder, and add the number of each inode to ``numbers``."""
        disk = cls()
        for path in [folder, *sorted(folder.rglob("*"))]:
            number = numbers.setdefault(path.stat().st_ino, len(numbers))
            if path != folder:
                disk.names[numbers[path.parent.stat().st_ino], path.name] = number
            if path.is_file():
                disk.files[number] = bytearray(path.read_bytes())
        return disk

    def copy(self) -> Disk:
        copied = Disk()
        copied.names = dict(self.names)
        copied.files = {number: bytearray(data) for number, data in self.files.items()}
        return copied

    def tree(self) -> dict[str, bytes | None]:
        """Return the bytes of each file by its path, and None for each folder."""
        inside: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), number in self.names.items():
            inside.setdefault(folder, []).append((name, number))

        def walk(folder: int, path: str) -> Iterator[tuple[str, bytes | None]]:
            for name, number in inside.get(folder, []):
                data = self.files.get(number)
                yield f"{path}{name}", None if data is None else bytes(data)
                if data is None:
                    yield from walk(number, f"{path}{name}/")

        return dict(walk(0, ""))

    def write(self, folder: Path) -> None:
        """Write the files into a folder, in place of what it contains."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path, data in self.tree().items():
            if data is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(data)

    def apply(self, change: Change, blocks: Sequence[int] | None = None) -> None:
        """Make a change. ``blocks`` are the numbers of the blocks of data that survive; None for all."""
        kind, file, folder, to, offset, data = change
        if kind == "C":
            self.files[file] = bytearray()
        if kind in "CDL" and folder >= 0:
            self.names[to if kind == "L" else folder, change.names[-1]] = file
        elif kind == "U":
            self.names.pop((folder, change.names[0]), None)
        elif kind == "R":
            self.names.pop((folder, change.names[0]), None)
            self.names[to, change.names[1]] = file
        elif kind == "T":
            content = self.files.setdefault(file, bytearray())
            del content[offset:]
            content.extend(bytes(offset - len(content)))
        elif kind == "W":
            content = self.files.setdefault(file, bytearray())
            first, end = offset // _BLOCK, -(-(offset + len(data)) // _BLOCK)
            for block in range(first, end) if blocks is None else blocks:
                begin, stop = max(offset, block * _BLOCK), min(offset + len(data), (block + 1) * _BLOCK)
                content.extend(bytes(max(0, stop - len(content))))
                content[begin:stop] = data[begin - offset : stop - offset]


class Recording(NamedTuple):
    """What a command did to the files in a folder.

    Attributes:
        before: The folder before the command.
        changes: The changes in order.
        synced: For each change, the number of changes after which it is certain to survive.
    """

    before: Disk
    changes: list[Change]
    synced: list[int]

    def moments(self, count: int, generator: random.Random) -> list[int]:
        """Return the numbers of changes after which the power fails: all changes, and ``count`` - 1 other numbers.

        Most are next to names and syncs. A quarter are next to the last of them: a command publishes at its end.
        """
        end = len(self.changes)
        near = [at for at in range(end) if {change.kind for change in self.changes[at : at + 2]} & {*_NAMES, "S", "A"}]
        late, others = near[-_LATE:], [*range(end)]
        chosen = [generator.choice((late, near, near, others)[number % 4]) for number in range(count - 1)]
        return [end, *chosen]

    def after(self, moment: int, model: str, generator: random.Random) -> Disk:
        """Return a disk that a power loss after ``moment`` changes could leave."""
        disk, lengths = self.before.copy(), dict[int, int]()
        for at, change in enumerate(self.changes[:moment]):
            if change.kind == "C":
                disk.files[change.file] = bytearray()  # without the name, unless the name survives
            end = change.offset + len(change.data)
            if self.synced[at] <= moment or (model == "names" and change.kind in _NAMES):
                disk.apply(change)
            elif model == "names" and change.kind == "W":
                lengths[change.file] = max(lengths.get(change.file, 0), end)
            elif model == "subset" and change.kind == "W":
                blocks = range(change.offset // _BLOCK, -(-end // _BLOCK))
                disk.apply(change, [block for block in blocks if generator.random() < 0.5])
            elif model == "subset" and generator.random() < 0.5:
                disk.apply(change)
        for file, length in lengths.items():
            if generator.random() < 0.5:
                disk.files[file].extend(bytes(max(0, length - len(disk.files[file]))))
        return disk


def build_library(folder: Path) -> Path:
    """Compile disk_log.c, or skip the test without a C compiler."""
    compiler, library = shutil.which("cc"), folder / "disk_log.so"
    if compiler is None or sys.platform != "linux":
        pytest.skip("the log of changes needs Linux and a C compiler (cc)")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def record(folder: Path, command: Sequence[str], library: Path, environment: Mapping[str, str]) -> Recording:
    """Run a command, and record how it changes the files in a folder.

    At the end, all changes are made once more. If they do not lead to the files that the command has left, the log has
    missed a change, and the test fails.
    """
    folder, log = folder.resolve(), folder.resolve().with_name("disk.log")
    log.write_bytes(bytes(8))
    numbers: dict[int, int] = {}
    before = Disk.read(folder, numbers)
    options = {"LD_PRELOAD": str(library), "DISK_LOG_FOLDER": str(folder), "DISK_LOG_FILE": str(log)}
    done = subprocess.run(
        command, env={**os.environ, **environment, **options}, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr  # 1: some files were rejected
    changes = [*_read_log(log.read_bytes(), numbers)]
    assert not [change for change in changes if change.kind == "X"]
    recording = Recording(before, changes, _synced(changes))
    everything = before.copy()
    for change in changes:
        everything.apply(change)
    assert everything.tree() == Disk.read(folder, {}).tree()
    return recording


def _read_log(log: bytes, numbers: dict[int, int]) -> Iterator[Change]:
    at, new = 8, max(numbers.values()) + 1
    while at < len(log):
        kind, inode, folder, to, offset, size = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        if chr(kind) in "CD":  # the inode of a removed file may be used again
            numbers[inode], new = new, new + 1
        file, parent, target = (numbers.get(number, -1) for number in (inode, folder, to))
        yield Change(chr(kind), file, parent, target, offset, log[at : at + size])
        at += size


def _synced(changes: Sequence[Change]) -> list[int]:
    """Return, for each change, the number of changes after which it is certain to survive."""
    never = len(changes) + 1
    synced, waiting = [never] * len(changes), dict[int, list[int]]()
    for at, change in enumerate(changes):
        if change.kind in "SA":
            synced[at] = at
            for number in [change.file] if change.kind == "S" else [*waiting]:
                for earlier in waiting.pop(number, []):
                    synced[earlier] = at + 1
        else:
            owner = {"L": change.to, "R": change.to, "C": change.folder, "D": change.folder, "U": change.folder}
            waiting.setdefault(owner.get(change.kind, change.file), []).append(at)
    return synced
