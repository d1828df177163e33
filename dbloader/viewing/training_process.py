"""Call the training view in a separate process. When the process ends, torch's 150 MB of memory are free again."""

from __future__ import annotations

import multiprocessing
import threading
import traceback
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
        transform: The user's transform; None for the default of `create_loader`.
        mixture: A mixture of the stores. If given, the view shows the mixture's training.
        own_process: Call the functions in another process, unless there is a transform. The process is a new Python, so
            the main module must be importable. It ends after a minute without calls.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        transform: Callable[..., Any] | None = None,
        mixture: Any = None,
        *,
        own_process: bool = False,
    ) -> None:
        self._stores, self._transform, self._mixture = stores, transform, mixture
        self._own_process = own_process and transform is None
        self._lock = threading.Lock()
        self._process: Any = None
        self._connection: Connection | None = None

    def call(self, function: str, number: int, *arguments: Any) -> Any:
        """Call a function of ``training`` with the store of this number, and return its result.

        Raises:
            OptionError: torch is not installed.
            DBLoaderError: The process was killed during the call.
        """
        if not self._own_process:
            return _call(function, self._mixture or self._stores[number], *arguments, self._transform)
        request = (function, number, self._stores[number].manifest.digest, *arguments)
        with self._lock:
            for _ in range(2):  # an idle process may end just now
                try:
                    result = self._ask(request)
                    break
                except (EOFError, OSError):
                    self.close()
            else:
                raise DBLoaderError("the process of this page was killed: the store is damaged, or memory is short")
        if isinstance(result, Exception):
            raise result
        return result

    def _ask(self, request: tuple[Any, ...]) -> Any:
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, other = context.Pipe()
            # Stores are arguments, because a password can be pickled only for a process that is being started.
            self._process = context.Process(target=_answer, args=(other, [*self._stores]), daemon=True)
            with sigint_blocked(), other:
                self._process.start()
        self._connection.send(request)
        return self._connection.recv()

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
            self._process.terminate()
            self._process.join()
            self._process = self._connection = None


def _answer(connection: Connection, stores: list[Store]) -> None:
    while connection.poll(_IDLE_S):
        try:
            function, number, digest, *arguments = connection.recv()
        except EOFError:  # the viewer has ended
            return
        try:
            is_same = stores[number].manifest.digest == digest
            result = _call(function, stores[number], *arguments, None) if is_same else OptionError(_REPLACED)
        except DBLoaderError as error:
            result = error
        except Exception:
            result = RuntimeError(traceback.format_exc())
        connection.send(result)


def _call(function: str, *arguments: Any) -> Any:
    try:
        from dbloader.viewing import training
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise OptionError("this page needs torch, which is not installed here: pip install torch") from error
    return getattr(training, function)(*arguments)
