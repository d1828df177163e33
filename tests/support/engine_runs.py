"""Convert with each engine of the documentation, and compare with one file. ``scripts/engines`` runs this program."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from dbloader import convert
from dbloader.ext.parts.part import convert_part
from dbloader.ext.parts.publish import publish
from tests.support.azure_run import AZURITE, by_azure
from tests.support.images import KINDS, plant_kinds, plant_photos
from tests.support.parts import plan_conversion

SHARDS = 6
WAIT_S = 300
# Package of each engine, and a module that exists if the package is installed.
PACKAGES = {
    "ray": ("ray", "ray"),
    "dask": ("distributed", "distributed"),
    "dask client": ("distributed", "distributed"),
    "loky": ("loky", "loky"),
    "submitit": ("submitit", "submitit"),
    "parsl": ("parsl", "parsl"),
    "mpi4py": ("mpi4py", "mpi4py"),
    "spark": ("pyspark", "pyspark"),
    "beam": ("apache-beam", "apache_beam"),
    "azure": ("obstore", "obstore"),
    "kubernetes": ("kubernetes-validate", "kubernetes_validate"),
}


@contextmanager
def executor_of(name: str, folder: Path) -> Iterator[Any]:
    """Yield an executor with two workers."""
    if name == "ray":
        yield "ray"
    elif name.startswith("dask"):
        from distributed import Client, LocalCluster

        from tests.support.dask_cluster import OPTIONS

        with LocalCluster(n_workers=2, **OPTIONS) as cluster, Client(cluster) as client:
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


def by_spark(place: str, parts: int) -> None:
    """Make the parts on two Spark executors."""
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    # A cluster of processes on this machine. With "local[2]", all parts would run in this process.
    spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        spark.sparkContext.parallelize(range(parts), parts).foreach(lambda part: convert_part(place, part))
    finally:
        spark.stop()


def by_beam(place: str, parts: int) -> None:
    """Make the parts in two processes of Beam's direct runner."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    words = ["--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    with beam.Pipeline(options=PipelineOptions(words)) as pipeline:
        numbers = pipeline | beam.Create(range(parts)) | beam.Reshuffle()
        _ = numbers | beam.Map(lambda part: convert_part(place, part).digest)


def by_engine(name: str, folder: Path) -> str:
    """Convert with an engine, check that the digest equals the digest of one file, and describe the result."""
    root = plant_photos(folder / "images", 200, width=320, height=240)
    if name == "azure":
        return by_azure(root, folder)
    plant_kinds(root, *KINDS)
    digest, place = convert(root, folder / "one.lmdb").digest, folder / "out.lmdb"
    if name in ("spark", "beam"):
        plan = plan_conversion(root, place, SHARDS)
        (by_spark if name == "spark" else by_beam)(str(place), plan.parts)
        made = publish(place).digest
    else:
        with executor_of(name, folder) as executor:
            made = convert(root, place, shards=SHARDS, executor=executor).digest
    if made != digest:
        raise AssertionError(f"{name} made another digest")
    return "the digest of one file"


def check_job_file() -> str:
    """Check the job file of Kubernetes against its schemas."""
    validate = importlib.import_module("kubernetes_validate").validate
    text = (Path(__file__).parents[2] / "docs" / "examples" / "convert.yaml").read_text()
    versions = ("1.29", "1.33", "1.36")
    for schema in versions:
        for job in yaml.safe_load_all(text):
            validate(job, schema, strict=True)
    return f"examples/convert.yaml is valid in {', '.join(versions)}"


def run(name: str, folder: Path) -> None:
    """Try one engine, and print a row of the table."""
    begun = time.monotonic()
    result = check_job_file() if name == "kubernetes" else by_engine(name, folder)
    package, _ = PACKAGES[name]
    print(f"| {name} | {package} {version(package)} | {result} | {time.monotonic() - begun:.0f} |", flush=True)


def main(names: list[str]) -> int:
    """Run each engine in a process of its own, and return how many failed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    print("| engine | version | result | seconds |\n| --- | --- | --- | --- |", flush=True)
    failed = 0
    for name in names:
        package, module = PACKAGES[name]
        if importlib.util.find_spec(module) is None:
            print(f"| {name} | {package} is not installed | | |", flush=True)
            continue
        if name == "spark" and shutil.which("java") is None:
            print("| spark | no Java here | | |", flush=True)
            continue
        if name == "azure" and shutil.which(AZURITE) is None:
            print("| azure | no Azurite here | | |", flush=True)
            continue
        line = [sys.executable, "-m", "tests.support.engine_runs", "--one", name]
        if name == "mpi4py":
            root = ["--allow-run-as-root"] if os.getuid() == 0 else []
            line = ["mpirun", *root, "--oversubscribe", "-n", "3", sys.executable, "-m", "mpi4py.futures", *line[1:]]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=WAIT_S)
        rows = [row for row in done.stdout.splitlines() if row.startswith("| ")]
        print(rows[-1] if rows else f"| {name} | | FAILED | |\n{done.stdout}{done.stderr}", flush=True)
        failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        with tempfile.TemporaryDirectory(prefix="engine-runs-") as temporary:
            run(sys.argv[2], Path(temporary))
    else:
        sys.exit(main(sys.argv[1:] or [*PACKAGES]))
