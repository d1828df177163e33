"""The version of dbloader."""

VERSION = "0.1.0"
