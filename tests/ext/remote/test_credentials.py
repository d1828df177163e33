"""Credentials of AWS profiles are renewed when they expire. Server and programs are real."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dbloader.errors import StoreAccessError
from dbloader.ext.remote.bucket import Bucket
from tests.support.object_store import KEY, SECRET, ObjectStore, Outside

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("object_store")]

PROGRAM = """\
import sys
with open(sys.argv[1], "a") as log:
    log.write("asked\\n")
print(open(sys.argv[2]).read())
"""


def list_for(place: str, seconds: float) -> list[int]:
    """Return the numbers of objects in two listings with a pause between them."""
    bucket, found = Bucket(place), []
    for pause in (seconds, 0):
        found.append(len(bucket.items()))
        time.sleep(pause)
    return found


def environment(store: ObjectStore, folder: Path, **more: str) -> dict[str, str]:
    found = {name: value for name, value in store.environment().items() if "KEY" not in name}
    files = {"AWS_CONFIG_FILE": str(folder / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials")}
    return {**found, **files, **more}


def with_program(folder: Path, answer: dict[str, Any], expires_s: float) -> Path:
    """Write a profile whose program prints an answer, and return the log of the program's runs."""
    (folder / "program.py").write_text(PROGRAM)
    expires = (datetime.now(UTC) + timedelta(seconds=expires_s)).isoformat()
    (folder / "answer").write_text(json.dumps({"Version": 1, "Expiration": expires, **answer}))
    log = folder / "log"
    program = f"{sys.executable} {folder / 'program.py'} {log} {folder / 'answer'}"
    (folder / "config").write_text(f"[default]\nregion = us-east-1\n[profile team]\ncredential_process = {program}\n")
    return log


GOOD = {"AccessKeyId": KEY, "SecretAccessKey": SECRET}


def test_program_is_asked_again_when_its_credentials_expire(
    object_store: ObjectStore, outside: Outside, tmp_path: Path
) -> None:
    place = object_store.place()
    for expires_s, runs in ((3600, 1), (0, 2)):
        log = with_program(tmp_path, GOOD, expires_s)
        log.write_text("")
        team = environment(object_store, tmp_path, AWS_PROFILE="team")
        first, second = outside(list_for, place, 0.1, environment=team)
        assert first == second
        asked = len(log.read_text().splitlines())
        assert asked == runs if runs == 1 else asked >= runs


def test_keys_in_the_file_of_a_profile_are_used(object_store: ObjectStore, outside: Outside, tmp_path: Path) -> None:
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / "credentials").write_text(f"[default]\n{keys}")
    outside(list_for, object_store.place(), 0, environment=environment(object_store, tmp_path))
    (tmp_path / "credentials").write_text(f"[team]\n{keys.replace(SECRET, 'wrong')}")
    with pytest.raises(StoreAccessError, match="access is refused"):
        outside(list_for, object_store.place(), 0, environment=environment(object_store, tmp_path, AWS_PROFILE="team"))


def test_failing_program_raises_without_secrets(object_store: ObjectStore, outside: Outside, tmp_path: Path) -> None:
    with_program(tmp_path, GOOD, 3600)
    (tmp_path / "answer").write_text("no JSON, but a secret")
    with pytest.raises(StoreAccessError, match=r"the profile team \(AWS_PROFILE\) gives no credentials") as caught:
        outside(list_for, object_store.place(), 0, environment=environment(object_store, tmp_path, AWS_PROFILE="team"))
    assert "secret" not in str(caught.value)
