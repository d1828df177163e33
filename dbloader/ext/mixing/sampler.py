"""The sampler of a mixture. Its epochs are consecutive parts of one endless order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._describe import listed
from dbloader._options import whole_number
from dbloader.errors import OptionError
from dbloader.sampling.base import ResumableSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.ext.mixing.shares import MixtureOrder
    from dbloader.sampling.base import Start
    from dbloader.sampling.rng import Array


class MixtureSampler(ResumableSampler):
    """Draws indices in the order of a mixture. Each epoch continues where the previous epoch ended.

    See ResumableSampler for ranks and resuming. A state is refused if it is of a mixture with other sources, another
    length, or other weights before the position of the state. Later weights may differ.

    Args:
        order: The order of the mixture, with its ``length`` set.
        names: The name of each source, for messages.
        digests: A digest of the samples of each source.
        num_replicas, rank, seed, drop_last: As in ShuffleSampler, with the same errors.
    """

    def __init__(
        self,
        order: MixtureOrder,
        names: Sequence[str],
        digests: Sequence[str],
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(order.length, order.length, num_replicas, rank, seed=seed, drop_last=drop_last)
        self._order = order
        self._names = names
        # Hashes keep a state below 1 kB. One hash of all digests shows whether the sources are the same. For up to 60
        # sources, short hashes also show which sources differ.
        hashes = [short_hash(digest, 8) for digest in digests] if len(digests) <= 60 else []
        self._sources = " ".join([f"{len(digests)}:{short_hash(json.dumps(digests))}", *hashes])
        self._weights = describe_weights(order)

    @override
    def order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        walk, first = self._order.walk(seed), epoch * self.length
        return lambda positions: walk(positions + first) + self.length

    @override
    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "sources": self._sources, "weights": self._weights}

    @override
    def start_of(self, state: Mapping[str, Any]) -> Start:
        given: Any = state
        if isinstance(given, Mapping) and given.get("sampler") == type(self).__name__ and {*self.facts()} <= {*given}:
            self._check_same(given)
            given = {**given, **self.facts()}
        return super().start_of(given)

    def _check_same(self, state: Mapping[str, Any]) -> None:
        """Raise OptionError if a state is of another mixture, and say what differs."""
        epoch, position = (whole_number(f"{name!r} in the state", state[name]) for name in ("epoch", "position"))
        different = []
        if state["sources"] != self._sources:
            (count, *theirs), (own_count, *own) = (str(text).split(" ") for text in (state["sources"], self._sources))
            counts = [text.partition(":")[0] for text in (count, own_count)]
            changed = [name for name, one, other in zip(self._names, theirs, own, strict=False) if one != other]
            if counts[0] != counts[1]:
                different.append(f"it has {counts[0]} sources, not {counts[1]}")
            elif changed and sorted(theirs) == sorted(own):
                different.append("its sources are in another order")
            else:
                different.append(f"it has other samples of {listed(changed) or 'a source'}")
        consumed = max(1, epoch * self.length + position)
        used, own_used = (
            [entry for entry in str(weights).split(" ") if _start_of(entry) < consumed]
            for weights in (state["weights"], self._weights)
        )
        if used != own_used:
            different.append(f"its weights (as position:weights) are {' '.join(used)}, not {' '.join(own_used)}")
        if state["length"] != self.length:
            different.append(f"its epochs have {state['length']} samples, not {self.length}")
        if different:
            raise OptionError(
                f"the state is of another mixture: {'; '.join(different)}. Make the mixture that the state was saved "
                f"with; only weights from position {consumed} on may differ. To go on with this mixture on purpose, "
                "load {**loader.state_dict(), 'epoch': state['epoch'], 'position': state['position']}"
            )


def _start_of(entry: str) -> int:
    start = entry.partition(":")[0]
    return int(start) if start.isdecimal() else 0


def describe_weights(order: MixtureOrder) -> str:
    """Return the weights of an order, such as ``0:5,2,1 1000000:1,1,1``, or hashes if they are long."""
    entries = [",".join(map(str, shares)) for shares in order.shares]
    entries = entries if sum(map(len, entries)) <= 200 else [*map(short_hash, entries)]
    text = " ".join(f"{start}:{entry}" for start, entry in zip(order.starts, entries, strict=True))
    return text if len(text) <= 250 else f"0:{short_hash(text)}"  # then later weights may not differ either


def short_hash(text: str, digits: int = 16) -> str:
    """Return the beginning of the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
