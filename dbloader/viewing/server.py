"""Run the viewer: ``dbloader view`` in the foreground, ``dbloader.view`` next to a notebook."""

from __future__ import annotations

import errno
import getpass
import os
import shlex
import socket
import sys
import threading
import webbrowser
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dbloader._options import whole_number
from dbloader.errors import DBLoaderError, OptionError
from dbloader.stores.open import open_store
from dbloader.viewing.transform import load_transform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

PORT = 7878
_PORTS_TRIED = 100
_CLOSING_S = 1  # for answers that are being made when the server ends
_BACKLOG = 128


class View:
    """A viewer that runs in the background until it is closed. A notebook shows it as a link.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(
        self,
        places: Sequence[str | os.PathLike[str]],
        host: str,
        port: int | None,
        tell: Callable[[str], object],
        transform: Callable[..., Any] | None = None,
    ) -> None:
        try:
            import uvicorn

            from dbloader.viewing.app import create_app
            from dbloader.viewing.asked import Shown
            from dbloader.viewing.guard import Guard
        except ModuleNotFoundError as error:
            if error.name not in ("starlette", "uvicorn"):
                raise
            raise DBLoaderError(f'the viewer needs {error.name}: pip install "dbloader[view]"') from error
        with ExitStack() as opened:
            stores = [opened.enter_context(open_store(one)) for one in places]
            for store in stores:
                _ = store.manifest  # what is no store is an error now, not in the page
            self._socket = opened.enter_context(_listen(host, port))
            self.port: int = self._socket.getsockname()[1]
            self._guard = Guard(create_app(Shown(stores, tell, transform)), host, tell)
            self._guard.address = f"http://{_name_of(host)}:{self.port}"
            settings: dict[str, Any] = {"loop": "asyncio", "http": "h11", "ws": "none", "lifespan": "off"}
            self._server = uvicorn.Server(
                uvicorn.Config(
                    self._guard, **settings, log_config=None, access_log=False, server_header=False,
                    proxy_headers=False, timeout_graceful_shutdown=_CLOSING_S,
                )
            )  # fmt: skip
            self._thread: threading.Thread | None = None
            self._opened = opened.pop_all()

    @property
    def url(self) -> str:
        """The link that opens the page in a browser. It works once: afterwards this is another one."""
        return self._guard.link()

    def close(self) -> None:
        """End the server and its thread, and close the stores."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._opened.close()

    def _run(self) -> None:
        self._server.run([self._socket])

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="dbloader view", daemon=True)
        self._thread.start()

    def _repr_html_(self) -> str:
        # A link, not a frame: the page refuses to be inside another one.
        return f'<a href="{self.url}" target="_blank" rel="noopener">Open the viewer</a> (the link works once)'

    def __repr__(self) -> str:
        return f"<dbloader viewer at {self.url}>"

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
    """Show a store, or two, in the browser, and return at once: for notebooks.

    The server runs in threads of this process until it is closed. A notebook shows what it returns as a link.

    Args:
        place: Where the store is.
        other: A second store, to compare with.
        host: Name or address to listen on; only this machine reaches the default.
        port: From 0 to 65535; 0 is any free one. None: 7878, or the next free one.
        transform: What create_loader would get, for the page of what the training sees: a Decoder, or a callable that
            takes PIL images. None: ``RandomResizedCrop``, as create_loader.

    Raises:
        StoreError: A place has no store that can be read.
        OptionError: The port is taken, or the host is not of this machine.
        DBLoaderError: The extra ``view`` is not installed.
    """
    running = View([place] if other is None else [place, other], host, port, lambda _: None, transform)
    running._start()
    return running


def serve(
    place: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = True,
    transform: str | None = None,
    tell: Callable[[str], object],
) -> None:
    """Show a store, or two, in the browser, until Ctrl-C.

    The browser is opened only on a machine with a display, and not in a session of ssh.

    Args:
        place: Where the store is.
        other: A second store, to compare with.
        host: As for ``view``.
        port: As for ``view``.
        open_browser: Whether to open the page too.
        transform: That of ``view``, as ``module:name``; see ``load_transform``.
        tell: Called with each line for the person at the terminal: the link first.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed. The server has ended.
        StoreError, OptionError, DBLoaderError: As for ``view``.
    """
    loaded = None if transform is None else load_transform(transform)
    with View([place] if other is None else [place, other], host, port, tell, loaded) as running:
        url = running.url
        tell(f"Open {url}")
        if not _is_here():
            tell(f"If your browser is on another machine, run this there first: {_tunnel(running.port)}")
        elif open_browser:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        tell("Ctrl-C ends the viewer.")
        running._run()


def _listen(host: str, port: int | None) -> socket.socket:
    whole_number("port", port, 0, 65535, none=True)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OptionError(f"host {host!r} is unknown here: {error.strerror}") from error
    tried = range(PORT, PORT + _PORTS_TRIED) if port is None else (port,)
    for one in tried:
        server = socket.socket(family, socket.SOCK_STREAM)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a port just left counts as taken
            server.bind((address[0], one))
            server.listen(_BACKLOG)
        except OSError as error:
            server.close()
            if error.errno != errno.EADDRINUSE:
                raise OptionError(f"host {host!r}, port {one}: {error.strerror}") from error
        else:
            return server
    raise OptionError(f"port {tried[0]} of {host} is taken: choose another one, or none for the next free one")


def _name_of(host: str) -> str:
    """Return how a URL names a host: its name where that is all addresses, and an IPv6 address in brackets."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"[{name}]" if ":" in name else name


def _is_here() -> bool:
    """Return whether a browser that is opened appears before the person who asked for it."""
    display = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(display) and "SSH_CONNECTION" not in os.environ


def _tunnel(port: int) -> str:
    _, _, host, ssh_port = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[:4]
    words = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", *(["-p", ssh_port] if ssh_port not in ("", "22") else [])]
    return shlex.join([*words, f"{getpass.getuser()}@{host or socket.gethostname()}"])
