"""The mode that forbids waiting for the device never outlasts its test. A stand-in for torch notes the modes."""

import warnings

import pytest
import torch

from tests.support.sync_errors import synchronizing_is_an_error


def test_mode_that_forbids_waiting_ends_although_setting_it_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def set_mode(mode: str) -> None:  # as torch does, which warns after it has set the mode
        modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with synchronizing_is_an_error():
        assert modes == ["error"]
    assert modes == ["error", "default"]
