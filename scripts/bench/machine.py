"""Print the machine and the versions, on which each figure depends.

python scripts/bench/machine.py
"""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version
from pathlib import Path

from dbloader._machine import available_memory, cpu_count

PACKAGES = ("dbloader", "torch", "numpy", "Pillow", "simplejpeg", "lmdb", "pymongo")


def describe_machine(versions: dict[str, str] | None = None) -> str:
    """Return one line: the CPU, free memory, system, and versions of dbloader's packages or of those given."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in facts if line.startswith("model name")]
    versions = versions or {name: version(name) for name in PACKAGES}
    return (
        f"{cpu_count()} CPUs ({names[0] if names else platform.machine()}), "
        f"{(available_memory() or 0) / 2**30:.0f} GiB free; {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + f"; {datetime.datetime.now(datetime.UTC).date().isoformat()}"
    )


if __name__ == "__main__":
    print(describe_machine())
