"""`dbloader bench` and `doctor`: their lines, their JSON and their exit status."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from dbloader.ext.cli.measure import bench_command
from dbloader.ext.measuring.benchmark import Benchmark, Measurement
from dbloader.ext.measuring.doctor import Finding
from tests.support.shell import Shell

QUICK = ["--workers", "1", "--seconds", "1e-6", "--rounds", "1", "--size", "16", "--batch-size", "2"]


def test_bench_prints_a_table_and_the_verdict(shell: Shell, store: Path) -> None:
    outcome = shell("bench", store, *QUICK)
    assert (outcome.status, outcome.stderr) == (0, "")
    first, second, _, head, *rows, _, verdict = outcome.stdout.splitlines()
    assert re.fullmatch(rf"{store}: 12 images of [\d.]+ .* on average", first)
    assert re.fullmatch(r"\d+ CPUs?; random crops of 16 x 16 pixels", second)
    assert head.split() == ["images/s", "least", "-", "greatest"]
    names = ["reading", "reading + decoding", "worker threads: 1", "worker processes: 1"]
    for name, row in zip(names, rows, strict=True):
        assert re.fullmatch(rf"  {re.escape(name)} +[\d,]+ +[\d,]+ - [\d,]+", row)
    assert verdict.startswith("The fastest loader gives ")


def test_bench_json_contains_every_round(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = (Measurement(name="reading", images_per_s=2.0, rounds=(1.0, 2.0, 4.0)),)
    result = Benchmark(
        place="x.lmdb", images=12, image_bytes=1e5, cpus=2, measurements=runs, limit="", limit_share=0, verdict="The …"
    )
    monkeypatch.setattr("dbloader.ext.measuring.benchmark.measure", lambda *_, **__: result)
    outcome = shell("bench", "x.lmdb", "--json")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert json.loads(outcome.stdout) == json.loads(json.dumps(dataclasses.asdict(result)))


def test_workers_option_accepts_spaces_between_numbers() -> None:
    assert bench_command.make_context("bench", ["x.lmdb", "--workers", "2, 1"]).params["workers"] == [2, 1]


# doctor


OK = Finding("Python", "ok", "3.11.7")
WARNING = Finding("CPUs", "warning", "1 of 2", "they take turns", "give it more")
PROBLEM = Finding("/dev/shm", "problem", "missing", "no workers")


def test_doctor_examines_the_machine_and_a_store(shell: Shell, store: Path) -> None:
    machine, both = shell("doctor"), shell("doctor", store)
    assert machine.stderr == both.stderr == ""
    assert machine.status == both.status == (1 if "problem  " in machine.stdout else 0)
    names = [line[:24].split()[1] for line in both.stdout.splitlines()]
    assert names[: len(machine.stdout.splitlines())] == [line.split()[1] for line in machine.stdout.splitlines()]
    assert f"{store} is on " in both.stdout
    assert str(store) not in machine.stdout


@pytest.mark.parametrize(
    ("findings", "status", "state"),
    [([OK], 0, "ok"), ([OK, WARNING], 0, "warning"), ([OK, WARNING, PROBLEM], 1, "problem")],
)
def test_worst_finding_decides_the_exit_status_of_doctor(
    shell: Shell, findings: list[Finding], status: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.ext.cli.measure.examine_machine", lambda: [*findings])
    outcome = shell("doctor", "--json")
    assert (outcome.status, outcome.stderr) == (status, "")
    assert json.loads(outcome.stdout) == {"state": state, "findings": [*map(dataclasses.asdict, findings)]}
    if findings[-1] is PROBLEM:
        assert shell("doctor").stdout.splitlines() == [
            "ok       Python    3.11.7",
            "warning  CPUs      1 of 2 - they take turns; give it more",
            "problem  /dev/shm  missing - no workers",
        ]
