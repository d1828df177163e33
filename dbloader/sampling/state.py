"""Where an iteration over a sampler starts, and the states that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dbloader._describe import short_repr
from dbloader._options import whole_number
from dbloader.errors import OptionError


class Start(NamedTuple):
    """Where an iteration over a sampler starts: a position in the global order of an epoch."""

    seed: int
    epoch: int
    position: int


def read_start(state: Mapping[str, Any], order: dict[str, Any]) -> Start:
    """Return where an iteration from a state starts.

    Args:
        state: The entries of the order and of Start, and no others but the "dataset" of a loader.
        order: What the sampler says of its order, such as its class and length.

    Raises:
        OptionError: The state is of another order, lacks an entry, or has one that no state has.
        TypeError: It is not a dict, or an entry is not an int.
    """
    wanted = f"a state must be the dict that state_dict() of a loader with this {order['sampler']} gave"
    if not isinstance(state, Mapping):
        raise TypeError(f"{wanted}, got {short_repr(state)}")
    known = {*order, *Start._fields}
    # "dataset" is the digest that a loader adds (loading.checkpoint): a sampler does not know its dataset.
    for what, names in (("lacks", known - {*state}), ("also has", {*state} - known - {"dataset"})):
        if names:
            raise OptionError(f"{wanted}, got one that {what} {', '.join(sorted(map(repr, names)))}")
    for name, value in order.items():
        if state[name] != value:
            raise OptionError(
                f"the state must have {name} {value}, as this sampler has, for the order to go on, got {state[name]}"
            )
    start = Start(*(whole_number(f"{name!r} in the state", state[name]) for name in Start._fields))
    if start.epoch < 0:
        raise OptionError(f"'epoch' in the state must be at least 0, got {start.epoch}")
    if not 0 <= start.position <= order["length"]:
        raise OptionError(f"'position' in the state must be 0 to {order['length']}, got {start.position}")
    return start
