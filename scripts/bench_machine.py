"""Prints what a figure depends on: the machine and the versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("dbloader", "lmdb", "Pillow", "simplejpeg", "torch"))
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores ({cpu}), {memory:.0f} GiB; Python {platform.python_version()}; {packages}")


if __name__ == "__main__":
    main()
