"""The routes of the training view. They import torch when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from dbloader.errors import OptionError

if TYPE_CHECKING:
    from dbloader.viewing.request import ViewerRequest

_MOST = 2**63 - 1


def answer(request: ViewerRequest, function: str, *given: int) -> Any:
    """Call a function of ``training`` with the options in a request."""
    try:
        from dbloader.viewing import training
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise OptionError("this page needs torch, which is not installed here: pip install torch") from error
    usual = training.Options()._asdict()
    options: Any = {name: request.text(name, usual.pop(name)) for name in ("size", "state")}
    options["drop_last"] = request.integer("drop_last", int(usual.pop("drop_last")), most=1) == 1
    for name, value in usual.items():
        options[name] = request.integer(name, value, least=-_MOST if name == "seed" else 0)
    return getattr(training, function)(request.store, *given, training.Options(**options), request.shared.transform)


def answer_image(request: ViewerRequest) -> Response:
    """Return an image as the network gets it; the header X-Values says how its values are shown."""
    data, note = answer(request, "show_image", request.integer("index"), request.integer("position"))
    return Response(data, media_type="image/png", headers={"Cache-Control": "no-store", "X-Values": note})
