"""Conversions in parts by each engine, whose processes are killed at random moments: always the digest of one file.

``scripts/engines kills`` runs it and prints a table.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader import convert
from dbloader.conversion.make_plan import plan_conversion
from dbloader.conversion.plan import partial_folder
from dbloader.conversion.publish import list_parts
from dbloader.errors import ConversionError
from tests.support.conversion import documents
from tests.support.crash import Whole, check_whole
from tests.support.images import plant_kinds, plant_photos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENGINES = ("threads", "processes", "ray", "dask", "array")
SHARDS = (1, 3, 64)
FILES = 200
MOST = 10  # kills of one conversion: Ray gives up after ten of one part
WAIT_S = 300  # for a conversion
_CHILD = """
import sys
from concurrent.futures import ThreadPoolExecutor
from dbloader import convert
engine, root, place, shards = sys.argv[1:]
how = {"executor": ThreadPoolExecutor(2)} if engine == "threads" else {"workers": 2}
convert(root, place, shards=int(shards), **how)
"""


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def makes_a_part(pid: int) -> bool:
    """Return whether a process has a file open in the scratch folder of a part."""
    with suppress(OSError):
        return any("/dbloader-" in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


class Killer(threading.Thread):
    """Kills processes that make a part, each some random time after it was seen at it.

    Attributes:
        kills: How many were killed.
        driver: A process that gives out the parts, which is killed now and then; None to let it live.
    """

    def __init__(self, generator: random.Random, limit_s: float, most: int) -> None:
        super().__init__()
        self.generator = generator
        self.limit_s = limit_s
        self.most = most
        self.kills = 0
        self.driver: subprocess.Popen[bytes] | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        while self.kills < self.most and not self.ended.wait(0.005):
            busy = [pid for pid in descendants(os.getpid()) if makes_a_part(pid)]
            if not busy:
                continue
            victim = self.generator.choice(busy)
            if self.driver is not None and self.generator.random() < 0.2:
                victim = self.driver.pid
            time.sleep(self.generator.uniform(0, self.limit_s))
            if victim in descendants(os.getpid()):
                os.kill(victim, signal.SIGKILL)
                self.kills += 1


def by_commands(engine: str, root: Path, place: Path, shards: int, killer: Killer) -> int:
    """Convert by a command that is run again until it succeeds, and return how often it ran."""
    runs = 0
    if engine == "array":
        plan_conversion(root, place, shards)
    while True:
        runs += 1
        line = [sys.executable, "-c", _CHILD, engine, str(root), str(place), str(shards)]
        if engine == "array":  # xargs stands in for the controller of Slurm
            missing = " ".join(map(str, list_parts(place).missing))
            part = f"{sys.executable} -m dbloader part {place} -q"
            line = ["bash", "-c", f"echo {missing} | xargs -r -n 1 -P 2 env SLURM_ARRAY_TASK_ID= {part}"]
        driver = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        killer.driver = driver
        status = driver.wait(WAIT_S)
        killer.driver = None
        wait_for_none()
        if engine == "array" and not list_parts(place).missing:
            subprocess.run([sys.executable, "-m", "dbloader", "publish", place, "-q"], check=False)
            return runs
        if engine != "array" and status == 0:
            return runs
        if place.exists() and not partial_folder(place).exists():
            return runs  # killed after it had published


def wait_for_none() -> None:
    """Wait until no process makes a part any more: what a killed driver has started ends by itself."""
    deadline = time.monotonic() + WAIT_S
    while any(makes_a_part(int(pid.name)) for pid in Path("/proc").glob("[0-9]*") if of_ours(pid)):
        assert time.monotonic() < deadline, "a process outlives the driver that has started it"
        time.sleep(0.02)


def of_ours(process: Path) -> bool:
    with suppress(OSError):
        return f"DBLOADER_KILLS_RUN={os.environ['DBLOADER_KILLS_RUN']}".encode() in (process / "environ").read_bytes()
    return False


def by_executor(executor: Any, root: Path, place: Path, shards: int) -> int:
    """Convert again until it succeeds, and return how often it was tried."""
    runs = 0
    while True:
        runs += 1
        try:
            convert(root, place, shards=shards, executor=executor)
        except ConversionError as error:
            print(f"  {error}", flush=True)
        else:
            return runs


def by_dask(root: Path, place: Path, shards: int, killer: Killer) -> int:
    """Convert by a cluster of its own: after some deaths, Dask's nannies start no more workers."""
    from distributed import Client, LocalCluster

    killer.most = min(killer.most, 3)  # after four of one part, Dask gives up
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    with LocalCluster(**options, silence_logs=50) as cluster, Client(cluster) as client:
        return by_executor(client.get_executor(), root, place, shards)


@contextmanager
def started(engine: str, folder: Path) -> Iterator[Callable[[Path, Path, int, Killer], int]]:
    """Start an engine, and give what converts with it."""
    if engine == "ray":
        from tests.support.ray_cluster import ray_nodes

        with ray_nodes(folder, 2):
            yield lambda root, place, shards, _: by_executor("ray", root, place, shards)
    elif engine == "dask":
        yield by_dask
    else:
        yield lambda *arguments: by_commands(engine, *arguments)


def run_engine(engine: str, kills: int, seed: int, folder: Path) -> list[str]:
    """Return a row of the table for each number of shards."""
    os.environ["DBLOADER_KILLS_RUN"] = folder.name
    os.environ["TMPDIR"] = str(folder / "scratch")
    (folder / "scratch").mkdir()
    root = plant_photos(folder / "images", FILES, width=320, height=240)
    plant_kinds(root, "half", "text", "no end marker", "dangling link", "png", "webp")
    report = convert(root, folder / "whole.lmdb")
    told = Path(report.report_file).read_text()
    whole = Whole(root, report.digest, documents(report.place), told, report.seconds)
    rows = []
    with started(engine, folder) as convert_by:
        for shards in SHARDS:
            generator = random.Random(f"{seed} {engine} {shards}")
            place, done, conversions, runs = folder / "out.lmdb", 0, 0, 0
            begun = time.monotonic()
            while done < kills:
                # A part that is killed again and again at half of its time would never be made.
                killer = Killer(generator, 1.5 * whole.seconds / shards + 0.05, min(MOST, kills - done))
                killer.start()
                try:
                    runs += convert_by(root, place, shards, killer)
                finally:
                    killer.ended.set()
                    killer.join()
                check_whole(whole, place)
                assert not partial_folder(place).exists()
                shutil.rmtree(place)
                conversions += 1
                done += killer.kills
            seconds = time.monotonic() - begun
            rows.append(f"| {engine} | {shards} | {done} | {conversions} | {runs} | {conversions} | {seconds:.0f} |")
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", default=ENGINES)
    parser.add_argument("--kills", type=int, default=30, help="of each engine with each number of shards")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    print("| engine | shards | kills | stores | attempts | with the digest of one file | seconds |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for engine in options.engines:
        with tempfile.TemporaryDirectory(prefix="engine-kills-") as folder:
            run_engine(engine, options.kills, options.seed, Path(folder))


if __name__ == "__main__":
    main()
