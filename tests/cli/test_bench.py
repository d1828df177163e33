"""`dbloader bench`: the table and the JSON that it prints."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from dbloader.cli.measure import bench_command
from dbloader.loading.benchmark import Benchmark, Measurement
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


def test_json_lists_every_round(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = (Measurement(name="reading", images_per_s=2.0, rounds=(1.0, 2.0, 4.0)),)
    result = Benchmark(
        place="x.lmdb", images=12, image_bytes=1e5, cpus=2, measurements=runs, limit="", limit_share=0, verdict="The …"
    )
    monkeypatch.setattr("dbloader.loading.benchmark.measure", lambda *_, **__: result)
    outcome = shell("bench", "x.lmdb", "--json")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert json.loads(outcome.stdout) == json.loads(json.dumps(dataclasses.asdict(result)))


def test_workers_option_accepts_spaces_between_numbers() -> None:
    assert bench_command.make_context("bench", ["x.lmdb", "--workers", "2, 1"]).params["workers"] == [2, 1]
