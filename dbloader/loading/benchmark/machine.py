"""What a figure depends on: the machine and the versions."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dbloader._machine import processors
from dbloader._version import VERSION

_PACKAGES = ("torch", "numpy", "Pillow", "simplejpeg", "lmdb", "pymongo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that something was measured on; as a str, in one line.

    Attributes:
        processor: Its name.
        processors: How many of them this process may use.
        memory: Bytes.
        system: Name and release of the operating system.
        python: Version.
        versions: Of dbloader and the packages that it measures, by name.
        date: Of the measurement, UTC, ISO 8601.
    """

    processor: str
    processors: int
    memory: int
    system: str
    python: str
    versions: dict[str, str]
    date: str

    def __str__(self) -> str:
        cores = f"{self.processors} processor{'' if self.processors == 1 else 's'} ({self.processor})"
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{cores}, {self.memory / 2**30:.0f} GiB; {self.system}; Python {self.python}; {packages}; {self.date}"


def describe_machine() -> Machine:
    """Return the facts of the machine this runs on."""
    return Machine(
        processor=_processor(),
        processors=processors(),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={"dbloader": VERSION, **_versions()},
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a machine whose kernel does not tell
        return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # put there by other means than an installer's
            continue
    return found
