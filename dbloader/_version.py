"""The version of dbloader."""

__version__ = "0.1.0"
