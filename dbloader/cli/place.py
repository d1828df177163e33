"""The type of arguments that are places."""

from __future__ import annotations

from typing import Any

import click
from typing_extensions import override

from dbloader.cli.redacting import redacted
from dbloader.stores.mongo.uri import is_mongo


class PlaceArgument(click.Path):
    """A path, which a shell can complete, or the URI of a collection."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        mistyped = value.lower().startswith("mongo") and not is_mongo(value)
        if mistyped and redacted(value) != value:  # a file of that name would have the password in its path
            self.fail(f"{value} is mistyped: a place in MongoDB is mongodb://host/database.collection", param, ctx)
        return super().convert(value, param, ctx)
