"""The groups of duplicates that the last ``dbloader duplicates`` has found in a store."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from dbloader.checking.duplicates import describe_rows
from dbloader.checking.fingerprints import load_groups
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from dbloader.stores.base import Store

_MOST_GROUPS, _MOST_IN_GROUP = 100, 60


def list_groups(store: Store, start: int, count: int) -> dict[str, Any]:
    """Return ``total`` and some ``groups``: at most 100, each with at most 60 of its ``count`` duplicates.

    Raises:
        OptionError: This store was not searched for duplicates. The message has the command for it.
    """
    kept = load_groups(store)
    if kept is None:
        command = shlex.join(["dbloader", "duplicates", store.place])
        raise OptionError(
            f"these images were not searched for duplicates yet: run this, and load the page again: {command}"
        )
    total, groups = len(kept.begins) - 1, []
    for number in range(start, min(start + min(count, _MOST_GROUPS), total)):
        first, end = kept.begins[number : number + 2].tolist()
        rows = [*describe_rows(kept.rows[first : min(end, first + _MOST_IN_GROUP)], store, store)]
        groups.append({"index": rows[0]["of"], "name": rows[0]["of_name"], "count": end - first, "others": rows})
    return {"total": total, "duplicates": len(kept.rows), "distance": kept.distance, "groups": groups}
