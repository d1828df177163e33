"""`dbloader doctor`: its lines, its JSON and its exit status."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from dbloader.loading.doctor import Finding
from tests.support.shell import Shell

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
def test_worst_finding_decides_the_exit_status(
    shell: Shell, findings: list[Finding], status: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.cli.measure.examine_machine", lambda: [*findings])
    lines = [
        "ok       Python    3.11.7",
        "warning  CPUs      1 of 2 - they take turns; give it more",
        "problem  /dev/shm  missing - no workers",
    ]
    outcome = shell("doctor")
    assert outcome.status == status
    assert [line.split() for line in outcome.stdout.splitlines()] == [line.split() for line in lines[: len(findings)]]
    if len(findings) == 3:
        assert outcome.stdout.splitlines() == lines
    outcome = shell("doctor", "--json")
    assert (outcome.status, outcome.stderr) == (status, "")
    assert json.loads(outcome.stdout) == {"state": state, "findings": [asdict(finding) for finding in findings]}
