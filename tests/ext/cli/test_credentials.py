"""The commands around the core print no credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbloader import convert
from tests.stores.mongo.test_uri import check_secret, user_place  # noqa: F401 - user_place is a fixture
from tests.support.shell import Shell


def test_command_line_prints_no_credentials(
    user_place: str,  # noqa: F811
    root: Path,
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    convert(root, user_place)
    refused = user_place.replace("%2F", "")
    for status, *arguments in ((2, "bench", refused), (2, "copy", user_place, refused), (1, "doctor", refused)):
        done = shell(*arguments)
        assert done.status == status, done
        check_secret(*done[1:])
