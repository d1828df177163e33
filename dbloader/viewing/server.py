"""Run the viewer: in the foreground for ``dbloader view``, in the background for ``dbloader.view``."""

from __future__ import annotations

import errno
import ipaddress
import os
import shlex
import socket
import sys
import threading
import webbrowser
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from dbloader._options import whole_number
from dbloader.errors import DBLoaderError, OptionError
from dbloader.stores.mongo.uri import is_mongo, parse
from dbloader.stores.open import open_store
from dbloader.viewing.transform import load_transform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.stores.base import Store

PORT = 7878
_PORTS_TRIED = 100
_OWN_ADDRESS = "it must be an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them"
_PRIVILEGED = "ports below 1024 may need more rights: choose another port"
_CLOSING_S = 1  # time for unfinished answers when the server ends
_SILENCE_MS = 10_000  # timeoutMS of MongoDB places, so that the page soon says why it waits; the default is a minute


class View:
    """A viewer in the background, until it is closed or the process ends. A notebook shows it as a link.

    Attributes:
        address: The address that it listens on.
        port: The port that it listens on.
        is_public: Whether other machines can reach it.
    """

    def __init__(
        self,
        places: Sequence[str | os.PathLike[str]],
        host: str = "127.0.0.1",
        port: int | None = None,
        tell: Callable[[str], object] = lambda _: None,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        try:
            import uvicorn

            from dbloader.viewing.app import create_app
            from dbloader.viewing.connection import Connection
            from dbloader.viewing.guard import Guard
            from dbloader.viewing.request import Shared
        except ModuleNotFoundError as error:
            if error.name not in ("starlette", "uvicorn"):
                raise
            raise DBLoaderError(f'the viewer needs {error.name}: pip install "dbloader[view]"') from error
        with ExitStack() as opened:
            stores = [opened.enter_context(_open(place)) for place in places]
            server = opened.enter_context(_listen(host, port))
            self.address, self.port = server.getsockname()[:2]
            self.is_public = not ipaddress.ip_address(self.address).is_loopback
            app = create_app(Shared(stores, tell, transform))
            self._guard = Guard(app, host, self.port, is_public=self.is_public, tell=tell)
            # The routes report their own errors. uvicorn would also log each answer that close() interrupts.
            config = uvicorn.Config(
                self._guard, log_config=None, log_level="critical", access_log=False, server_header=False,
                proxy_headers=False, loop="asyncio", http=Connection, ws="none", lifespan="off",
                timeout_graceful_shutdown=_CLOSING_S,
            )  # fmt: skip
            self._server = uvicorn.Server(config)
            self._thread = threading.Thread(target=self._server.run, args=([server],), name="viewer", daemon=True)
            self._thread.start()
            self._opened = opened.pop_all()

    @property
    def url(self) -> str:
        """A link that opens the page in one browser, once. It is always an unused link."""
        return self._guard.link()

    def wait(self) -> None:
        """Wait until the server has ended."""
        self._thread.join()

    def close(self) -> None:
        """End the server, and close the stores. Unfinished answers are cut off after a second."""
        self._server.should_exit = True
        self._thread.join()
        self._opened.close()

    def _repr_html_(self) -> str:
        # A link, not a frame: the page refuses to be inside another one.
        return f'<a href="{self.url}" target="_blank" rel="noopener">Open the viewer</a> (this link works once)'

    def __repr__(self) -> str:
        return f"View({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def view(
    place: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    transform: Callable[..., Any] | None = None,
) -> View:
    """Show one or two stores in the browser, and return at once. A notebook shows the result as a link.

    The server runs in threads of this process until the result is closed; it is a context manager too.

    Args:
        place: Where the store is.
        other: A second store, which the page can change to.
        host: Name or address to listen on; only this machine reaches the default one.
        port: From 0 to 65535; 0 is any free one. None: 7878, or the next free one.
        transform: What create_loader would get, for the page of what the training sees: a Decoder, or a callable that
            takes PIL images. None: ``RandomResizedCrop``, as create_loader.

    Raises:
        StoreError: A place has no store that can be read.
        OptionError: The port is taken, or the host is not one of this machine.
        DBLoaderError: The extra ``view`` is not installed.
    """
    return View([place] if other is None else [place, other], host, port, transform=transform)


def serve(
    *places: str,
    host: str,
    port: int | None,
    open_browser: bool,
    tell: Callable[[str], object],
    transform: str | None = None,
) -> None:
    """Show stores as ``view`` does, until Ctrl-C, with the ``transform`` that ``load_transform`` finds.

    ``tell`` is called with each line for the person at the terminal; the first one ends in the link. A browser is
    opened, if it is wanted, where this machine has a display and this is no session of ssh.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and the server has ended.
    """
    loaded = None if transform is None else load_transform(transform)
    with View(places, host, port, tell, loaded) as running:
        url = running.url
        tell(f"Open {url}")
        if running.is_public:
            tell("Warning: other machines can reach this address, and what it sends is not encrypted: ssh is safer")
        elif not _has_display():
            tell(
                f"If your browser is on another machine, run this there first: {_tunnel(running.address, running.port)}"
            )
        elif open_browser:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        tell("Ctrl-C ends the viewer.")
        running.wait()


def _open(place: str | os.PathLike[str]) -> Store:
    """Open a store and read its manifest. A place without a store is then an error here, not in the page."""
    if is_mongo(place) and parse(place).options.isdisjoint(("timeoutms", "serverselectiontimeoutms")):
        place = f"{place}{'&' if '?' in str(place) else '?'}timeoutMS={_SILENCE_MS}"
    store = open_store(place)
    _ = store.manifest
    return store


def _listen(host: str, port: int | None) -> socket.socket:
    whole_number("port", port, 0, 65535, none=True)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # a label of no letters, or of more than 63, is the latter
        why = getattr(error, "strerror", error)
        raise OptionError(f"host {host!r} is unknown here: {why}; {_OWN_ADDRESS}") from error
    tried = range(PORT, PORT + _PORTS_TRIED) if port is None else (port,)
    for one in tried:
        server = socket.socket(family, kind, protocol)  # without its protocol, asyncio would not set TCP_NODELAY: 40 ms
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a port just left counts as taken
            server.bind((address[0], one))
            server.listen()  # a browser may connect before the server runs
        except OSError as error:
            server.close()
            if error.errno != errno.EADDRINUSE:
                remedy = _PRIVILEGED if error.errno == errno.EACCES else _OWN_ADDRESS
                raise OptionError(f"host {host!r}, port {one}: {error.strerror}; {remedy}") from error
        else:
            return server
    raise OptionError(f"port {tried[0]} of {host} is taken: choose another one, or none for the next free one")


def _has_display() -> bool:
    """Return whether a browser opened here appears on the user's own display."""
    display = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(display) and "SSH_CONNECTION" not in os.environ


def _tunnel(address: str, port: int) -> str:
    _, _, host, ssh_port = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[:4]
    target = f"{port}:{f'[{address}]' if ':' in address else address}:{port}"
    words = ["ssh", "-N", "-L", target, *(["-p", ssh_port] if ssh_port not in ("", "22") else [])]
    return shlex.join([*words, f"{os.environ.get('USER', 'you')}@{host or socket.gethostname()}"])
