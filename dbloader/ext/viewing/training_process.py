"""Call the training view in a separate process. When the process ends, torch's 150 MB of memory are free again.

This module imports no torch.
"""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader._machine import sigint_blocked
from dbloader.errors import DBLoaderError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from dbloader.stores.base import Store

_IDLE_S = 60  # the process ends after this time without calls
_REPLACED = "another store is at this place now: start the viewer again to see it"


class Training:
    """Calls the functions of the module ``training``. Threads may share this object.

    Args:
        stores: The stores.
        transform: The user's transform, or None for the default of `create_loader`. With ``own_process``, this is the
            name ``module:name`` (see ``load_transform``), because another process loads the transform. A wrong name
            raises an OptionError at once.
        mixture: A mixture of the stores. If given, the view shows the mixture's training.
        own_process: Call the functions in another process. The process is a new Python, so the main module must be
            importable. It ends after a minute without calls.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        transform: Callable[..., Any] | str | None = None,
        mixture: Any = None,
        *,
        own_process: bool = False,
    ) -> None:
        self._stores, self._transform, self._mixture = stores, transform, mixture
        self._own_process = own_process
        self._lock = threading.Lock()
        self._process: Any = None
        self._connection: Connection | None = None
        if own_process and transform is not None:
            self._connect()

    def call(self, function: str, number: int, arguments: tuple[int, ...], options: dict[str, Any]) -> Any:
        """Call a function of ``training`` with the store that has this number, and return its result.

        ``options`` are fields of ``training.Options``.

        Raises:
            OptionError: torch is not installed.
            DBLoaderError: The process was killed during the call.
        """
        if not self._own_process:
            return _call(function, self._mixture or self._stores[number], arguments, options, self._transform)
        request = (function, number, self._stores[number].manifest.digest, arguments, options)
        with self._lock:
            for _ in range(2):  # the idle process may have ended just before the first attempt
                try:
                    connection = self._connection or self._connect()
                    connection.send(request)
                    result = connection.recv()
                    break
                except (EOFError, OSError):
                    self.close()
            else:
                raise DBLoaderError("the process of this page was killed: the store is damaged, or memory is short")
        if isinstance(result, Exception):
            raise result
        return result

    def _connect(self) -> Connection:
        """Start the process. Raise the error if it cannot load the transform."""
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        # Pass the stores as arguments, because a pickled store has its password only while a process starts.
        self._process = context.Process(target=_answer, args=(other, [*self._stores], self._transform), daemon=True)
        with sigint_blocked(), other:
            self._process.start()
        try:
            error = None if self._transform is None else self._connection.recv()
        except EOFError:
            error = OptionError(f"the transform {self._transform} cannot be loaded: its import ended the process")
        if error is not None:
            self.close()
            raise error
        return self._connection

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
            self._process.terminate()
            self._process.join()
            self._process = self._connection = None


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
    except Exception as error:  # the module is the user's code
        raise OptionError(f"the transform {name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise OptionError(f"the transform {name} must be a callable, or a function that returns one, got {found!r}")
    return found


def _answer(connection: Connection, stores: list[Store], name: str | None = None) -> None:
    transform = None
    if name is not None:
        try:
            transform = load_transform(name)
        except OptionError as error:
            connection.send(error)
            return
        connection.send(None)
    while connection.poll(_IDLE_S):
        try:
            function, number, digest, arguments, options = connection.recv()
        except EOFError:  # the viewer has ended
            return
        result: Any = OptionError(_REPLACED)
        try:
            if stores[number].manifest.digest == digest:
                result = _call(function, stores[number], arguments, options, transform)
        except DBLoaderError as error:
            result = error
        except Exception:
            result = RuntimeError(traceback.format_exc())
        connection.send(result)


def _call(function: str, dataset: Any, arguments: tuple[int, ...], options: dict[str, Any], transform: Any) -> Any:
    try:
        from dbloader.ext.viewing import training
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise OptionError("this page needs torch, which is not installed here: pip install torch") from error
    return getattr(training, function)(dataset, *arguments, training.Options(**options), transform)
