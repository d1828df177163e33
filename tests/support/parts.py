"""Conversions in parts."""

from __future__ import annotations

import os
from typing import Any

from dbloader.conversion.settings import Settings
from dbloader.ext.parts.make_plan import plan_parts
from dbloader.ext.parts.plan import Plan


def plan_conversion(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    shards: int,
    *,
    append: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> Plan:
    """Plan a conversion with the options of ``convert``."""
    return plan_parts(Settings(source=source, **options), destination, shards, append=append, overwrite=overwrite)
