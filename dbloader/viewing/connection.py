"""A connection of the viewer's server that does not wait for ever for a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

_HEAD_S = 10  # a browser sends the head of a request at once


class Connection(H11Protocol):
    """A connection that is closed if the head of a request is not complete within 10 s.

    uvicorn itself limits only the time between requests. Half-open connections, which need no cookie, would use up all
    file descriptors of the process.
    """

    _head_timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._limit_time()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_time()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_time()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _limit_time(self) -> None:
        """Start the timer when a head is awaited, and stop it when a request is answered."""
        is_answering = (
            self.cycle is not None  # type: ignore[redundant-expr] # uvicorn sets it to None at first
            and not self.cycle.response_complete
        )
        if is_answering:
            self._stop_timer()
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(_HEAD_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
