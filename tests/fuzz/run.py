"""The program of scripts/fuzz: run targets with inputs from atheris for some minutes.

Each target runs in a process of its own, which ends at the first broken promise, after 20 s with one input, or with
1 GiB of memory. ``fuzz/TARGET`` keeps the inputs. The test suite runs the inputs in ``tests/fuzz/corpus``: one a line,
in hex.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from hashlib import sha256
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")
SECONDS, MEBIBYTES = 20, 1024

# The target is imported here, because atheris instruments modules while they are imported.
_CHILD = """
import atheris, sys, tempfile, pathlib
with atheris.instrument_imports(include=["dbloader", "tarfile", "pickletools"], enable_loader_override=False):
    from tests.fuzz.targets import TARGETS
target = TARGETS[sys.argv.pop(1)]
folder = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm"))
atheris.Setup(sys.argv, lambda data: target(data, folder))
atheris.Fuzz()
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Look for inputs that break a reader.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--all", action="store_true", help="run all targets, one after the other")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes for each target (default: 10)")
    parser.add_argument("--input", type=Path, metavar="FILE", help="run one input of TARGET again, such as a crash")
    asked = parser.parse_args()
    os.environ["DBLOADER_MAX_PIXELS"] = "1000000"  # such a file is small when it is decoded
    if asked.input:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's
            TARGETS[asked.targets[0]](asked.input.read_bytes(), Path(folder))
        return 0
    statuses = [fuzz(name, asked.minutes) for name in (TARGETS if asked.all else asked.targets)]
    return int(any(statuses))


def fuzz(name: str, minutes: float) -> int:
    """Fuzz one target, and return 0 if no input broke a promise. Otherwise atheris prints the path of the input."""
    folder = ROOT / "fuzz" / name
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    for data in kept(name):
        (inputs / sha256(data).hexdigest()).write_bytes(data)
    options = [f"-max_total_time={60 * minutes:.0f}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEBIBYTES}"]
    options += ["-max_len=16384", "-print_final_stats=1", f"-artifact_prefix={folder}/", str(inputs)]
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CHILD, name, *options], cwd=ROOT, check=False
    ).returncode


def kept(name: str) -> list[bytes]:
    """Return the first inputs of a target, and the inputs that earlier runs found."""
    return [bytes.fromhex(line) for line in (CORPUS / f"{name}.hex").read_text().splitlines()]


if __name__ == "__main__":
    raise SystemExit(main())
