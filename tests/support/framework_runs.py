"""Train with real frameworks, interrupt, resume, and compare the samples.

    python tests/support/framework_runs.py [FRAMEWORK ...]     trains in one process and in two, and prints a table

The tests and ``scripts/frameworks`` run this program. Each function imports its framework, which takes seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Container, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from dbloader import PrefetchLoader, create_loader
from dbloader.errors import DBLoaderError
from dbloader.sampling import ShuffleSampler
from dbloader.sampling.permutation import Permutation

LENGTH, BATCH, EPOCHS = 25, 4, 2  # with one or two processes, the last batches are smaller
LIMIT_S = 80  # a hanging run ends before pytest ends itself (faulthandler_timeout)
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))

Batches: TypeAlias = "list[list[int]]"


class Numbers(Dataset[Any]):
    """The indices, as images."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"image": torch.tensor([float(index)])}


class Check(NamedTuple):
    """One row of the table."""

    what: str
    compared: int
    different: list[str]


def expected() -> Batches:
    """Return the batches of this process in all epochs."""
    batches: Batches = []
    for epoch in range(EPOCHS):
        order = Permutation(LENGTH, 0, epoch)(np.arange(LENGTH)).tolist()
        share = [order[at % LENGTH] for at in range(RANK, -(-LENGTH // WORLD) * WORLD, WORLD)]
        batches += [share[at : at + BATCH] for at in range(0, len(share), BATCH)]
    return batches


STEPS = len(expected()) // EPOCHS  # steps in an epoch


def numbers(batch: Any) -> list[int]:
    values: list[int] = batch["image"].flatten().int().tolist()
    return values


def bare(**options: Any) -> DataLoader[Any]:
    dataset = Numbers()
    return DataLoader(dataset, BATCH, sampler=ShuffleSampler(dataset), **options)


def created() -> PrefetchLoader[Any]:
    options: dict[str, Any] = {"transform": None, "normalize": None, "device": None, "drop_last": False}
    return create_loader(Numbers(), batch_size=BATCH, is_training=True, num_workers=2, worker_type="threads", **options)


LOADERS: dict[str, Callable[[], PrefetchLoader[Any]]] = {
    "PrefetchLoader(DataLoader)": lambda: PrefetchLoader(bare()),
    "create_loader, threads": created,
}


def barrier() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def compare(
    what: str,
    run: Callable[[Path | None, Path], Batches],
    folder: Path,
    *,
    own_order: bool = False,
    steps: Container[int] = (1, STEPS, STEPS + 1),
) -> Check:
    """Compare an uninterrupted training with trainings that resume after its first step and around its first epoch.

    Args:
        what: Name of the row.
        run: Trains to the end, and returns its batches. Takes the checkpoint to resume, and a folder for its own
            checkpoints, ``<steps>`` or ``<steps>-...``.
        folder: For all checkpoints.
        own_order: Whether the framework has its own order. Then the trainings are compared only with each other.
        steps: Resume after these steps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first = folder / "first"
    seen = run(None, first)
    whole = seen if own_order else expected()
    different = [] if seen == whole else [f"uninterrupted: {seen} instead of {whole}"]
    barrier()
    checkpoints = [each for each in sorted(first.iterdir()) if int(each.name[:2]) in steps]
    for checkpoint in checkpoints:
        rest = whole[int(checkpoint.name[:2]) :]
        seen = run(checkpoint, folder / f"again-{checkpoint.name}")
        if seen != rest:
            different.append(f"resumed at {checkpoint.name}: {seen} instead of {rest}")
        barrier()
    if not checkpoints:
        different.append("no checkpoint was made")
    return Check(what, 1 + len(checkpoints), different)


def refused(what: str, attempt: Callable[[], Any], word: str) -> Check:
    """Check that an attempt raises an error of dbloader with a remedy."""
    try:
        result = attempt()
    except DBLoaderError as error:
        return Check(f"{what}: refused", 1, [] if word in str(error) else [f"says only {error}"])
    return Check(what, 1, [f"was not refused, but gave {result!r}"])


# Lightning


def seen_in(batch: Any) -> list[int]:
    """Return the indices in a batch, or in the batches of a CombinedLoader, with -1 for an exhausted loader."""
    if "image" in batch:
        return numbers(batch)
    return [number for part in batch.values() for number in ([-1] if part is None else numbers(part))]


def lightning_fit(
    make: Callable[[], Any], checkpoint: Path | None, folder: Path, *, each_step: bool = True, max_steps: int = -1
) -> Batches:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: Batches = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.seen.append(seen_in(batch))
            loss: torch.Tensor = self.layer(torch.ones(1)).sum()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.0)

        def train_dataloader(self) -> Any:
            return make()

    class Save(lightning.Callback):
        def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
            if each_step:
                trainer.save_checkpoint(folder / f"{trainer.global_step:02}-batch")

        def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
            trainer.save_checkpoint(folder / f"{trainer.global_step:02}-epoch")

    folder.mkdir(exist_ok=True)
    options: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto", max_epochs=EPOCHS,
        max_steps=max_steps, enable_progress_bar=False, callbacks=[Save()], **options,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, ckpt_path=checkpoint, weights_only=False)
    if max_steps > 0:
        trainer.save_checkpoint(folder / "after fit")
    return model.seen


def of_combined(folder: Path) -> Iterator[Check]:
    """Resume combinations of long and short loaders in Lightning, after the short loaders have ended."""
    from lightning.pytorch.utilities import CombinedLoader

    def one(kind: str, length: int) -> PrefetchLoader[Any]:
        dataset = Subset(Numbers(), range(length))
        options: dict[str, Any] = {"transform": None, "normalize": None, "device": None, "drop_last": False}
        if kind == "created":
            return create_loader(dataset, batch_size=BATCH, is_training=True, num_workers=1, **options)
        return PrefetchLoader(DataLoader(dataset, BATCH, sampler=ShuffleSampler(dataset)))

    def combined(mode: Any) -> Any:
        loaders = {"short": one("created", 9), "long": one("wrapped", LENGTH), "middle": one("wrapped", 14)}
        return CombinedLoader(loaders, mode) if mode else loaders  # Lightning combines a dict with max_size_cycle

    for what, mode in (("CombinedLoader, max_size", "max_size"), ("dict of loaders", None)):
        run = partial(lightning_fit, partial(combined, mode))
        yield compare(what, run, folder / what, own_order=True, steps=(STEPS - 1, STEPS))


class Draws(Numbers):
    """Random numbers of the worker process."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"image": torch.randint(2**20, (1,)).float()}


def of_seeds(folder: Path) -> Iterator[Check]:
    """Compare the random numbers that the worker processes of both ranks draw after Lightning's seed_everything."""
    import lightning

    def make() -> Any:
        options: dict[str, Any] = {"transform": None, "normalize": None, "device": None}
        created = create_loader(Draws(), batch_size=BATCH, num_workers=1, worker_type="processes", **options)
        wrapped = DataLoader(Draws(), BATCH, sampler=ShuffleSampler(Draws()), num_workers=1)
        return {"create_loader": created, "PrefetchLoader": PrefetchLoader(wrapped)}

    lightning.seed_everything(7, workers=True)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [number for batch in lightning_fit(make, None, folder, each_step=False) for number in batch]
    ranks: list[Any] = [drawn] * WORLD
    if WORLD > 1:
        torch.distributed.all_gather_object(ranks, drawn)
    repeated = len({number for rank in ranks for number in rank}) < 0.9 * WORLD * len(drawn)
    yield Check("seed_everything(workers=True)", WORLD, [f"repeated numbers: {ranks}"] if repeated else [])


def of_lightning(folder: Path) -> Iterator[Check]:
    for what, make in LOADERS.items():
        yield compare(what, partial(lightning_fit, make), folder / what)
    # Lightning saves no state of this loader, but sets the epoch.
    what = "DataLoader, at each epoch's end"
    yield compare(what, partial(lightning_fit, bare, each_step=False), folder / what)
    # After max_steps within an epoch, Lightning continues with the next epoch.
    make, cut = LOADERS["PrefetchLoader(DataLoader)"], folder / "cut"
    lightning_fit(make, None, cut, each_step=False, max_steps=STEPS - 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = lightning_fit(make, cut / "after fit", folder / "on", each_step=False, max_steps=STEPS + 1)
    warned = any("set_epoch(1) leaves out the rest of epoch 0" in str(warning.message) for warning in caught)
    yield Check("max_steps within an epoch: warned", 1, [] if warned else [f"no warning, but {seen}"])
    if WORLD > 1:
        shuffled = lambda: PrefetchLoader(DataLoader(Numbers(), BATCH, shuffle=True))  # noqa: E731
        yield refused(
            "PrefetchLoader(DataLoader(shuffle=True))",
            lambda: lightning_fit(shuffled, None, folder / "shuffled"),
            "sampler=ShuffleSampler(dataset)",
        )


# Accelerate


def loop(loader: Any, save: Callable[[int], None], done: int) -> Batches:
    seen: Batches = []
    while done < len(expected()):
        for batch in loader:
            seen.append(numbers(batch))
            done += 1
            save(done)
    return seen


def accumulated(loader: Any) -> list[str]:
    """Check after which batches Accelerate applies gradients, accumulated over three batches."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    layer = torch.nn.Linear(1, 1)
    wrong = []
    for _ in range(EPOCHS):
        applied = []
        for number, _ in enumerate(loader, 1):
            with accelerator.accumulate(layer):
                applied += [number] if accelerator.sync_gradients else []
            for _ in PrefetchLoader(range(3)):  # an evaluation that ends early
                break
        if applied != [*range(3, STEPS, 3), STEPS]:
            wrong.append(f"applied after batches {applied} of {STEPS}")
    if accelerator.gradient_state.end_of_dataloader:
        wrong.append("the end of the loader is still visible after it")
    return wrong


def of_accelerate(folder: Path) -> Iterator[Check]:
    from accelerate import Accelerator, skip_first_batches

    def run(make: Callable[[Accelerator], Any], checkpoint: Path | None, place: Path) -> Batches:
        place.mkdir(exist_ok=True)
        accelerator = Accelerator(cpu=True)
        loader = make(accelerator)
        accelerator.register_for_checkpointing(loader)
        if checkpoint is not None:
            accelerator.load_state(str(checkpoint))
        done = 0 if checkpoint is None else int(checkpoint.name)

        def save(step: int) -> None:
            accelerator.save_state(str(place / f"{step:02}"))

        return loop(loader, save, done)

    def unprepared(make: Callable[[], Any], _: Accelerator) -> Any:
        return make()

    kinds: dict[str, Callable[[Accelerator], Any]] = {what: partial(unprepared, make) for what, make in LOADERS.items()}
    if WORLD == 1:
        kinds["PrefetchLoader(prepare(DataLoader))"] = lambda accelerator: PrefetchLoader(accelerator.prepare(bare()))
    for what, make in kinds.items():
        yield compare(what, partial(run, make), folder / what)

    accelerator = Accelerator(cpu=True)

    def every(loader: Any) -> list[int]:
        return [number for batch in loader for number in numbers(batch)]

    sampler = ShuffleSampler(Numbers(), num_replicas=1, rank=0)
    alone = PrefetchLoader(accelerator.prepare(DataLoader(Numbers(), BATCH, sampler=sampler)))
    wrong = []
    for epoch in range(EPOCHS):
        # Accelerate gives complete batches to the processes in turn, and fills the last batches with the first samples.
        order = Permutation(LENGTH, 0, epoch)(np.arange(LENGTH)).tolist()
        mine, seen = {index for at, index in enumerate(order) if at // BATCH % WORLD == RANK}, {*every(alone)}
        different = (mine - seen) | (seen - mine - {*order[: WORLD * BATCH]})
        wrong += [f"{different} are missing or too many"] if different else []
    yield Check("prepare(DataLoader(sampler of one rank))", EPOCHS, wrong)
    if WORLD > 1:
        yield refused("prepare(DataLoader(sampler))", partial(every, accelerator.prepare(bare())), "num_replicas=1")
    for what, make in kinds.items():
        yield Check(f"accumulate(), {what}", EPOCHS, accumulated(make(accelerator)))
    for what, make in kinds.items():
        loader = make(accelerator)
        yield refused(f"skip_first_batches({what})", partial(skip_first_batches, loader, 2), "load_state_dict()")


# The Hugging Face Trainer


def trainer_fit(make: Callable[[], Any], checkpoint: Path | None, folder: Path, *, skip: bool = False) -> Batches:
    import transformers

    loader = make()
    seen: Batches = []

    class Resuming(transformers.TrainerCallback):
        """Saves the state of the loader with each checkpoint, as docs/loading.md shows."""

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero and loader is not None:
                torch.save(loader.state_dict(), Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.pt"))

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if checkpoint is not None and loader is not None:
                loader.load_state_dict(torch.load(checkpoint.resolve() / "loader.pt", weights_only=True))

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader() if loader is None else loader

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            seen.append(numbers(inputs))
            return model(inputs["image"]).sum()

    folder.mkdir(exist_ok=True)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        save_strategy="steps",
        save_steps=1,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ignore_data_skip=not skip and loader is not None,
        per_device_train_batch_size=BATCH,
        remove_unused_columns=False,
        ddp_backend="gloo" if WORLD > 1 else None,
        ddp_find_unused_parameters=False if WORLD > 1 else None,
    )
    trainer = Trainer(torch.nn.Linear(1, 1), arguments, train_dataset=Numbers(), callbacks=[Resuming()])
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return seen


def of_transformers(folder: Path) -> Iterator[Check]:
    def run(make: Callable[[], Any], checkpoint: Path | None, place: Path) -> Batches:
        # The Trainer chooses the names of its checkpoints.
        theirs = None if checkpoint is None else checkpoint.resolve()
        seen = trainer_fit(make, theirs, place.with_name(place.name + "-theirs"))
        place.mkdir(exist_ok=True)
        for saved in place.with_name(place.name + "-theirs").glob("checkpoint-*"):
            with contextlib.suppress(FileExistsError):  # the other process has written this
                (place / f"{int(saved.name.partition('-')[2]):02}").symlink_to(saved)
        barrier()
        return seen

    for what, make in LOADERS.items():
        yield compare(what, partial(run, make), folder / what)
    yield compare("dataset only", partial(run, lambda: None), folder / "dataset", own_order=True)
    made = LOADERS["PrefetchLoader(DataLoader)"]
    place = folder / "PrefetchLoader(DataLoader)" / "first" / "02"
    yield refused(
        "PrefetchLoader(DataLoader), ignore_data_skip=False",
        lambda: trainer_fit(made, place.resolve(), folder / "skipped", skip=True),
        "ignore_data_skip=True",
    )


FRAMEWORKS: dict[str, Callable[[Path], Iterator[Check]]] = {
    "lightning": of_lightning,
    "combined": of_combined,
    "seeds": of_seeds,
    "accelerate": of_accelerate,
    "transformers": of_transformers,
}


def quiet() -> None:
    """Silence the frameworks."""
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "accelerate", "transformers", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)


def run_here(frameworks: list[str], folder: Path) -> int:
    """Run frameworks in this process, which may be one of two; return 1 if samples differ."""
    quiet()
    different = 0
    for framework in frameworks:
        for check in FRAMEWORKS[framework](folder / framework):
            different += len(check.different)
            if RANK == 0 or check.different:
                result = "same" if not check.different else f"{len(check.different)} DIFFERENT"
                print(f"{framework:13} {WORLD} x  {check.what:58} {check.compared:3} runs  {result}", flush=True)
            for line in check.different:
                print(f"    rank {RANK}: {line}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # otherwise gloo's threads may abort the process at its exit
    return 1 if different else 0


def launch(frameworks: list[str], world: int) -> subprocess.CompletedProcess[str]:
    """Run frameworks one after another, in one or several new processes.

    A process that takes more than ``LIMIT_S`` seconds prints the tracebacks of its threads, and exits with 1.

    Raises:
        subprocess.TimeoutExpired: A process hangs and does not exit.
    """
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "USE_LIBUV": "0", "PL_DISABLE_FORK": "1"}
    program = [str(Path(__file__).resolve()), "--in-this-process", *frameworks]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, "-W", "ignore", *(torchrun if world > 1 else []), *program, "--folder", folder],
            env={**os.environ, **settings, "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S + 30, check=False,
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frameworks", nargs="*", choices=[[], *FRAMEWORKS], help="frameworks to run (default: all)")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_this_process:
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        return run_here(arguments.frameworks, arguments.folder)
    status = 0
    for framework, world in itertools.product(arguments.frameworks or FRAMEWORKS, (1, 2)):
        done = launch([framework], world)
        rows = [line for line in done.stdout.splitlines() if line.startswith(framework)]
        print("\n".join(rows) if done.returncode == 0 and rows else done.stdout, flush=True)
        status |= done.returncode != 0 or not rows
    return status


if __name__ == "__main__":
    sys.exit(main())
