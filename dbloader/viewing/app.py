"""The routes of the viewer. Each takes integers and a query from a request and calls one function of this package."""

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
from dbloader.viewing import facts, training_routes
from dbloader.viewing.asked import Asked
from dbloader.viewing.duplicates import list_groups
from dbloader.viewing.files import stored_file
from dbloader.viewing.guard import error_response
from dbloader.viewing.listing import FORMATS, stream_listing
from dbloader.viewing.record import show_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.requests import Request

    from dbloader.viewing.asked import Shown

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# What /static/NAME may give, by name. No path is ever made from a request.
STATIC = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in (Path(__file__).parent / "static").glob("*")
    if path.suffix in _TYPES
}
_STATUS = (
    *((OptionError, 400), (RecordIndexError, 404), (RecordNotFoundError, 404)),
    *((DamagedRecordError, 422), (ImageError, 422), (StoreUnreachableError, 503)),
)
_GONE = 499  # as nginx has it: the browser is gone
# All images that were looked at would stay in this process's memory: 600 MB after 4,500 thumbnails of ten million.
_ANSWERS, _RELEASED_AFTER = itertools.count(1), 50


def _stores(asked: Asked) -> list[dict[str, Any]]:
    return [
        {
            **asdict(store.manifest),
            "place": store.place,
            "kind": "mongodb" if is_mongo(store.place) else "lmdb",
            "records": len(store),
            "file_fields": store.manifest.file_fields,
            "started": asked.shown.started,
        }
        for store in asked.shown.stores
    ]


def _note(asked: Asked) -> dict[str, str | None]:
    """Return a sentence if the place has another store by now than the one that is shown."""
    with copy.copy(asked.store) as now:  # which opens what is there
        try:
            if now.manifest == asked.store.manifest:
                return {"note": None}
            found = "another store is"
        except (NotAStoreError, StoreNotFoundError):
            found = "no store is"
    return {"note": f"This is {now.place} as it was when the viewer was started: {found} there now."}


def _rows(asked: Asked) -> dict[str, Any]:
    return facts.rows(asked.selections, asked.text("q"), asked.integer("start", 0), asked.integer("count", 200))


def _position(asked: Asked) -> dict[str, int | None]:
    selections, text, where = asked.selections, asked.text("q"), asked.text("class")
    if not where:
        return {"position": selections.position(text, asked.integer("index"))}
    if where not in ("next", "previous"):
        raise OptionError(f"class must be next or previous, got {short_repr(where, 50)}")
    return {"position": selections.neighbor(text, asked.integer("from"), forward=where == "next")}


def _listing(asked: Asked) -> Response:
    kind = asked.text("format", "csv")
    parts = stream_listing(asked.selections, asked.text("q"), kind)
    headers = {"Content-Disposition": f'attachment; filename="selection.{kind}"'}
    return StreamingResponse(parts, media_type=FORMATS[kind], headers=headers)


def _report(asked: Asked) -> dict[str, Any]:
    start, count = asked.integer("start", 0), asked.integer("count", 200)
    return asked.selections.report.read(asked.text("event"), asked.text("text"), start, count)


def _thumbnail(asked: Asked) -> Response:
    index, px = asked.integer("index"), asked.integer("px", 320)
    data, kind = asked.shown.thumbnails.get(asked.store, index, px, _field(asked))
    return _kept(asked, data, {"Content-Type": kind})


def _image(asked: Asked) -> Response:
    download = asked.text("download") == "1"
    return _kept(asked, *stored_file(asked.store, asked.integer("index"), _field(asked), download=download))


def _field(asked: Asked) -> int | None:
    return asked.integer("field") if asked.text("field") else None


def _kept(asked: Asked, data: bytes, headers: dict[str, str]) -> Response:
    """Return a file, which the browser keeps if its address is of this start of the viewer."""
    is_own = asked.text("v") == asked.shown.started
    headers["Cache-Control"] = f"private, {'max-age=31536000, immutable' if is_own else 'no-cache'}"
    return Response(data, headers=headers)


# Path, function, and whether it decodes images: of those run as many at a time as the machine has cores.
# A function takes what was asked and returns a Response, or what becomes JSON.
ROUTES: tuple[tuple[str, Callable[[Asked], Any], bool], ...] = (
    ("/", lambda _: _file("index.html"), False),
    ("/static/{name}", lambda asked: _file(asked.text("name")), False),
    ("/api/stores", _stores, False),
    ("/api/{s}/note", _note, False),
    ("/api/{s}/select", lambda asked: facts.select(asked.selections, asked.text("q")), False),
    ("/api/{s}/rows", _rows, False),
    ("/api/{s}/facts", lambda asked: facts.count(asked.selections, asked.text("q")), False),
    ("/api/{s}/position", _position, False),
    ("/listing/{s}", _listing, False),
    ("/api/{s}/training", lambda asked: training_routes.answer(asked, "show_batch"), False),
    (
        "/api/{s}/epochs/{index}",
        lambda asked: training_routes.answer(asked, "show_epochs", asked.integer("index")),
        False,
    ),
    ("/seen/{s}/{index}", training_routes.answer_image, True),
    ("/api/{s}/record/{index}", lambda asked: show_record(asked.store, asked.integer("index")), True),
    ("/api/{s}/report", _report, False),
    (
        "/api/{s}/duplicates",
        lambda asked: list_groups(asked.store, asked.integer("start", 0), asked.integer("count", 100)),
        False,
    ),
    ("/thumb/{s}/{index}", _thumbnail, True),
    ("/image/{s}/{index}", _image, False),
)


def create_app(shown: Shown, routes: Iterable[tuple[str, Callable[[Asked], Any], bool]] = ROUTES) -> Starlette:
    """Return the ASGI application of the viewer, without its guard."""
    slots = asyncio.Semaphore(cpu_count())

    def endpoint(function: Callable[[Asked], Any], *, decodes: bool) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            async with slots if decodes else nullcontext():
                if await request.is_disconnected():  # its image was scrolled away while it waited
                    return Response(status_code=_GONE)
                return await run_in_threadpool(_answer, function, Asked(shown, request))

        return answer

    app = Starlette(
        routes=[Route(path, endpoint(function, decodes=decodes)) for path, function, decodes in routes],
        exception_handlers={HTTPException: _no_route},
    )
    app.router.redirect_slashes = False  # a redirect would repeat what was asked
    return app


def _answer(function: Callable[[Asked], Any], asked: Asked) -> Response:
    try:
        found = function(asked)
        if not next(_ANSWERS) % _RELEASED_AFTER:
            for store in asked.shown.stores:
                if isinstance(store, LMDBStore):
                    store.release_pages()
        # ASCII, so that a name of any characters can be sent.
        return found if isinstance(found, Response) else _json(found)
    except DBLoaderError as error:
        return error_response(next((status for kind, status in _STATUS if isinstance(error, kind)), 500), str(error))
    except Exception as error:
        for line in traceback.format_exc().splitlines():
            asked.shown.tell(line)
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
