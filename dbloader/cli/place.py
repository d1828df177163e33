"""The type of arguments that are places."""

from __future__ import annotations

from typing import Any

import click
from typing_extensions import override

from dbloader.cli.redacting import Argument
from dbloader.stores.mongo.uri import is_mongo


class PlaceArgument(click.Path):
    """A path, which a shell can complete, or the URI of a collection, which messages show without its password."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, Argument):
            return super().convert(value, param, ctx)
        if value.given.lower().startswith("mongo") and not is_mongo(value.given):
            self.fail(f"{value} is mistyped: a place in MongoDB is mongodb://host/database.collection", param, ctx)
        return value.given
