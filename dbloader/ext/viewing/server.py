"""Run the viewer. ``serve`` runs until Ctrl-C, for ``dbloader view``. ``view`` returns at once, for notebooks."""

from __future__ import annotations

import copy
import errno
import ipaddress
import os
import shlex
import socket
import threading
import webbrowser
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from dbloader._options import checked_flag, whole_number
from dbloader._parallel import return_large_blocks
from dbloader._places import is_mongo
from dbloader.errors import DBLoaderError, OptionError
from dbloader.ext.viewing.notebook import viewers
from dbloader.stores.base import Store
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.datasets.base import RecordDataset
    from dbloader.ext.mixing.mixture import Mixture

PORT = 7878
_PORTS_TRIED = 100
_MOST_CONNECTIONS = 100  # each needs a file descriptor; a browser opens six
_CLOSING_S = 1  # time for unfinished answers when the server ends
_SILENCE_MS = 10_000  # timeoutMS for stores in MongoDB; dbloader's default of a minute is too long for a page


class View:
    """A viewer that runs in the background until it is closed or the process ends. A notebook shows it as a link.

    Attributes:
        address: The address that the viewer listens on.
        port: The port that the viewer listens on.
        is_public: Whether other machines can reach the viewer.
        marks: The marks of the first store. A notebook shows eight of the marked records, and the command that copies
            the store with its marks.
    """

    def __init__(
        self,
        places: Sequence[Any],
        host: str = "127.0.0.1",
        port: int | None = None,
        tell: Callable[[str], object] = lambda _: None,
        transform: Callable[..., Any] | str | None = None,
        listing: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
        own_process: bool = False,
    ) -> None:
        try:
            import uvicorn

            from dbloader.ext.viewing.app import ViewerState, create_app
            from dbloader.ext.viewing.guard import Guard, GuardedConnection
            from dbloader.ext.viewing.training_process import TrainingView
        except ModuleNotFoundError as error:
            if error.name not in ("starlette", "uvicorn"):
                raise
            raise DBLoaderError(f"the viewer needs {error.name}: pip install 'dbloader[view]'") from error
        return_large_blocks()
        with ExitStack() as opened:
            mixture = places[0] if hasattr(places[0], "datasets") else None
            stores = [opened.enter_context(_open(one)) for one in getattr(mixture, "datasets", places)]
            server = opened.enter_context(_listen(host, port))
            self.address, self.port = server.getsockname()[:2]
            self.is_public = not ipaddress.ip_address(self.address).is_loopback
            if mixture is None and len({tuple(store.manifest.classes) for store in stores}) > 1:
                tell("Warning: the classes of the stores differ, so the same label may mean different classes")
            training = TrainingView(stores, transform, mixture, own_process=own_process)
            state = ViewerState(stores, tell, training, listing, read_only=read_only)
            opened.callback(state.close)
            self.marks = state.marks[0]
            where = getattr(places[0], "where", None)  # the query of a dataset
            self._query = f"&q={quote(where)}" if where else ""
            self._guard = Guard(
                create_app(state), host, self.port, is_public=self.is_public, read_only=read_only, tell=tell
            )
            # uvicorn must not log, because it would log an error for each answer that close() interrupts. The
            # application reports its own errors.
            config = uvicorn.Config(
                self._guard, log_config=None, log_level="critical", access_log=False, server_header=False,
                proxy_headers=False, loop="asyncio", http=GuardedConnection, ws="none", lifespan="off",
                limit_concurrency=_MOST_CONNECTIONS, timeout_graceful_shutdown=_CLOSING_S,
            )  # fmt: skip
            self._server = uvicorn.Server(config)
            self._thread = threading.Thread(target=self._server.run, args=([server],), name="viewer", daemon=True)
            self._thread.start()
            self._shown = [(store.place, store.manifest.digest) for store in stores]
            viewers.update(dict.fromkeys(self._shown, self._repr_html_))
            self._opened = opened.pop_all()

    @property
    def url(self) -> str:
        """An unused link. It opens the page once, in one browser."""
        return self._guard.link() + self._query

    def wait(self) -> None:
        """Wait until the server has ended."""
        self._thread.join()

    def close(self) -> None:
        """End the server and close the stores. Unfinished answers are cut off after a second."""
        for key in self._shown:
            if viewers.get(key) == self._repr_html_:  # a later viewer of the store may have replaced the entry
                del viewers[key]
        self._server.should_exit = True
        self._thread.join()
        self._opened.close()

    def _repr_html_(self) -> str:
        # A link, not a frame, because browsers refuse to show the viewer inside another page.
        return f'<a href="{self.url}" target="_blank" rel="noopener">Open the viewer</a> (this link works once)'

    def __repr__(self) -> str:
        return f"View({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def view(
    place: str | os.PathLike[str] | Store | RecordDataset | Mixture,
    other: str | os.PathLike[str] | Store | RecordDataset | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    transform: Callable[..., Any] | None = None,
    listing: str | os.PathLike[str] | None = None,
    read_only: bool = False,
) -> View:
    """Start a viewer of one or two stores and return at once. A notebook shows the result as a link.

    The server runs in threads of this process until the result is closed. The result is also a context manager.

    Args:
        place: Path or URI of a store, a Store, a dataset, or a mixture that ``dbloader.mix`` returned. For a dataset,
            the page first shows the records that match its ``where``. For a mixture, a menu switches between its
            stores, and the training view shows the source of each sample.
        other: Path or URI of a second store. A menu on the page switches between the two stores.
        host: Name or address to listen on. Only this machine can reach the default address.
        port: Port from 0 to 65535; 0 means any free port, and None means 7878 or the next free port.
        transform: The transform that your training gives to `create_loader`, for the training view: a Decoder, or a
            callable that takes PIL images. None for ``RandomResizedCrop``, the default of `create_loader`.
        listing: A table with rows for records (.csv, .tsv, .jsonl or .json), such as a model's predictions. The page
            shows its columns as extra fields. Its column ``name``, ``path`` or ``index`` identifies the records.
        read_only: Refuse marks and searches for duplicates, which write files beside the store. The store itself never
            changes.

    Raises:
        TypeError: ``read_only`` is not a bool.
        SourceError: The listing cannot be read, contains no record of a store, or has two rows for a record.
        StoreError: There is no store at a place, or it cannot be read.
        OptionError: The port is taken, or the host is not an address of this machine.
        DBLoaderError: The extra ``view`` is not installed.
    """
    checked_flag("read_only", read_only)
    places: list[Any] = [place] if other is None else [place, other]
    return View(places, host, port, transform=transform, listing=listing, read_only=read_only)


def serve(*places: str, open_browser: bool, tell: Callable[[str], object], **options: Any) -> None:
    """Run a viewer of stores until Ctrl-C.

    ``open_browser`` opens the page if this machine has a display and this is not an ssh session. ``tell`` gets each
    line to print in the terminal; the first line ends in the link. ``options`` are arguments of ``View``. ``transform``
    is a text ``module:name`` (see ``load_transform``).

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and the server has ended.
    """
    with View(places, tell=tell, own_process=True, **options) as running:
        url = running.url
        tell(f"Open {url}")
        if running.is_public:
            tell("Warning: other machines can reach this address, and the connection is not encrypted: ssh is safer")
        elif not _has_display():
            tell(
                f"If your browser is on another machine, run this there first: {_tunnel(running.address, running.port)}"
            )
        elif open_browser:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        tell("Ctrl-C ends the viewer.")
        running.wait()


def _open(place: Any) -> Store:
    """Open a store and read its manifest, so a missing store raises an error now, not later in the page."""
    given = getattr(place, "store", place)  # of a dataset
    if isinstance(given, Store):
        return copy.copy(given)
    if is_mongo(place) and parse(place).options.isdisjoint(("timeoutms", "serverselectiontimeoutms")):
        place = f"{place}{'&' if '?' in str(place) else '?'}timeoutMS={_SILENCE_MS}"
    store = open_store(place)
    _ = store.manifest
    return store


def _listen(host: str, port: int | None) -> socket.socket:
    whole_number("port", port, 0, 65535, none=True)
    if not host or "\0" in host:  # to a socket, "" means all addresses of this machine
        raise OptionError(f"host must be an address of this machine, such as 127.0.0.1, got {host!r}")
    is_ipv6 = ":" in host
    is_dual = is_ipv6 and socket.has_dualstack_ipv6()  # create_server raises ValueError on a machine without IPv6
    tried = range(PORT, PORT + _PORTS_TRIED) if port is None else (port,)
    for number in tried:
        try:
            family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
            server = socket.create_server((host, number), family=family, dualstack_ipv6=is_dual)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OptionError(
                    f"the viewer cannot listen on host {host!r}, port {number}: {error.strerror}; choose an address of "
                    "this machine, such as 127.0.0.1, or 0.0.0.0 for all its addresses, and a port from 1024"
                ) from error
        else:
            # Without this option, an answer takes 40 ms longer. Connections inherit the option.
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return server
    raise OptionError(f"port {tried[0]} of {host} is taken: choose another port, or give no port to use a free one")


def _has_display() -> bool:
    """Return whether a browser that is started here appears on the user's display."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(display) and "SSH_CONNECTION" not in os.environ


def _tunnel(address: str, port: int) -> str:
    """Return the ssh command that the user runs on another machine to reach the viewer from there."""
    _, _, host, ssh_port = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[:4]
    target = f"{port}:{f'[{address}]' if ':' in address else address}:{port}"
    words = ["ssh", "-N", "-L", target, *(["-p", ssh_port] if ssh_port not in ("", "22") else [])]
    return shlex.join([*words, f"{os.environ.get('USER', 'you')}@{host or socket.gethostname()}"])
