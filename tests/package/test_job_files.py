"""The job files of docs/examples make stores, with stand-ins for Slurm and Kubernetes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dbloader import convert, open_store
from tests.support.children import run_program
from tests.support.images import plant_kinds, plant_photos
from tests.support.shell import Shell

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"

# Stands in for the controller of Slurm: runs a job before it returns, and the tasks of an array two at a time. A job
# that depends on a job that failed is not run.
SBATCH = """#!/bin/bash
set -u
tasks=""
for word in "$@"; do
  case $word in
  --array=0-*%*) last=${word#--array=0-}; tasks=$(seq 0 "${last%\\%*}") ;;
  --dependency=afterok:7) [ -f "$STAND_IN/failed" ] && { echo 8; exit; } ;;
  --parsable | --kill-on-invalid-dep=yes) ;;
  --*) echo "unknown: $word" >&2; exit 1 ;;
  *) script=$word ;;
  esac
done
rm -f "$STAND_IN/failed"
if [ -n "$tasks" ]; then
  export SLURM_CPUS_PER_TASK=2
  echo "$tasks" | xargs -P 2 -I{} env SLURM_ARRAY_TASK_ID={} bash "$script" >&2 || touch "$STAND_IN/failed"
  echo "7;cluster"
else
  bash "$script" >&2
  echo 8
fi
"""
# This program fails at part 3 the first time.
DBLOADER = """#!/bin/bash
if [ "$1 ${3:-}" = "part 3" ] && [ ! -f "$STAND_IN/tried" ]; then
  touch "$STAND_IN/tried"
  exit 2
fi
exec "$PYTHON" -m dbloader "$@"
"""


@pytest.mark.slow
def test_second_run_of_the_slurm_job_makes_only_missing_parts(tmp_path: Path) -> None:
    root = plant_photos(tmp_path / "my images", 9)
    plant_kinds(root, "text")
    one = convert(root, tmp_path / "one.lmdb", shuffle_seed=1)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("dbloader", DBLOADER)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    place = tmp_path / "out.lmdb"
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "STAND_IN": str(tmp_path),
        "SOURCE": str(root),
        "DESTINATION": str(place),
        "SHARDS": "5",
        "PACK": "2",
    }
    printed = []
    for published in (False, True):
        printed.append("".join(run_program(EXAMPLES / "convert.sbatch", "--shuffle-seed", "1", env=environment)))
        assert place.exists() == published
    assert f"{one.files} files in 5 parts, 0 to 4" in printed[0]
    assert f"rejected  1 of {one.files}" in printed[1]
    with open_store(place) as store:
        assert store.verify() == one.digest


def jobs() -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all((EXAMPLES / "convert.yaml").read_text())


def test_commands_of_the_indexed_job_make_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capfd)
    (tmp_path / "imagenet").mkdir()
    root = plant_photos(tmp_path / "imagenet" / "train", 6)
    commands = {}
    for job in jobs():
        if job["kind"] == "Job":
            pod = job["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts.items() <= {"data": "/data", "scratch": "/scratch"}.items()
            assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
            commands[job["metadata"]["labels"]["step"]] = [
                word.replace("/data", str(tmp_path)).replace("/scratch", str(tmp_path)) for word in container["command"]
            ]
            if job["spec"].get("completionMode") == "Indexed":
                completions = str(job["spec"]["completions"])
    assert [*commands] == ["plan", "parts", "publish"]
    plan = commands["plan"]
    assert plan[plan.index("--shards") + 1] == completions
    plan[plan.index("--shards") + 1] = "3"
    assert shell(*plan[1:]).status == 0
    assert commands["parts"][:2] == ["sh", "-c"]
    for index in range(3):
        part = commands["parts"][2].removeprefix("exec dbloader ").replace("$JOB_COMPLETION_INDEX", str(index))
        assert shell(*part.split()).status == 0
    assert commands["publish"][:2] == ["sh", "-c"]
    publish, _, rest = commands["publish"][2].partition(" || ")
    assert rest == "[ $? -eq 1 ]"
    assert shell(*publish.split()[1:]).status == 0
    with open_store(tmp_path / "train.lmdb") as store:
        assert store.verify() == convert(root, tmp_path / "one.lmdb").digest
