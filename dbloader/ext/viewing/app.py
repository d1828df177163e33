"""The web application of the viewer: its routes and requests. It never uses text from a request as a file path."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import math
import secrets
import shlex
import traceback
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette import routing
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from dbloader._describe import short_repr
from dbloader._machine import cpu_count
from dbloader._options import whole_number
from dbloader._places import is_mongo
from dbloader.errors import DBLoaderError, NotAStoreError, OptionError, StoreNotFoundError, StoreUnreachableError
from dbloader.ext.viewing import summary
from dbloader.ext.viewing.duplicates import Duplicates, Leaks
from dbloader.ext.viewing.guard import STATIC, error_response
from dbloader.ext.viewing.joined import join_listings
from dbloader.ext.viewing.marks import Marks
from dbloader.ext.viewing.record import Thumbnails, show_record, stored_file
from dbloader.ext.viewing.selection import Selections
from dbloader.ext.viewing.sorting import ODD, find_position
from dbloader.ext.viewing.training_process import TrainingView
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from starlette.requests import Request

    from dbloader.stores.base import Store

    _Function = Callable[["ViewerRequest"], Any]

_NO_DATABASE = 503  # the page waits until the database answers again
_CLIENT_GONE = 499  # nginx's status for a client that has closed the connection
_LARGEST = 2**63 - 1
_MOST_BODY = 1_000_000  # bytes; the page sends far less
# The viewer releases LMDB's pages after this number of answers. Otherwise all pages that were read count as memory of
# this process: 600 MB after 4,500 thumbnails from a store with ten million images.
_RELEASED_AFTER = 50


class ViewerState:
    """State that all requests to a viewer share. ``tell`` gets each line for the person who started the viewer.

    The columns of ``listing`` are joined to the records of each store. ``viewer_id`` is a random text in the addresses
    of pictures. Without it, a browser could show pictures that it has cached from an earlier viewer on this port.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        tell: Callable[[str], object] = lambda _: None,
        training: TrainingView | None = None,
        listing: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self.stores, self.tell, self.training = stores, tell, training or TrainingView(stores)
        self.thumbnails = Thumbnails()
        joined = [{} for _ in stores] if listing is None else join_listings(stores, listing, tell)
        self.selections = [*map(Selections, stores, joined)]
        self.marks = [Marks(selections, read_only=read_only) for selections in self.selections]
        self.duplicates, self.leaks = [*map(Duplicates, self.selections)], Leaks(self.selections)
        self.viewer_id = secrets.token_hex(4)
        self.answers = itertools.count(1)

    def close(self) -> None:
        """End the searches for duplicates and the process of the training view."""
        for search in (*self.duplicates, self.leaks):
            search.stop()
        self.training.close()


class ViewerRequest:
    """A request to the viewer. The value ``s`` in its path is the number of a store."""

    def __init__(self, state: ViewerState, request: Request, body: bytes) -> None:
        self.state, self.body = state, body
        self._values = {**request.query_params, **request.path_params}

    @property
    def selections(self) -> Selections:
        """The Selections of the store, which find the records that match a query."""
        return self.state.selections[self.number]

    @property
    def number(self) -> int:
        """The number of the store."""
        return self.integer("s", most=len(self.state.stores) - 1)

    def text(self, name: str, default: str = "") -> str:
        """Return a value from the path or the query as text."""
        return str(self._values.get(name, default))

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = _LARGEST) -> int:
        """Return a value from the path or the query as an integer.

        Raises:
            OptionError: The value is not an integer from ``least`` to ``most``, or is missing and has no default.
        """
        given: Any = self._values.get(name, default)
        try:
            number = int(given)
        except (TypeError, ValueError):
            raise OptionError(f"{name} must be an integer, got {short_repr(given, 40)}") from None
        return whole_number(name, number, least, most)


def _stores(request: ViewerRequest) -> list[dict[str, Any]]:
    # Load new duplicates and marks first, because they change the columns.
    for duplicates in request.state.duplicates:
        duplicates.join()
    marks = [marks.describe() for marks in request.state.marks]
    return [
        {
            **asdict((store := selections.store).manifest),
            "place": store.place,
            "kind": "mongodb" if is_mongo(store.place) else "lmdb",
            "records": len(store),
            "file_fields": store.manifest.file_fields,
            "viewer_id": request.state.viewer_id,
            "sorts": (*selections.columns.sortable, ODD),
            "columns": selections.columns.kinds,
            "marks": marked,
        }
        for selections, marked in zip(request.state.selections, marks, strict=True)
    ]


def _change_marks(request: ViewerRequest) -> dict[str, Any]:
    """Mark the records that match ``q`` in the JSON body, one query or a list. Return the store's new facts."""
    marks = request.state.marks[request.number]
    try:
        change = json.loads(request.body)
        queries = change.pop("q")
        "".join(queries)  # raises TypeError for other values than a text or a list of texts
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise OptionError('a change must be JSON such as {"q": "class:cat", "drop": true}') from error
    marks.change(queries, change)
    return _stores(request)[request.number]


def _note(request: ViewerRequest) -> dict[str, str | None]:
    """Return a note if the store has been replaced or removed since the start of the viewer."""
    store = request.selections.store
    with copy.copy(store) as now:  # a copy of a store opens its place again
        try:
            if now.manifest == store.manifest:
                return {"note": None}
            found = "another store is"
        except (NotAStoreError, StoreNotFoundError):
            found = "no store is"
    return {"note": f"This page shows {now.place} as it was when the viewer was started, but {found} there now."}


def _count(request: ViewerRequest) -> dict[str, Any]:
    query = request.text("q")
    return summary.count(request.selections, query, request.text("among", query))


def _rows(request: ViewerRequest) -> dict[str, Any]:
    start, count = request.integer("start", 0), request.integer("count", 200)
    return summary.rows(request.selections, request.text("q"), start, count, request.text("sort"))


def _record(request: ViewerRequest) -> dict[str, Any]:
    index = request.integer("index")
    columns, events = request.selections.columns, summary.events_of(request.selections)[0]
    facts = show_record(request.selections.store, index)
    is_reported = any(index in indices for indices in events.values())
    return {**facts, "joined": columns.describe(index, columns.joined), "reported": is_reported}


def _position(request: ViewerRequest) -> dict[str, int | None]:
    q, by, index = request.text("q"), request.text("sort"), request.integer("index")
    return {"position": find_position(request.selections, q, by, index)}


def _listing(request: ViewerRequest) -> Response:
    headers = {"Content-Disposition": 'attachment; filename="selection.csv"'}
    return StreamingResponse(request.selections.list_csv(request.text("q")), media_type="text/csv", headers=headers)


def _report(request: ViewerRequest) -> dict[str, Any]:
    start, count = request.integer("start", 0), request.integer("count", 200)
    return request.selections.report.read(request.text("event"), request.text("text"), start, count)


def _found(request: ViewerRequest, searched: Duplicates | Leaks, **options: Any) -> dict[str, Any]:
    """Return the state of a search, and a part of its result."""
    start, count = request.integer("start", 0), request.integer("count", 100)
    searched.join()
    search = searched.describe()
    found = None if search["running"] else searched.list(start, count, **options)
    return {"search": search, "found": found, "command": shlex.join(["dbloader", "duplicates", *searched.places])}


def _search(request: ViewerRequest, searched: Duplicates | Leaks) -> dict[str, Any]:
    """Start a search, or stop it if the body is "stop". Return its state."""
    searched.stop() if request.body == b"stop" else searched.start()
    return searched.describe()


def _thumbnail(request: ViewerRequest) -> Response:
    index, px = request.integer("index"), request.integer("px", 320)
    over = tuple(filter(None, request.text("over").split(",")))
    shown = _field(request), over, _window(request)
    data, kind = request.state.thumbnails.get(request.selections.store, index, px, *shown)
    return _picture(request, data, {"Content-Type": kind})


def _window(request: ViewerRequest) -> tuple[float, float] | None:
    low, comma, high = (text := request.text("window")).partition(",")
    with suppress(ValueError):
        if not text or -math.inf < float(low) < float(high) < math.inf:
            return (float(low), float(high)) if comma else None
    raise OptionError(f"window must be two numbers, the lesser one first, such as 0,4095, got {short_repr(text, 40)}")


def _image(request: ViewerRequest) -> Response:
    download = request.text("download") == "1"
    store, index = request.selections.store, request.integer("index")
    return _picture(request, *stored_file(store, index, _field(request), download=download))


def _field(request: ViewerRequest) -> int | None:
    return request.integer("field") if request.text("field") else None


def _picture(request: ViewerRequest, data: bytes, headers: dict[str, str]) -> Response:
    """Return a picture. The browser may cache the picture if its address contains the ``viewer_id`` of this viewer."""
    is_own = request.text("v") == request.state.viewer_id
    headers["Cache-Control"] = f"private, {'max-age=31536000, immutable' if is_own else 'no-cache'}"
    return Response(data, headers=headers)


def _training(request: ViewerRequest, *record: int) -> Any:
    """Return a part of the training view, with the options in a request. The first call imports torch."""
    least = {"seed": -_LARGEST, "epoch": 0, "batch_size": 0, "world_size": 0, "rank": 0, "step": 0}
    options: dict[str, Any] = {name: request.text(name) for name in ("size", "state") if request.text(name)}
    options |= {name: request.integer(name, least=low) for name, low in least.items() if request.text(name)}
    options["drop_last"] = request.integer("drop_last", 1, most=1) == 1
    return request.state.training.answer(request.number, options, *record)


def _seen(request: ViewerRequest) -> Response:
    """Return an image as the neural network gets it. The header X-Values describes how the pixel values are shown."""
    data, note = _training(request, request.integer("index"), request.integer("position"))
    return Response(data, media_type="image/png", headers={"Cache-Control": "no-store", "X-Values": note})


def _static(name: str) -> Response:
    if name not in STATIC:
        return error_response(404, "nothing is here")
    data, kind = STATIC[name]
    return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})


class Route(NamedTuple):
    """A route of the viewer. ``function`` takes a request, and returns a Response or a value that becomes JSON."""

    path: str
    function: _Function
    method: str = "GET"
    decodes: bool = False  # whether it decodes images; at most one such function per CPU runs at the same time


ROUTES = (
    Route("/", lambda _: _static("index.html")),
    Route("/static/{name}", lambda request: _static(request.text("name"))),
    Route("/api/stores", _stores),
    Route("/api/{s}/note", _note),
    Route("/api/{s}/revision", lambda r: {"revision": r.state.marks[r.number].describe()["revision"]}),
    Route("/api/{s}/select", lambda r: {"count": len(r.selections.select(r.text("q")))}),
    Route("/api/{s}/rows", _rows),
    Route("/api/{s}/summary", _count),
    Route("/api/{s}/field", lambda r: summary.field(r.selections, r.text("q"), r.text("name"))),
    Route("/api/{s}/compare", lambda r: summary.compare_labels(r.selections, r.text("q"), r.text("column"))),
    Route("/api/{s}/position", _position),
    Route("/api/{s}/report", _report),
    Route("/api/{s}/quantiles", lambda r: summary.quantiles(r.selections)),
    Route(
        "/api/{s}/duplicates",
        lambda r: _found(r, r.state.duplicates[r.number], differing=r.text("differing") == "true"),
    ),
    Route("/api/{s}/leaks", lambda r: _found(r, r.state.leaks, number=r.number)),
    Route("/api/{s}/record/{index}", _record, decodes=True),
    Route("/api/{s}/training", _training),
    Route("/listing/{s}", _listing),
    Route("/thumb/{s}/{index}", _thumbnail, decodes=True),
    Route("/image/{s}/{index}", _image),
    Route("/seen/{s}/{index}", _seen, decodes=True),
    Route("/api/{s}/marked", lambda r: r.state.marks[r.number].summarize(r.text("q"))),
    Route("/api/{s}/marks", _change_marks, method="POST"),
    Route("/api/{s}/duplicates", lambda r: _search(r, r.state.duplicates[r.number]), method="POST"),
    Route("/api/{s}/leaks", lambda r: _search(r, r.state.leaks), method="POST"),
)


def create_app(state: ViewerState, routes: Iterable[Route] = ROUTES) -> Starlette:
    """Return the ASGI application of the viewer. It answers every request, so a Guard must check requests first."""
    slots = asyncio.Semaphore(cpu_count())

    def endpoint(function: _Function, *, decodes: bool) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            body = b""
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BODY:
                    return error_response(413, f"the body of a request may have {_MOST_BODY:,} bytes")
            async with slots if decodes else nullcontext():
                if await request.is_disconnected():  # the user has scrolled past the image while the request waited
                    return Response(status_code=_CLIENT_GONE)
                return await run_in_threadpool(_answer, function, ViewerRequest(state, request, body))

        return answer

    async def no_route(_: Request, error: Exception) -> Response:
        return error_response(getattr(error, "status_code", 500), "nothing is here")

    app = Starlette(
        routes=[
            routing.Route(route.path, endpoint(route.function, decodes=route.decodes), methods=[route.method])
            for route in routes
        ],
        exception_handlers={HTTPException: no_route},
    )
    app.router.redirect_slashes = False  # the path of a request must not become the target of a redirect
    return app


def _answer(function: _Function, request: ViewerRequest) -> Response:
    try:
        found = function(request)
        if not next(request.state.answers) % _RELEASED_AFTER:
            for store in request.state.stores:
                if isinstance(store, LMDBStore):
                    store.release_pages()
        if isinstance(found, Response):
            return found
        return Response(json.dumps(found, allow_nan=False), media_type="application/json")
    except DBLoaderError as error:
        return error_response(_NO_DATABASE if isinstance(error, StoreUnreachableError) else 400, str(error))
    except Exception as error:
        for line in traceback.format_exc().splitlines():
            request.state.tell(line)
        return error_response(500, f"this is a bug of dbloader: {type(error).__name__}: {error}")
