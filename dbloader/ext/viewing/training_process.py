"""Call the training view in a separate process. The end of this process frees the 150 MB that torch needs.

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


class TrainingView:
    """Answers requests of the training view for a batch or an image. Threads may share this object.

    Without a transform, the view shows the default of `create_loader`. With ``own_process``, a spawned process makes
    the answers. It imports the main module and the transform, so ``transform`` must be a text ``module:name``
    (see ``load_transform``). A wrong name raises an OptionError at once.
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

    def answer(self, number: int, options: dict[str, Any], *record: int) -> Any:
        """Return a batch of store ``number``. With ``record``, return the image that training gets from this record.

        ``options`` are fields of ``training.Options``. ``record`` is the index of a record and its position in the
        epoch.

        Raises:
            OptionError: The request is wrong, torch is not installed, or the store was replaced.
            DBLoaderError: The process was killed during the call.
        """
        store = self._stores[number]
        if not self._own_process:
            return _show(self._mixture or store, self._transform, options, record)
        with self._lock:
            for _ in range(2):  # the idle process may end just before the first attempt
                try:
                    connection = self._connection or self._connect()
                    connection.send((number, store.manifest.digest, options, record))
                    value, error = connection.recv()
                    break
                except (EOFError, OSError):
                    self.close()
            else:
                raise DBLoaderError("the process of this page was killed: the store is damaged, or memory is short")
        if error is not None:
            raise error
        return value

    def _connect(self) -> Connection:
        """Start the process. Raise an error if the transform cannot be loaded."""
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        # Pickle includes a store's password only in the arguments of a new process, so pass the stores as arguments.
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
    """Import the transform ``module:name``. Search the current directory first, like ``python -m``.

    If a function or class needs no arguments, call it: its result is the transform.

    Raises:
        OptionError: The module cannot be imported or has no such name, or the transform is not callable.
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


def _show(shown: Any, transform: Any, options: dict[str, Any], record: tuple[int, ...]) -> Any:
    """Return a batch, or the image of ``record``, for the page. Raise OptionError if torch is not installed."""
    try:
        from dbloader.ext.viewing import training
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise OptionError("this page needs torch, which is not installed here: pip install torch") from error
    given = training.Options(**options)
    if not record:
        return training.show_batch(shown, given, transform)
    index, position = record
    return training.show_image(shown, index, position, given, transform)


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
            number, digest, options, record = connection.recv()
        except EOFError:  # the viewer has ended
            return
        value: Any = None
        problem: Exception | None = None
        try:
            if stores[number].manifest.digest == digest:
                value = _show(stores[number], transform, options, record)
            else:
                problem = OptionError("another store is at this place now: start the viewer again to see it")
        except DBLoaderError as error:
            problem = error
        except Exception:
            problem = RuntimeError(traceback.format_exc())
        connection.send((value, problem))
