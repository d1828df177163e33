"""Format values, sizes and loaders for messages and reprs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unicodedata import category

from dbloader.errors import LoaderError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# `printable` keeps zero-width joiners, because Persian and Indian spelling needs them.
_JOINERS = "\u200c\u200d"
_LISTED = 10  # a printed report shows at most this many items of each list


def short_repr(value: object, most: int = 100) -> str:
    """Return the repr of a value, cut to ``most`` letters."""
    return cut(repr(value), most)


def listed(names: Iterable[str]) -> str:
    """Join names with commas, for a message. A result of more than 1,000 letters is cut."""
    return cut(", ".join(names), 1000)


def cut(text: str, most: int) -> str:
    """Shorten a text to at most ``most`` letters: an ellipsis replaces its end."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def describe(loader: Any) -> str:
    """Return a repr of a loader: its type, and the known numbers of batches, samples and workers."""
    dataset = getattr(loader, "dataset", None)
    batch_size = getattr(loader, "batch_size", None)
    if batch_size is None:
        batch_size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    batches, samples = _length(loader), _length(dataset)
    parts = []
    if batches is not None:
        parts.append(f"{batches:,} batches" + (f" of {batch_size:,}" if isinstance(batch_size, int) else ""))
    if dataset is not None:
        parts.append(type(dataset).__name__ + ("" if samples is None else f" of {samples:,} samples"))
    if isinstance(workers := getattr(loader, "num_workers", None), int):
        parts.append(f"{workers} workers")
    return f"{type(loader).__name__}({', '.join(parts)})"


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, OptionError):  # an IterableDataset has no length; a sampler may not know the number of ranks yet
        return None


def stop_iteration_error(what: str) -> LoaderError:
    """Return the error to raise if a user's function raises StopIteration, which would silently end the epoch."""
    return LoaderError(
        f"StopIteration was raised while {what} was made, and would silently end the epoch: "
        "catch StopIteration in the function that raises it, or give next() a default value"
    )


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, unless the error has it already."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def counted(number: int, thing: str) -> str:
    """Return a number with its noun: "1 record", "2,000 records"."""
    return f"{number:,} {thing}{'' if number == 1 else 'es' if thing.endswith('s') else 's'}"


def size(nbytes: float) -> str:
    """Return a size with its unit: "17 bytes", "1.3 MB". 1 kB is 1,000 bytes."""
    if nbytes < 1000:
        return counted(int(nbytes), "byte")
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.95:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1000:,.1f} TB"


def report_in_lines(report: Any) -> str:
    """Format the attributes of a dataclass or named tuple as text for people. Omit attributes that are empty or 0."""
    facts = {name: getattr(report, name) for name in type(report).__annotations__}
    return in_lines({name.replace("_", " "): _fact(name, value) for name, value in facts.items() if value})


def in_lines(facts: Mapping[str, str]) -> str:
    """Return text with one line for each fact: its title and its value. Omit facts whose value is empty."""
    width = max(map(len, facts), default=0)
    return "\n".join(f"{name:{width}}  {fact}" for name, fact in facts.items() if fact)


def print_pretty(shown: object, printer: Any, _cycle: bool) -> None:
    """Show an object's str, not its repr, in IPython and notebooks. A class sets ``_repr_pretty_ = print_pretty``."""
    printer.text(str(shown))


def _fact(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(key, item)}" for key, item in value.items() if item not in (None, ""))
    if isinstance(value, (list, tuple)):
        more = [f"and {len(value) - _LISTED:,} more"] if len(value) > _LISTED else []
        return "\n    ".join([*(_fact(name, item) for item in value[:_LISTED]), *more])
    if isinstance(value, int):
        return size(value) if name in ("image_bytes", "bytes_read") else f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else printable(str(value))


def printable(text: str) -> str:
    r"""Escape characters that could control a terminal, such as ``\x1b``.

    The function escapes control characters, newlines, line and paragraph separators, invisible characters, characters
    that change the direction of writing, and lone surrogates. It keeps the letters of all scripts.
    """
    if text.isprintable():
        return text
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    letters = [letter for letter in {*text}.difference(_JOINERS) if category(letter) in kinds]
    return text.translate({ord(letter): ascii(letter)[1:-1] for letter in letters})
