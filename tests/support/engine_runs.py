"""Conversions by each executor that docs/ray.md names, each compared with one file. ``scripts/engines`` runs it."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader import convert
from dbloader.conversion.make_plan import plan_conversion
from dbloader.conversion.part import convert_part
from dbloader.conversion.publish import publish
from tests.support.images import KINDS, plant_kinds, plant_photos

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS = 5
# The package that an executor is of; None for Python itself.
NAMES = {
    "threads": None, "processes": None, "ray": "ray", "dask": "distributed", "dask client": "distributed",
    "loky": "loky", "submitit": "submitit", "parsl": "parsl", "mpi4py": "mpi4py", "spark": "pyspark",
    "beam": "apache-beam",
}  # fmt: skip
MODULES = {"apache-beam": "apache_beam"}


@contextmanager
def executor_of(name: str, folder: Path) -> Iterator[Any]:
    """Make an executor with two workers, and end it."""
    if name == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
    elif name == "processes":
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            yield pool
    elif name == "ray":
        yield "ray"
    elif name.startswith("dask"):
        from distributed import Client, LocalCluster

        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            yield client if name == "dask client" else client.get_executor()
    elif name == "loky":
        import loky

        reusable = loky.get_reusable_executor(2)
        yield reusable
        reusable.shutdown()
    elif name == "submitit":
        import submitit

        jobs = submitit.AutoExecutor(folder=folder / "logs", cluster="local")
        jobs.update_parameters(timeout_min=5)
        yield jobs
    elif name == "parsl":
        from parsl.concurrent import ParslPoolExecutor
        from parsl.config import Config
        from parsl.executors import HighThroughputExecutor

        blocks = HighThroughputExecutor(label="parts", address="127.0.0.1", max_workers_per_node=2)
        with ParslPoolExecutor(Config(executors=[blocks], run_dir=str(folder / "parsl"), usage_tracking=0)) as pool:
            yield pool
    elif name == "mpi4py":
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as pool:
            yield pool


def by_recipe(name: str, root: Path, place: Path) -> str:
    """Plan, make the parts as docs/ray.md says for Spark and Beam, publish, and return the digest."""
    plan = plan_conversion(root, place, SHARDS)
    text = str(place)
    if name == "spark":
        from pyspark.sql import SparkSession

        options = SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1")
        spark = options.config("spark.driver.bindAddress", "127.0.0.1").config("spark.ui.enabled", False).getOrCreate()
        numbers = spark.sparkContext.parallelize(range(plan.parts), plan.parts)
        numbers.foreach(lambda part: convert_part(text, part))
        spark.stop()
    else:
        import apache_beam as beam

        with beam.Pipeline() as pipeline:
            numbers = pipeline | beam.Create(range(plan.parts)) | beam.Reshuffle()
            _ = numbers | beam.Map(lambda part: convert_part(text, part).digest)
    return publish(place).digest


def run(name: str, folder: Path) -> None:
    """Convert with one executor, and print a row of the table."""
    root = plant_photos(folder / "images", 40, width=64, height=48)
    plant_kinds(root, *KINDS)
    digest = convert(root, folder / "one.lmdb").digest
    begun = time.monotonic()
    if name in ("spark", "beam"):
        same = by_recipe(name, root, folder / "out.lmdb") == digest
    else:
        with executor_of(name, folder) as executor:
            same = convert(root, folder / "out.lmdb", shards=SHARDS, executor=executor).digest == digest
    package = NAMES[name]
    told = f"{package} {version(package)}" if package else f"Python {sys.version.split()[0]}"
    print(f"| {name} | {told} | {'the same' if same else 'ANOTHER'} | {time.monotonic() - begun:.1f} |", flush=True)
    assert same


def main() -> int:
    """Run each executor in a process of its own."""
    names = sys.argv[1:] or [*NAMES]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    print("| executor | version | digest | seconds |\n| --- | --- | --- | --- |", flush=True)
    failed = 0
    for name in names:
        package = NAMES[name]
        if package and importlib.util.find_spec(MODULES.get(package, package)) is None:
            print(f"| {name} | not installed | | |", flush=True)
            continue
        line = [sys.executable, "-m", "tests.support.engine_runs", "--one", name]
        if name == "mpi4py":
            mpirun = shutil.which("mpirun") or "mpirun"
            root = ["--allow-run-as-root"] if os.getuid() == 0 else []
            line = [mpirun, *root, "--oversubscribe", "-n", "3", sys.executable, "-m", "mpi4py.futures", *line[1:]]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
        rows = [row for row in done.stdout.splitlines() if row.startswith("| ")]
        print(rows[-1] if rows else f"| {name} | | FAILED | |\n{done.stdout}{done.stderr}", flush=True)
        failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        with tempfile.TemporaryDirectory(prefix="engine-runs-") as temporary:
            run(sys.argv[2], Path(temporary))
    else:
        sys.exit(main())
