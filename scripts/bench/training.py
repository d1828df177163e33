"""Compare batches for training by dbloader and by other loaders: a new process for each run, in turns, medians.

python scripts/bench/training.py BENCH [--quick] [--workers 2] [--rounds 5] [--only NAME ...]

Batches of 64, shuffled, RandomResizedCrop to 224 x 224 with antialiasing and a flip, as uint8, and not used. SIZE=56 in
the environment makes crops of 56 x 56, for ``--corpus`` with smaller images. Peers run in the environment that
scripts/bench/install-peers makes; those that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from data import CONTENDER, WITHOUT_PEERS, all_rows, last_line, make_short, prepare, told
from machine import describe_machine
from page_cache import bring_into_memory
from table import print_tables

from dbloader._version import __version__

if TYPE_CHECKING:
    from data import Row

WAIT_S = 180
SHOWN = (
    "torch", "numpy", "Pillow", "simplejpeg", "lmdb", "ffcv", "grain", "litdata", "mosaicml-streaming", "spdl",
    "webdataset",
)  # fmt: skip


def run(row: Row, python: Path, workers: int, options: argparse.Namespace) -> dict[str, float] | str:
    """Return the figures of one run of a contender, or its error message."""
    bring_into_memory(row.place)  # files that other contenders read meanwhile may have displaced these files
    command: list[str | Path] = [python, CONTENDER, row.module, "run", row.place]
    command += ["--workers", str(workers), "--seconds", str(options.seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        return f"took over {WAIT_S} s"
    if done.returncode:
        return last_line(done.stderr)
    result: dict[str, float] = json.loads(last_line(done.stdout))
    return result


def take_turns(
    rows: list[Row], python: Path, workers: int, options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """Return the runs of each contender, one for each round. A contender that fails once has no runs."""
    runs: dict[str, list[dict[str, float]]] = {row.key: [] for row in rows}
    left = list(rows)
    for number in range(options.rounds):
        told(f"Round {number + 1} of {options.rounds} ({workers} workers) ...")
        for row in list(left):
            result = run(row, python, workers, options)
            if isinstance(result, str):
                told(f"{row.key} left out: {result}")
                left.remove(row)
                runs[row.key].clear()
            else:
                runs[row.key].append(result)
    return runs


def versions(python: Path) -> dict[str, str]:
    """Return the versions of packages in the environment of the contenders."""
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    wanted = {name.lower() for name in SHOWN}
    found = {one["name"]: one["version"] for one in json.loads(listed.stdout) if one["name"].lower() in wanted}
    return {"dbloader": __version__, **found}


def chosen(rows: list[Row], python: Path, options: argparse.Namespace) -> list[Row]:
    """Prepare the data of the chosen contenders, and return these contenders."""
    if options.quick or not options.with_peers:
        rows = [row for row in rows if row.form is not None or row.name in WITHOUT_PEERS]
    if options.only:
        rows = [row for row in rows if any(word.lower() in row.key.lower() for word in options.only)]
    ready = []
    for row in rows:
        failed = prepare(row, python)
        if failed is None:
            ready.append(row)
        else:
            told(f"{row.key} left out, it could not be prepared: {failed}")
    return ready


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare training batches.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--corpus", default="corpus", help="folder of images in BENCH")
    parser.add_argument("--workers", type=int, nargs="+", default=[2], help="numbers of threads or processes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="seconds of each measurement, after the workers have started"
    )
    parser.add_argument("--quick", action="store_true", help="one short round, without the peers")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="contenders or images with one of these in the name")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.5
    peers = options.bench / "peers" / "bin" / "python"
    options.with_peers = peers.exists()
    python = peers.absolute() if options.with_peers and not options.quick else Path(sys.executable)
    if not options.with_peers and not options.quick:
        told("The peers are left out: scripts/bench/install-peers installs them")
    corpus, made = options.bench / options.corpus, options.bench / f"training-{options.corpus}"
    made.mkdir(exist_ok=True)
    told("Preparing ...")
    make_short(corpus, made)
    rows = chosen(all_rows(corpus, made), python, options)
    print(f"\n## Training batches\n\n{describe_machine(versions(python))}.")
    for workers in options.workers:
        runs = take_turns(rows, python, workers, options)
        print(f"\n{workers} workers, files in memory, medians; rounds: {options.rounds}. MB: memory of all processes, "
              "each shared page counted once, without pages of files.")  # fmt: skip
        print_tables(rows, runs)


if __name__ == "__main__":
    main()
