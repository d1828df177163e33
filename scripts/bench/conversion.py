"""Time `dbloader convert` and `tar cf` of the same folder, in turns. Each figure is the median of whole processes.

python scripts/bench/conversion.py BENCH [--rounds 5] [--corpus large]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from page_cache import bring_into_memory


class Run(NamedTuple):
    """Seconds and peak memory (MB) of a finished process."""

    seconds: float
    megabytes: float


def run(*command: str) -> Run:
    """Run a command to its end."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return Run(seconds, usage.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time conversions against tar.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--corpus", default="large", help="folder in BENCH: large (20,000 images) or corpus (5,000)")
    parser.add_argument(
        "--rest",
        type=float,
        default=8,
        help="seconds between runs (default 8). A virtual machine may return free memory to its host within seconds, "
        "and getting it again is slow: after a pause, all runs start alike",
    )
    parser.add_argument("--only", nargs="*", help="names of the contenders to run, besides tar")
    options = parser.parse_args()
    corpus, out, archive = options.bench / options.corpus, options.bench / "out.lmdb", options.bench / "out.tar"
    nbytes = sum(path.stat().st_size for path in corpus.rglob("*.jpg"))
    convert = [sys.executable, "-m", "dbloader", "convert", str(corpus), str(out), "--quiet"]
    contenders = {
        "tar cf": ["tar", "cf", str(archive), "-C", str(corpus), "."],
        "tar cf; sync": ["sh", "-c", f"tar cf {archive} -C {corpus} . && sync {archive}"],
        "convert --check none": [*convert, "--check", "none"],
        "convert --check structure": [*convert, "--check", "structure"],
        "convert --check decode": convert,
        "convert --check decode --workers 1": [*convert, "--workers", "1"],
    }
    if options.only is not None:
        contenders = {name: contenders[name] for name in ("tar cf", *options.only)}
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for _ in range(options.rounds + 1):  # the first round warms the page cache
        for name, command in contenders.items():
            out.unlink(missing_ok=True)
            archive.unlink(missing_ok=True)
            time.sleep(options.rest)
            bring_into_memory(corpus)  # an idle virtual machine may lose files from its page cache
            runs[name].append(run(*command))
            print(f"{name}: {runs[name][-1].seconds:.2f} s", flush=True)
    print(f"\nConversion of {nbytes / 1e6:,.0f} MB, {options.rounds} rounds, medians:\n")
    print("| contender | seconds | MB/s | speed / tar cf | peak MB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    baseline = [one.seconds for one in runs["tar cf"][1:]]
    for name, all_runs in runs.items():
        counted = all_runs[1:]
        seconds = statistics.median(one.seconds for one in counted)
        ratio = statistics.median(tar / one.seconds for tar, one in zip(baseline, counted, strict=True))
        peak = max(one.megabytes for one in counted)
        print(f"| {name} | {seconds:.2f} | {nbytes / 1e6 / seconds:,.0f} | {ratio:.2f} | {peak:.0f} |")
    archive.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
