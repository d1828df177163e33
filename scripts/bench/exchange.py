"""Convert the same images from every kind of source, and copy, verify and export a store, against Unix commands.

Whole processes in turns, medians. BENCH/corpus is the image folder; everything else is made from it.

python scripts/bench/exchange.py BENCH [--rounds 5] [--only convert verify]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from conversion import run
from page_cache import bring_into_memory, empty_cache


class Part(NamedTuple):
    """Contenders that do the same work. The others are compared with the first."""

    contenders: dict[str, str]  # shell command of each contender
    reads: tuple[str, ...]  # what a run reads; before each run, all of it is in the page cache, or nothing if ``cold``
    cold: bool = False


PARTS = {
    "convert": Part(
        {
            "a folder": "dbloader convert corpus out.lmdb -q",
            "a tar of the folder": "dbloader convert corpus.tar out.lmdb -q",
            "a zip of the folder": "dbloader convert corpus.zip out.lmdb -q",
            "WebDataset's shards": "dbloader convert shards out.lmdb -q",
            "Parquet": "dbloader convert parquet out.lmdb -q",
            "another store": "dbloader convert corpus.lmdb out.lmdb -q",
        },
        ("corpus", "corpus.tar", "corpus.zip", "shards", "parquet", "corpus.lmdb"),
    ),
    "export": Part(
        {
            "cp -r of the folder; sync": "cp -r --reflink=never corpus out && sync -f out",
            "export --format folder": "dbloader export corpus.lmdb out -q",
            "export --format webdataset": "dbloader export corpus.lmdb out -q --format webdataset",
            "export --format parquet": "dbloader export corpus.lmdb out -q --format parquet",
        },
        ("corpus", "corpus.lmdb"),
    ),
    "copy": Part(
        {
            "cp; sync": "cp --reflink=never corpus.lmdb out.lmdb && sync out.lmdb",
            "dbloader copy": "dbloader copy corpus.lmdb out.lmdb -q",
        },
        ("corpus.lmdb",),
    ),
    "verify": Part(
        {
            "md5sum": "md5sum big.lmdb",
            "cat": "cat big.lmdb",
            "dbloader verify": "dbloader verify big.lmdb -q",
        },
        ("big.lmdb",),
    ),
}
PARTS["verify, from the disk"] = PARTS["verify"]._replace(cold=True)


def prepare(bench: Path) -> None:
    """Make the files that the contenders read, once."""

    def make(command: str) -> None:
        subprocess.run(["sh", "-c", command], check=True, cwd=bench)

    if not (bench / "corpus.lmdb").exists():
        make("dbloader convert corpus corpus.lmdb -q")
    if not (bench / "big.lmdb").exists():
        make(f"dbloader copy {'corpus.lmdb ' * 4} big.lmdb -q")
    if not (bench / "corpus.tar").exists():
        make("tar cf corpus.tar corpus")
    if not (bench / "corpus.zip").exists():
        with zipfile.ZipFile(bench / "corpus.zip", "w") as file:
            for path in sorted((bench / "corpus").rglob("*.jpg")):
                file.write(path, path.relative_to(bench))
    for name, kind in (("shards", "webdataset"), ("parquet", "parquet")):
        if not (bench / name).exists():
            make(f"dbloader export corpus.lmdb {name} -q --format {kind}")


def measure(bench: Path, name: str, part: Part, rounds: int) -> None:
    """Run the contenders of a part in turns, and print a table."""
    seconds: dict[str, list[float]] = {contender: [] for contender in part.contenders}
    for _ in range(rounds + 1):  # the first round is not counted
        for contender, command in part.contenders.items():
            for out in ("out", "out.lmdb"):
                path = bench / out
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            for place in part.reads:
                empty_cache(bench / place) if part.cold else bring_into_memory(bench / place)
            seconds[contender].append(run("sh", "-c", f"cd {bench} && {command}").seconds)
    first = next(iter(seconds))
    print(f"\n| {name} | seconds | speed / {first} (range) |\n| --- | ---: | ---: |")
    for contender, times in seconds.items():
        ratios = [one / other for one, other in zip(seconds[first][1:], times[1:], strict=True)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {contender} | {statistics.median(times[1:]):.2f} | {ratio} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time sources, exports, copies and checks.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[*PARTS], help=f"some of: {', '.join(PARTS)}")
    options = parser.parse_args()
    if shutil.which("dbloader") is None:
        sys.exit("dbloader is not on the PATH: activate .venv first")
    prepare(options.bench)
    for name in options.only:
        measure(options.bench, name, PARTS[name], options.rounds)


if __name__ == "__main__":
    main()
