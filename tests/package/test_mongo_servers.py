"""The MongoDB servers of the tests and of docker-compose.yml are set up as the tests need them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import mongo
from tests.support.mongo import Mongod
from tests.support.servers import ServerMissingError, needing_a_server


@pytest.mark.parametrize(("in_ci", "error"), [("", pytest.skip.Exception), ("true", ServerMissingError)])
def test_missing_server_skips_tests_but_fails_them_in_ci(
    monkeypatch: pytest.MonkeyPatch, in_ci: str, error: type[BaseException]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", in_ci)
    monkeypatch.setattr(mongo, "PACKAGE", "none-such")
    with pytest.raises(error, match="no mongod on PATH, and the package none-such"), needing_a_server(), Mongod():
        pass


def test_compose_file_pins_the_image_and_publishes_the_port_on_this_machine_only() -> None:
    compose: Any = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text())
    (server,) = compose["services"].values()
    assert re.fullmatch(r"mongo:\d+\.\d+\.\d+", server["image"])
    (port,) = server["ports"]
    assert port.startswith("127.0.0.1:")
    assert [volume.partition(":")[0] for volume in server["volumes"]] == [*compose["volumes"]]
