"""The routes of the viewer. Each takes values from a request and calls one function of this package."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import traceback
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dbloader._describe import short_repr
from dbloader._machine import cpu_count
from dbloader.errors import (
    DamagedRecordError,
    DBLoaderError,
    ImageError,
    NotAStoreError,
    OptionError,
    RecordIndexError,
    RecordNotFoundError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.mongo.uri import is_mongo
from dbloader.viewing import summary, training_routes
from dbloader.viewing.duplicates import list_groups
from dbloader.viewing.files import stored_file
from dbloader.viewing.guard import error_response
from dbloader.viewing.listing import FORMATS, stream_listing
from dbloader.viewing.record import show_record
from dbloader.viewing.request import ViewerRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.requests import Request

    from dbloader.viewing.request import Shared

    _Function = Callable[[ViewerRequest], Any]
    _Route = tuple[str, _Function, bool]

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The files of /static/NAME by name. No path is ever made from a request.
STATIC = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in (Path(__file__).parent / "static").glob("*")
    if path.suffix in _TYPES
}
_STATUS = (
    *((OptionError, 400), (RecordIndexError, 404), (RecordNotFoundError, 404)),
    *((DamagedRecordError, 422), (ImageError, 422), (StoreUnreachableError, 503)),
)
_GONE = 499  # nginx's status for a client that has closed the connection
# LMDB's pages are released now and then. Otherwise the pages of all images that were looked at would count as this
# process's memory: 600 MB after 4,500 thumbnails of ten million.
_ANSWERS, _RELEASED_AFTER = itertools.count(1), 50


def _stores(request: ViewerRequest) -> list[dict[str, Any]]:
    return [
        {
            **asdict(store.manifest),
            "place": store.place,
            "kind": "mongodb" if is_mongo(store.place) else "lmdb",
            "records": len(store),
            "file_fields": store.manifest.file_fields,
            "started": request.shared.started,
        }
        for store in request.shared.stores
    ]


def _note(request: ViewerRequest) -> dict[str, str | None]:
    """Return a note if the store at the place is not the one that the viewer shows, or is gone."""
    with copy.copy(request.store) as now:  # which opens what is there
        try:
            if now.manifest == request.store.manifest:
                return {"note": None}
            found = "another store is"
        except (NotAStoreError, StoreNotFoundError):
            found = "no store is"
    return {"note": f"This is {now.place} as it was when the viewer was started: {found} there now."}


def _rows(request: ViewerRequest) -> dict[str, Any]:
    return summary.rows(
        request.selections, request.text("q"), request.integer("start", 0), request.integer("count", 200)
    )


def _position(request: ViewerRequest) -> dict[str, int | None]:
    selections, text, where = request.selections, request.text("q"), request.text("class")
    if not where:
        return {"position": selections.position(text, request.integer("index"))}
    if where not in ("next", "previous"):
        raise OptionError(f"class must be next or previous, got {short_repr(where, 50)}")
    return {"position": selections.neighbor(text, request.integer("from"), forward=where == "next")}


def _listing(request: ViewerRequest) -> Response:
    kind = request.text("format", "csv")
    parts = stream_listing(request.selections, request.text("q"), kind)
    headers = {"Content-Disposition": f'attachment; filename="selection.{kind}"'}
    return StreamingResponse(parts, media_type=FORMATS[kind], headers=headers)


def _report(request: ViewerRequest) -> dict[str, Any]:
    start, count = request.integer("start", 0), request.integer("count", 200)
    return request.selections.report.read(request.text("event"), request.text("text"), start, count)


def _thumbnail(request: ViewerRequest) -> Response:
    index, px = request.integer("index"), request.integer("px", 320)
    data, kind = request.shared.thumbnails.get(request.store, index, px, _field(request))
    return _kept(request, data, {"Content-Type": kind})


def _image(request: ViewerRequest) -> Response:
    download = request.text("download") == "1"
    return _kept(request, *stored_file(request.store, request.integer("index"), _field(request), download=download))


def _field(request: ViewerRequest) -> int | None:
    return request.integer("field") if request.text("field") else None


def _kept(request: ViewerRequest, data: bytes, headers: dict[str, str]) -> Response:
    """Return a file. The browser keeps it if its address has the ``started`` of this viewer."""
    is_own = request.text("v") == request.shared.started
    headers["Cache-Control"] = f"private, {'max-age=31536000, immutable' if is_own else 'no-cache'}"
    return Response(data, headers=headers)


# Path, function, and whether it decodes images. At most as many decoding functions run at a time as there are cores.
# A function takes a request, and returns a Response or a value of JSON.
ROUTES: tuple[_Route, ...] = (
    ("/", lambda _: _file("index.html"), False),
    ("/static/{name}", lambda request: _file(request.text("name")), False),
    ("/api/stores", _stores, False),
    ("/api/{s}/note", _note, False),
    ("/api/{s}/select", lambda request: summary.select(request.selections, request.text("q")), False),
    ("/api/{s}/rows", _rows, False),
    ("/api/{s}/summary", lambda request: summary.count(request.selections, request.text("q")), False),
    ("/api/{s}/position", _position, False),
    ("/listing/{s}", _listing, False),
    ("/api/{s}/training", lambda request: training_routes.answer(request, "show_batch"), False),
    (
        "/api/{s}/epochs/{index}",
        lambda request: training_routes.answer(request, "show_epochs", request.integer("index")),
        False,
    ),
    ("/seen/{s}/{index}", training_routes.answer_image, True),
    ("/api/{s}/record/{index}", lambda request: show_record(request.store, request.integer("index")), True),
    ("/api/{s}/report", _report, False),
    (
        "/api/{s}/duplicates",
        lambda request: list_groups(request.store, request.integer("start", 0), request.integer("count", 100)),
        False,
    ),
    ("/thumb/{s}/{index}", _thumbnail, True),
    ("/image/{s}/{index}", _image, False),
)


def create_app(shared: Shared, routes: Iterable[_Route] = ROUTES) -> Starlette:
    """Return the ASGI application of the viewer, without its guard."""
    slots = asyncio.Semaphore(cpu_count())

    def endpoint(
        function: Callable[[ViewerRequest], Any], *, decodes: bool
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            async with slots if decodes else nullcontext():
                if await request.is_disconnected():  # the image was scrolled away while the request waited
                    return Response(status_code=_GONE)
                return await run_in_threadpool(_answer, function, ViewerRequest(shared, request))

        return answer

    app = Starlette(
        routes=[Route(path, endpoint(function, decodes=decodes)) for path, function, decodes in routes],
        exception_handlers={HTTPException: _no_route},
    )
    app.router.redirect_slashes = False  # a redirect would repeat the path of the request
    return app


def _answer(function: _Function, request: ViewerRequest) -> Response:
    try:
        found = function(request)
        if not next(_ANSWERS) % _RELEASED_AFTER:
            for store in request.shared.stores:
                if isinstance(store, LMDBStore):
                    store.release_pages()
        # ASCII, so that a name of any characters can be sent.
        return found if isinstance(found, Response) else _json(found)
    except DBLoaderError as error:
        return error_response(next((status for kind, status in _STATUS if isinstance(error, kind)), 500), str(error))
    except Exception as error:
        for line in traceback.format_exc().splitlines():
            request.shared.tell(line)
        return error_response(500, f"this is a bug of dbloader: {type(error).__name__}: {error}")


def _json(value: Any) -> Response:
    return Response(json.dumps(value, allow_nan=False), media_type="application/json")


def _file(name: str) -> Response:
    if name not in STATIC:
        return error_response(404, "nothing is here")
    data, kind = STATIC[name]
    return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})


async def _no_route(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return error_response(status, "nothing is here")
