"""Measure object storage on a server of this machine: transfers through obstore, and conversions from it.

python scripts/bench/cloud.py BENCH CORPUS

CORPUS is a folder of images in folders of classes. The server is SeaweedFS, as in the tests. The figures show what the
client costs on this machine, and not how fast a cloud is.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dbloader.conversion.convert import convert
from dbloader.remote.bucket import Bucket
from tests.support.object_store import ObjectStore, put_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MB = 512
ROUNDS = 3


@contextmanager
def measured(what: str, megabytes: float) -> Iterator[None]:
    """Print a row with MB/s, and with this process's CPU seconds per GB."""
    cpu, started = cpu_seconds(), time.perf_counter()
    yield
    seconds, used = time.perf_counter() - started, cpu_seconds() - cpu
    print(f"| {what} | {megabytes / seconds:,.0f} | {used / megabytes * 1000:.2f} |", flush=True)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def transfers(folder: Path, place: str) -> None:
    path, back = folder / "shard", folder / "back"
    with path.open("wb") as file:
        for _ in range(FILE_MB):
            file.write(os.urandom(10**6))
    bucket = Bucket(place)
    print("| transfer of a file of 512 MB | MB/s | CPU s / GB |\n| --- | ---: | ---: |")
    for _ in range(ROUNDS):
        with measured("upload (parts of 8 MiB, 4 at once)", FILE_MB):
            bucket.put_file("shard", path)
    for _ in range(ROUNDS):
        with measured("upload of a file that is there", FILE_MB):
            bucket.put_file("shard", path, bucket.head("shard"))
    for _ in range(ROUNDS):
        back.unlink(missing_ok=True)
        with measured("download (parts of 8 MiB, 4 at once)", FILE_MB):
            bucket.fetch("shard", back)
    for _ in range(ROUNDS):
        back.unlink()
        with measured("for comparison: a copy of the file", FILE_MB):
            shutil.copyfile(path, back)


def conversions(folder: Path, corpus: Path, place: str) -> None:
    put_folder(place, corpus)
    print("\n| conversion | images/s | / folder | MB/s |\n| --- | ---: | ---: | ---: |")
    for check in ("decode", "none"):
        for _ in range(ROUNDS):
            first = 0.0
            for what, source in (("folder", str(corpus)), ("S3", place)):
                report = convert(source, folder / "out.lmdb", check=check, overwrite=True)
                rate = report.files / report.seconds
                first = first or rate
                megabytes = report.bytes_read / report.seconds / 1e6
                print(f"| {what}, check={check} | {rate:,.0f} | {rate / first:.2f} | {megabytes:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure object storage.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("corpus", type=Path)
    options = parser.parse_args()
    folder = options.bench / "cloud"
    folder.mkdir(parents=True, exist_ok=True)
    with ObjectStore() as server:
        os.environ.update(server.environment())
        transfers(folder, server.place())
        conversions(folder, options.corpus, server.place())
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
