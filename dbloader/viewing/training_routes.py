"""What the training view asks for; here and in ``training`` only is torch imported, when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from dbloader.errors import OptionError

if TYPE_CHECKING:
    from dbloader.viewing.asked import Asked

_MOST = 2**63 - 1


def answer(asked: Asked, function: str, *given: int) -> Any:
    """Return what a function of ``training`` makes of the options that were asked for."""
    try:
        from dbloader.viewing import training
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise OptionError("this page needs torch, which is not installed here: pip install torch") from error
    usual = training.Options()._asdict()
    options: Any = {name: asked.text(name, usual.pop(name)) for name in ("size", "state")}
    options["drop_last"] = asked.integer("drop_last", int(usual.pop("drop_last")), most=1) == 1
    for name, value in usual.items():
        options[name] = asked.integer(name, value, least=-_MOST if name == "seed" else 0)
    return getattr(training, function)(asked.store, *given, training.Options(**options), asked.shown.transform)


def answer_image(asked: Asked) -> Response:
    """Return an image as the network gets it; the header X-Values says how its values are shown."""
    data, note = answer(asked, "show_image", asked.integer("index"), asked.integer("position"))
    return Response(data, media_type="image/png", headers={"Cache-Control": "no-store", "X-Values": note})
