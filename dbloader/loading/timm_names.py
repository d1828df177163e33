"""What to do here in place of arguments of timm's create_loader, for the error that a call with one of them raises."""

from __future__ import annotations

from typing import Any, NoReturn

from dbloader._describe import short_repr

_TIMM_TRANSFORM = "pass transform=timm.data.create_transform(..., use_prefetcher=True), which gives uint8"
_CROP = "pass transform=RandomResizedCrop(input_size, scale, ratio, flip) of dbloader.decoding"
_ERASING = "pass preparation=RandomErasing(probability, mode=...) of dbloader.device"
_LEAVE_OUT = "leave it out, it is not needed here"
_STAYS = "call timm's own create_loader, which takes our datasets too"

INSTEAD = {
    **dict.fromkeys(("scale", "ratio", "hflip"), _CROP),
    **dict.fromkeys(
        ("no_aug", "train_crop_mode", "vflip", "color_jitter", "color_jitter_prob", "grayscale_prob"), _TIMM_TRANSFORM
    ),
    **dict.fromkeys(("gaussian_blur_prob", "auto_augment", "crop_border_pixels", "tf_preprocessing"), _TIMM_TRANSFORM),
    **dict.fromkeys(("re_prob", "re_mode", "re_count"), _ERASING),
    **dict.fromkeys(("fp16", "img_dtype"), "pass dtype, such as 'float16'"),
    "worker_seeding": "pass seed, of which all random numbers are made",
    **dict.fromkeys(("pin_memory", "use_multi_epochs_loader"), _LEAVE_OUT),
    **dict.fromkeys(("re_split", "num_aug_repeats", "num_aug_splits", "input_size_choices"), _STAYS),
    **dict.fromkeys(("batch_size_choices", "batch_choice_weights", "batch_choice_seed", "num_batches"), _STAYS),
    **dict.fromkeys(("batch_choice_schedule", "batch_schedule_epochs", "batch_schedule_spread"), _STAYS),
    "batch_schedule_random_mix": _STAYS,
}


def refuse(options: dict[str, Any]) -> NoReturn:
    """Raise TypeError for options that create_loader does not have, and say what to do in place of timm's."""
    name, value = next(iter(options.items()))
    if name not in INSTEAD:
        raise TypeError(f"create_loader() got an unexpected keyword argument {name!r}")
    raise TypeError(f"create_loader() has no {name}, got {short_repr(value)}: {INSTEAD[name]}")
