"""A training that torchrun restarts. Its model counts how often each sample was trained on.

Every few steps it saves the model and the state of the loader together, like docs/examples/train.py.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from dbloader import LMDBDataset, create_loader
from dbloader.sampling import BlockShuffleSampler

EPOCHS = 2
SAVE_EVERY = 3


def train(place: str, folder: str, deaths: list[str]) -> None:
    """Train as one of the ranks. Die by SIGKILL once for each "rank step moment" in ``deaths``."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()

    def live(moment: str) -> None:
        death = f"{rank} {step} {moment}"
        if death in deaths and not (Path(folder) / death).exists():
            (Path(folder) / death).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    dataset = LMDBDataset(place, fields=("index", "image"))
    sampler = BlockShuffleSampler(dataset, lanes=12)
    loader = create_loader(dataset, 8, 8, is_training=True, sampler=sampler, device=None, num_workers=1)
    trained, step = torch.zeros(EPOCHS, len(dataset), dtype=torch.int64), 0
    checkpoint = Path(folder) / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        trained, step = saved["trained"], saved["step"]
        loader.load_state_dict(saved["loader"])
    for epoch in range(loader.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            step += 1
            gradient = torch.zeros_like(trained)
            gradient[epoch].index_add_(0, batch["index"], torch.ones(len(batch["index"]), dtype=torch.int64))
            live("received")
            torch.distributed.all_reduce(gradient)
            trained += gradient
            live("trained")
            if rank == 0 and (step % SAVE_EVERY == 0 or loader.state_dict()["epoch"] == EPOCHS):
                state: dict[str, Any] = {"trained": trained, "step": step, "loader": loader.state_dict()}
                aside = checkpoint.with_suffix(".new")
                torch.save(state, aside)
                live("saved")
                aside.replace(checkpoint)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("folder")
    parser.add_argument("--die", action="append", default=[])
    arguments = parser.parse_args()
    train(arguments.place, arguments.folder, arguments.die)
