"""A request to the viewer: its values, checked, and the stores that it is about. No value becomes a path on disk."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

from dbloader.errors import OptionError
from dbloader.viewing.selection import Selections
from dbloader.viewing.thumbnails import Thumbnails

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request

    from dbloader.stores.base import Store

_MOST = 2**63 - 1
_INTEGER = re.compile("-?[0-9]{1,19}")


class Shared:
    """The stores, thumbnails and selections that all requests to a viewer share.

    Args:
        stores: One store or two, which several threads read.
        tell: Called with a text for the person who started the viewer.
        transform: The user's transform, for the page of what the training sees; None for the one of `create_loader`.

    Attributes:
        started: A random text in the addresses of pictures. Without it, a browser would show pictures that it has kept
            from an earlier viewer on this port.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        tell: Callable[[str], object] = lambda _: None,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        self.stores, self.tell, self.transform = stores, tell, transform
        self.thumbnails = Thumbnails()
        self.selections = [*map(Selections, stores)]
        self.started = secrets.token_hex(4)


class ViewerRequest:
    """One request.

    Attributes:
        shared: What all requests share.
        headers: The headers, by lower-case name.
    """

    def __init__(self, shared: Shared, request: Request) -> None:
        self.shared = shared
        self.headers = request.headers
        self._values = {**request.query_params, **request.path_params}

    @property
    def store(self) -> Store:
        """The store with the number ``s``."""
        return self.selections.store

    @property
    def selections(self) -> Selections:
        """The selections of the store with the number ``s``."""
        return self.shared.selections[self._number]

    @property
    def _number(self) -> int:
        return self.integer("s", most=len(self.shared.stores) - 1)

    def text(self, name: str, default: str = "") -> str:
        """Return a value of the query or the path."""
        return str(self._values.get(name, default))

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = _MOST) -> int:
        """Return an integer of the query or the path.

        Raises:
            OptionError: The value is not an integer from ``least`` to ``most``, or is missing and has no default.
        """
        given = self._values.get(name)
        if given is None and default is not None:
            return default
        if given is None or not _INTEGER.fullmatch(given) or not least <= int(given) <= most:
            got = "nothing" if given is None else repr(given[:40])
            bounds = [f" from {least:,}"] * (least > -_MOST) + [f" to {most:,}"] * (most < _MOST)
            raise OptionError(f"{name} must be an integer{''.join(bounds)}, got {got}")
        return int(given)
