"""Lightning, Accelerate and the Hugging Face Trainer train with a fused Compose as with one that is not fused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dbloader import LMDBDataset, create_loader
from tests.torchvision.conftest import LENGTH

REASON = "torchvision is not installed: scripts/frameworks torchvision"
v1 = pytest.importorskip("torchvision.transforms", reason=REASON)
pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks

EPOCHS, BATCH = 2, 4


class Model(nn.Module):
    """A small classifier, with the signature that the Trainer wants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 3))
        self.losses: list[float] = []

    def forward(self, pixel_values: Any, labels: Any) -> dict[str, torch.Tensor]:
        loss = nn.functional.cross_entropy(self.layers(pixel_values), labels)
        self.losses.append(loss.item())
        return {"loss": loss}


def fit_lightning(loader: Any, _: Path) -> list[float]:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
    module = Module()
    lightning.Trainer(accelerator="cpu", max_epochs=EPOCHS, **quiet).fit(module, loader)
    return module.model.losses


def fit_accelerate(loader: Any, _: Path) -> list[float]:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _epoch in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(prepared(**batch)["loss"])
            optimizer.step()
    return model.losses


def fit_transformers(loader: Any, folder: Path) -> list[float]:
    transformers = pytest.importorskip("transformers")

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return loader

    model = Model()
    options: dict[str, Any] = {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "use_cpu": True}
    options |= {"disable_tqdm": True, "remove_unused_columns": False, "num_train_epochs": EPOCHS, "optim": "sgd"}
    Trainer(
        model, transformers.TrainingArguments(output_dir=str(folder), **options), train_dataset=loader.dataset
    ).train()
    return model.losses


@pytest.mark.parametrize("fit", [fit_lightning, fit_accelerate, fit_transformers])
def test_framework_trains_the_same_with_and_without_fusing(place: Path, tmp_path: Path, fit: Any) -> None:
    steps = [v1.Resize(40), v1.CenterCrop(32), v1.Grayscale(3), v1.ToTensor(), v1.Normalize([0.5], [0.25])]
    fields = {"pixel_values": "image", "labels": "label"}
    dataset = LMDBDataset(place, v1.Compose(steps), fields=fields, resize="exact")
    losses = []
    for fuse in (True, False):
        loader = create_loader(dataset, batch_size=BATCH, is_training=True, device="cpu", num_workers=2, fuse=fuse)
        assert ("while decoding: Resize, CenterCrop" in repr(loader)) == fuse
        losses.append(fit(loader, tmp_path))
        loader.close()
    assert len(losses[0]) == EPOCHS * LENGTH // BATCH
    assert losses[0] == losses[1]
