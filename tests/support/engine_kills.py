"""Conversions in parts by each engine. Processes are killed at random. The digest must not change.

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
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from dbloader import convert
from dbloader.ext.parts.part import list_parts
from dbloader.ext.parts.plan import partial_folder
from tests.support.children import descendants
from tests.support.conversion import documents
from tests.support.crash import Whole, check_whole
from tests.support.images import plant_kinds, plant_photos
from tests.support.parts import plan_conversion

ENGINES = ("threads", "processes", "ray", "dask", "array")
SHARDS = (1, 3, 64)
FILES = 200
MOST = 10  # most kills in one conversion, because Ray gives up after ten kills of one part
WAIT_S = 300  # time limit for a conversion
_DRIVER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from dbloader import convert
engine, root, place, shards = sys.argv[1:]
how = {"workers": 2}
if engine == "threads":
    how = {"executor": ThreadPoolExecutor(2)}
elif engine == "ray":
    how = {"executor": "ray"}
elif engine == "dask":
    from distributed import Client
    how = {"executor": Client()}
convert(root, place, shards=int(shards), **how)
"""


def makes_a_part(pid: int) -> bool:
    """Return whether a process has a file open in a part's scratch folder."""
    with suppress(OSError):
        return any("/dbloader-" in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


class Killer(threading.Thread):
    """Kills processes that make a part, each after a random time.

    Attributes:
        kills: Number of killed workers (processes), nodes and drivers.
        driver: The process that distributes the parts. None: no driver is killed.
        kill_node: Kills the node of a worker, and starts another; None without nodes.
        node_share: Share of kills that kill a node, from 0 to 1.
    """

    def __init__(self, generator: random.Random, limit_s: float, most: int) -> None:
        super().__init__()
        self.generator = generator
        self.limit_s = limit_s
        self.most = most
        self.kills: Counter[str] = Counter()
        self.driver: subprocess.Popen[bytes] | None = None
        self.kill_node: Callable[[int], None] | None = None
        self.node_share = 0.2
        self.ended = threading.Event()

    def run(self) -> None:
        while self.kills.total() < self.most and not self.ended.wait(0.02):
            busy = [pid for pid in descendants(os.getpid()) if makes_a_part(pid)]
            if not busy:
                continue
            victim = self.generator.choice(busy)
            kind, chance = "workers", self.generator.random()
            if self.driver is not None and (chance < 0.2 or victim == self.driver.pid):
                kind, victim = "drivers", self.driver.pid
            elif self.kill_node is not None and chance >= 1 - self.node_share:
                kind = "nodes"
            time.sleep(self.generator.uniform(0, self.limit_s))
            if victim not in descendants(os.getpid()):
                continue
            try:
                if kind == "nodes" and self.kill_node is not None:
                    self.kill_node(victim)
                else:
                    os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue  # the process ended by itself
            self.kills[kind] += 1


def convert_by(engine: str, root: Path, place: Path, shards: int, killer: Killer) -> int:
    """Run a command until it has converted, and return how often it ran."""
    runs = 0
    if engine == "array":
        plan_conversion(root, place, shards)
    while True:
        runs += 1
        line = [sys.executable, "-c", _DRIVER, engine, str(root), str(place), str(shards)]
        if engine == "array":  # xargs replaces the controller of Slurm
            missing = " ".join(map(str, list_parts(place).missing))
            part = f"{sys.executable} -m dbloader part {place} -q"
            line = ["bash", "-c", f"echo {missing} | xargs -r -n 1 -P 2 {part}"]
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
            return runs  # the driver was killed after it had published


def convert_under_fire(engine: str, root: Path, place: Path, shards: int, killer: Killer) -> int:
    """Convert while a killer runs, and return how often the command ran."""
    with ThreadPoolExecutor(1) as pool:
        converted = pool.submit(convert_by, engine, root, place, shards, killer)
        converted.add_done_callback(lambda _: killer.ended.set())
        killer.run()  # Ray can add a node only in this thread
        return converted.result()


def wait_for_none() -> None:
    """Wait until no process is making a part. Processes of a killed driver end by themselves."""
    deadline = time.monotonic() + WAIT_S
    while any(makes_a_part(int(pid.name)) for pid in Path("/proc").glob("[0-9]*") if belongs_to_this_run(pid)):
        assert time.monotonic() < deadline, "a process outlives the driver that started it"
        time.sleep(0.02)


def belongs_to_this_run(process: Path) -> bool:
    with suppress(OSError):
        return f"DBLOADER_KILLS_RUN={os.environ['DBLOADER_KILLS_RUN']}".encode() in (process / "environ").read_bytes()
    return False


@contextmanager
def cluster_of(engine: str, folder: Path) -> Iterator[Callable[[int], None] | None]:
    """Start the cluster of an engine for its drivers, and yield a function that kills the node of a worker."""
    if engine == "ray":
        from tests.support.ray_cluster import ray_nodes, replace_node

        with ray_nodes(folder, 2) as cluster:
            os.environ["RAY_ADDRESS"] = cluster.address
            yield partial(replace_node, cluster, folder)
    elif engine == "dask":
        from tests.support.dask_cluster import supervised_workers

        with supervised_workers() as address:
            os.environ["DASK_SCHEDULER_ADDRESS"] = address
            yield None
    else:
        yield None


def run_engine(engine: str, kills: int, seed: int, folder: Path) -> None:
    """Print a row of the table for each number of shards."""
    os.environ["DBLOADER_KILLS_RUN"] = folder.name
    os.environ["TMPDIR"] = str(folder / "scratch")
    (folder / "scratch").mkdir()
    root = plant_photos(folder / "images", FILES, width=320, height=240)
    plant_kinds(root, "half", "text", "no end marker", "dangling link", "png", "webp")
    report = convert(root, folder / "whole.lmdb")
    lines = Path(report.report_file).read_text()
    whole = Whole(root, report.digest, documents(report.place), lines, report.seconds)
    with cluster_of(engine, folder) as kill_node:
        for shards in SHARDS:
            generator = random.Random(f"{seed} {engine} {shards}")
            place, conversions, runs = folder / "out.lmdb", 0, 0
            done: Counter[str] = Counter()
            begun = time.monotonic()
            while done.total() < kills:
                # The limit is longer than a part takes; with a shorter limit, every attempt would be killed.
                killer = Killer(generator, 1.5 * whole.seconds / shards + 0.05, min(MOST, kills - done.total()))
                killer.kill_node = kill_node
                runs += convert_under_fire(engine, root, place, shards, killer)
                check_whole(whole, place)
                assert not partial_folder(place).exists()
                shutil.rmtree(place)
                conversions += 1
                done += killer.kills
            killed = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
            seconds = time.monotonic() - begun
            print(f"| {engine} | {shards} | {killed} | {conversions} | {runs} | {seconds:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", default=ENGINES)
    parser.add_argument("--kills", type=int, default=30, help="kills of each engine with each number of shards")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    print("| engine | shards | killed | stores, all with the digest of one file | runs of the command | seconds |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for engine in options.engines:
        with tempfile.TemporaryDirectory(prefix="engine-kills-") as folder:
            run_engine(engine, options.kills, options.seed, Path(folder))


if __name__ == "__main__":
    main()
