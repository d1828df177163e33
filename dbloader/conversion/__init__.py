"""Source -> store: in parallel, in order, in bounded memory, resumable."""

from dbloader.conversion.pipeline import convert
from dbloader.conversion.report import Progress, Report

__all__ = ["Progress", "Report", "convert"]
