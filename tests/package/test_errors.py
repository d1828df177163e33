"""The module of errors draws their tree, and every error can be sent between processes."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re

import pytest

from dbloader import errors
from dbloader.errors import DBLoaderError, RecordNotFoundError

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == "dbloader.errors"]
each = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)

MESSAGES = ["a.jpg of /data/ü is damaged: 'it' has \"3\" bytes; convert again", "", "two\nlines", "%s {} \\"]


def drawn() -> dict[str, tuple[str | None, list[str], str]]:
    """Return the base, the built-in bases and the description of each class in the tree."""
    found: dict[str, tuple[str | None, list[str], str]] = {}
    above: list[str] = []  # the latest class at each depth of the tree
    for line in str(errors.__doc__).splitlines():
        match = re.fullmatch(r"((?:[│ ] {3})*(?:[├└]── )?)(\w+Error)\s*(?:\((\w+)\)\s+)?(.*)", line)
        if match:
            indent, name, builtin, text = match.groups()
            above[len(indent) // 4 :] = [name]
            found[name] = (above[-2] if len(above) > 1 else None, [builtin] if builtin else [], text)
    return found


def test_drawn_tree_shows_every_error() -> None:
    assert list(drawn()) == [kind.__name__ for kind in CLASSES]


@each
def test_error_has_the_drawn_bases_and_a_docstring(kind: type[DBLoaderError]) -> None:
    base, built_in, text = drawn()[kind.__name__]
    assert [above.__name__ for above in kind.__bases__] == ([base, *built_in] if base else ["Exception"])
    assert all(issubclass(kind, getattr(builtins, name)) for name in built_in)
    # A class without subclasses is raised itself, so it needs a description and a built-in base.
    if not any(other[0] == kind.__name__ for other in drawn().values()):
        assert text
        assert any(above.__module__ == "builtins" and above is not Exception for above in kind.__mro__[1:-3])
    assert re.fullmatch(r"[A-Z].*\.", (kind.__doc__ or "").split("\n")[0])
    assert kind.__doc__ is not kind.__bases__[0].__doc__


@each
def test_error_is_constructed_from_one_string_and_survives_pickling(kind: type[DBLoaderError]) -> None:
    for message in MESSAGES:
        original = kind(message)
        assert f"{original}" == message
        original.add_note("where")
        pickled = [pickle.dumps(original, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for error in (*map(pickle.loads, pickled), copy.copy(original), copy.deepcopy(original)):
            assert type(error) is kind
            assert (str(error), error.args, error.__notes__) == (message, (message,), ["where"])


def test_record_not_found_error_shows_its_message_without_quotes() -> None:
    assert str(KeyError("it's")) == '"it\'s"'
    assert str(RecordNotFoundError("it's")) == "it's"
