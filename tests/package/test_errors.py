"""The exceptions: a tree, as it is drawn in the module, of errors that survive the way out of another process."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re
from typing import Any

import pytest

from dbloader import errors
from dbloader.errors import DBLoaderError, RecordNotFoundError

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == "dbloader.errors"]
each = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)

MESSAGES = ["a.jpg of /data/ü is damaged: 'it' has \"3\" bytes; convert again", "", "two\nlines", "%s {} \\"]


def drawn() -> dict[str, tuple[str | None, list[str], str]]:
    """Read the drawing: the base, the built-in bases and the description of each class."""
    found: dict[str, tuple[str | None, list[str], str]] = {}
    above: list[str] = []  # the class last seen at each depth
    for line in str(errors.__doc__).splitlines():
        match = re.fullmatch(r"((?:[│ ] {3})*(?:[├└]── )?)(\w+Error)\s*(?:\((\w+)\)\s+)?(.*)", line)
        if match:
            indent, name, builtin, text = match.groups()
            above[len(indent) // 4 :] = [name]
            found[name] = (above[-2] if len(above) > 1 else None, [builtin] if builtin else [], text)
    return found


def test_every_class_is_drawn_and_every_drawn_class_exists() -> None:
    assert list(drawn()) == [kind.__name__ for kind in CLASSES]


@each
def test_a_class_has_the_bases_that_are_drawn(kind: type[DBLoaderError]) -> None:
    base, built_in, text = drawn()[kind.__name__]
    bases = [above.__name__ for above in kind.__bases__]
    assert bases == ([base, *built_in] if base else ["Exception"])
    for name in built_in:
        assert issubclass(kind, getattr(builtins, name))
    assert issubclass(kind, DBLoaderError)
    # What has no error below it, and so is raised itself, says what it is; and what is raised is a built-in too.
    if not any(other[0] == kind.__name__ for other in drawn().values()):
        assert text
        assert any(above.__module__ == "builtins" and above is not Exception for above in kind.__mro__[1:-3])


@each
def test_a_class_is_documented(kind: type[DBLoaderError]) -> None:
    assert re.fullmatch(r"[A-Z].*\.", (kind.__doc__ or "").split("\n")[0])
    assert kind.__doc__ is not kind.__bases__[0].__doc__


@each
def test_an_error_is_made_of_one_string_which_it_shows(kind: type[DBLoaderError]) -> None:
    for message in MESSAGES:
        error = kind(message)
        assert str(error) == message
        assert f"{error}" == message
        assert error.args == (message,)


@each
def test_an_error_survives_pickling_and_copying(kind: type[DBLoaderError]) -> None:
    for message in MESSAGES:
        original = kind(message)
        original.add_note("where")
        pickled = [pickle.dumps(original, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for error in (*map(pickle.loads, pickled), copy.copy(original), copy.deepcopy(original)):
            assert type(error) is kind
            assert str(error) == message
            assert error.args == (message,)
            assert error.__notes__ == ["where"]


@each
def test_an_error_survives_the_way_out_of_a_dataloader_worker(kind: type[DBLoaderError]) -> None:
    # torch makes the error anew from one string, the traceback in the worker; but it makes a KeyError show newlines.
    from torch import _utils

    wrapper: Any = _utils.ExceptionWrapper
    try:
        raise kind("what is wrong")
    except DBLoaderError:
        wrapped = wrapper(where="in DataLoader worker process 0")
    with pytest.raises(
        kind, match=rf"(?s)^Caught {kind.__name__} in DataLoader worker .*{kind.__name__}: what is wrong"
    ):
        pickle.loads(pickle.dumps(wrapped)).reraise()  # noqa: S301 - our own


def test_an_error_about_a_name_reads_as_a_sentence_though_it_is_a_key_error() -> None:
    assert str(KeyError("it's")) == '"it\'s"'
    assert str(RecordNotFoundError("it's")) == "it's"
    with pytest.raises(KeyError, match=r"^it's$"):
        raise RecordNotFoundError("it's")
