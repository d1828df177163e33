"""Threads that compute by themselves."""

from __future__ import annotations

import functools

import torch
from threadpoolctl import ThreadpoolController


def limit_intraop_threads() -> None:
    """Has what this thread calls of torch run in it alone, as a DataLoader's worker processes have it.

    torch divides larger operations among as many threads as there are cores, and every thread that calls it has a team
    of its own: workers that are many already would only get into each other's way. OpenMP, by which torch does that,
    keeps the size of the team for each thread. ``torch.set_num_threads`` changes it for threads to come, too.
    """
    torch.get_num_threads()  # the first time that a thread asks, torch sets it
    _controller().limit(limits=1, user_api="openmp")


@functools.lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Look through the libraries of this process, which takes 10 ms."""
    return ThreadpoolController()
