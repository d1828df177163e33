"""What ``print(dataset)`` shows, in the form of torchvision's datasets."""

from __future__ import annotations

from typing import Any

from dbloader.datasets.fields import names_of


def describe(dataset: Any) -> str:
    """Return the kind of a store's dataset, its length and place, and the options that are not the default."""
    lines = [f"Number of datapoints: {len(dataset)}", f"Root location: {dataset.root}"]
    lines.append(f"Classes: {len(dataset.manifest.classes)}")
    if dataset.fields is not None:
        named = (name if name == field else f"{name} ({field})" for name, field in names_of(dataset.fields).items())
        lines.append(f"Fields: {', '.join(named)}")
    if dataset.resize != "exact":
        lines.append(f"Resize: {dataset.resize}")
    for title in ("transform", "target_transform", "transforms"):
        transform = getattr(dataset, title)
        if transform is not None:
            title = title.capitalize().replace("_", " ")
            lines.append(f"{title}: " + repr(transform).replace("\n", "\n" + " " * len(f"{title}: ")))
    return "\n    ".join([f"Dataset {type(dataset).__name__}", *(line.replace("\n", "\n    ") for line in lines)])
