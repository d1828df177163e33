"""The program of scripts/fuzz: run targets with inputs from atheris for some minutes, and count them.

Each target runs in a process of its own, which ends at the first broken promise, after 20 s with one input, or with
1 GiB of memory. ``fuzz/TARGET`` keeps the inputs. The test suite runs the inputs in ``tests/fuzz/corpus``: one a line,
in hex.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")
NAMES = ("jpeg", "record", "manifest", "listing", "tar", "zip", "lmdb")
SECONDS, MEBIBYTES = 20, 1024
# A file of so few pixels is small when it is decoded.
PIXELS = "1000000"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Look for inputs that break a reader.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--all", action="store_true", help="run all targets, one after the other")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes for each target (default: 10)")
    parser.add_argument("--input", type=Path, metavar="FILE", help="run one input of TARGET again, such as a crash")
    asked = parser.parse_args()
    names = NAMES if asked.all else tuple(asked.targets)
    if not names or {*names} - {*NAMES}:
        parser.error(f"name targets of {', '.join(NAMES)}, or --all")
    os.environ["DBLOADER_MAX_PIXELS"] = PIXELS
    if asked.input:
        run_target(names[0], asked.input.read_bytes())
        return 0
    if find_spec("atheris") is None:
        parser.error("atheris is not installed here: .venv/bin/pip install atheris (Linux, Python 3.11 to 3.13)")
    print("| target | inputs | minutes | crashes |\n| --- | --- | --- | --- |", flush=True)
    crashes = [crash for name in names for crash in fuzz(name, asked.minutes)]
    for crash in crashes:
        print(f"scripts/fuzz {crash.parent.name} --input {crash}")
    return int(bool(crashes))


def fuzz(name: str, minutes: float) -> list[Path]:
    """Fuzz one target, print its row of the table, and return the files of inputs that broke a promise."""
    folder = ROOT / "fuzz" / name
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    for data in (*seeds(name), *kept(name)):
        (inputs / sha256(data).hexdigest()).write_bytes(data)
    began, before = time.monotonic(), {*folder.glob("*-*")}
    options = [f"-max_total_time={60 * minutes:.0f}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEBIBYTES}"]
    options += ["-max_len=16384", "-print_final_stats=1", f"-artifact_prefix={folder}/", str(inputs)]
    with (folder / "log").open("wb") as log:
        program = [sys.executable, "-W", "ignore", "-c", _CHILD, name, *options]
        subprocess.run(program, cwd=ROOT, stdout=log, stderr=log, check=False)
    said = (folder / "log").read_text(errors="replace")
    done = re.findall(r"stat::number_of_executed_units: *([0-9]+)", said) or re.findall(
        r"^#([0-9]+)\b", said, re.MULTILINE
    )
    crashes = sorted({*folder.glob("*-*")} - before)
    took = (time.monotonic() - began) / 60
    count = int(done[-1]) if done else 0
    print(f"| {name} | {count:,} | {took:.1f} | {len(crashes)} |", flush=True)
    if not done or (not crashes and "Done " not in said):
        raise SystemExit(f"atheris ended early: see {folder / 'log'}")
    return crashes


_CHILD = """
import atheris, sys, tempfile, pathlib
with atheris.instrument_imports(include=["dbloader", "tarfile", "pickletools"], enable_loader_override=False):
    from tests.fuzz.targets import TARGETS
target = TARGETS[sys.argv.pop(1)]
folder = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm"))
atheris.Setup(sys.argv, lambda data: target.run(data, folder))
atheris.Fuzz()
"""


def seeds(name: str) -> list[bytes]:
    """Return the first inputs of a target."""
    from tests.fuzz.targets import TARGETS

    return TARGETS[name].seeds()


def kept(name: str) -> list[bytes]:
    """Return the inputs of a target that earlier runs found."""
    path = CORPUS / f"{name}.hex"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_target(name: str, data: bytes) -> None:
    """Run a target with one input."""
    from tests.fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's
        TARGETS[name].run(data, Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
