"""Tell Accelerate which batch is the last one of an epoch, as the loaders that it prepares do.

``Accelerator.accumulate`` ends a step of the optimizer early with that batch, so that no gradients are left for the
next epoch. It asks Accelerate's GradientState, which asks the loader that is being iterated. A PrefetchLoader is not
prepared, as it knows the device and the processes itself, so it answers here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dbloader.loading.checkpoint import Position


class LastBatch:
    """What GradientState asks the loader whose batch was received last.

    Attributes:
        end_of_dataloader: Whether the batch that the consumer has is the last one of its epoch.
        remainder: Samples that were repeated to fill the last batch up: none, for ``gather_for_metrics``.
    """

    remainder = 0

    def __init__(self) -> None:
        self.end_of_dataloader = False

    def receive(self, position: Position) -> None:
        """Note the batch that the consumer receives now, which its position counts already."""
        state = _gradient_state()
        if state is not None:
            self.end_of_dataloader = position.is_at_end
            # Again with each batch: an evaluation in between that was left early stays on top of the list.
            if state.active_dataloader is not self:
                state._remove_dataloader(self)
                state._add_dataloader(self)

    def finish(self) -> None:
        """Note that the iteration has ended."""
        state = _gradient_state()
        if state is not None:
            state._remove_dataloader(self)


def _gradient_state() -> Any:
    """Return Accelerate's GradientState, or None in a program that does not use Accelerate."""
    kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    return None if kind is None else kind()
