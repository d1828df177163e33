"""The options and the transform of the training view. This module imports no torch."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any, NamedTuple

from dbloader.errors import OptionError


class Options(NamedTuple):
    """Settings that decide the batches of a training, with the names and defaults of `create_loader`."""

    seed: int = 0
    epoch: int = 0
    batch_size: int = 32
    world_size: int = 1
    rank: int = 0
    step: int = 0
    size: str = "224"  # height and width in pixels: "224", or "192x256"
    drop_last: bool = True
    state: str = ""  # a state_dict() as JSON. It sets the order, seed and epoch, and the position of step 0


def load_transform(name: str) -> Any:
    """Import the transform ``module:name``. The current directory is searched first, as by ``python -m``.

    A function or class that can be called without arguments is called, and its result is the transform.

    Raises:
        OptionError: The module cannot be imported, does not have the name, or the transform cannot be called.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise OptionError(f"a transform must be MODULE:NAME, such as train:make_transform, got {name!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
        if inspect.isfunction(found) or inspect.isclass(found):
            parameters = inspect.signature(found).parameters.values()
            if all(parameter.default is not parameter.empty for parameter in parameters):
                found = found()
    except (Exception, SystemExit) as error:  # the module is the user's code
        raise OptionError(f"the transform {name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise OptionError(f"the transform {name} must be a callable, or a function that returns one, got {found!r}")
    return found
