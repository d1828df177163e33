"""Prints what a figure depends on: the machine and the versions."""

from __future__ import annotations

from dbloader.loading.benchmark.machine import describe_machine

if __name__ == "__main__":
    print(describe_machine())
