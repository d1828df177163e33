"""Getting small tensors to where the images are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def send(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the CPU on a device, of which it waits for nothing."""
    if device.type == "cuda":  # pragma: no cover - the tests marked cuda run it
        # Only from pinned memory does the copy not wait. PyTorch's allocator reuses that only after the copy.
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
