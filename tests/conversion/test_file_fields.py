"""A record may have further image files, such as a mask: its store names these fields."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from dbloader import copy_store, open_store, write_store
from dbloader.errors import FieldError, OptionError
from tests.support.images import encoded, photo, picture

if TYPE_CHECKING:
    from pathlib import Path

MASK = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8) % 3)
MASK.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
SAMPLE: dict[str, Any] = {"image": photo(1, 8, 6), "mask": encoded(MASK, "PNG")}


def made(place: Path, *samples: dict[str, Any], **options: Any) -> Path:
    write_store(samples, place, **{"file_fields": ("mask",), **options})
    return place


# write_store and copy_store


def test_a_store_that_was_not_told_of_file_fields_has_none(tmp_path: Path) -> None:
    with open_store(made(tmp_path / "a.lmdb", SAMPLE, file_fields=())) as store:
        assert store.manifest.file_fields == ()
        assert "file_fields" not in store.manifest.source


def test_file_fields_hold_bytes_as_they_are_and_pil_images_with_their_palette(tmp_path: Path) -> None:
    samples = [SAMPLE, {"image": SAMPLE["image"], "mask": MASK}, {"image": SAMPLE["image"]}, {**SAMPLE, "mask": None}]
    with open_store(made(tmp_path / "a.lmdb", *samples)) as store:
        assert store.manifest.file_fields == ("mask",)
        first, second, third, fourth = store.read(range(4))
    assert first.fields["mask"] == SAMPLE["mask"]
    with Image.open(io.BytesIO(second.fields["mask"])) as mask:
        assert mask.mode == "P"
        assert mask.tobytes() == MASK.tobytes()
    assert "mask" not in third.fields
    assert fourth.fields == {"mask": None}


@pytest.mark.parametrize(
    ("value", "what"),
    [(b"no image", "is in no known image format"), ("mask.png", "must be a PIL image"), (np.zeros((2, 2)), "must be")],
)
def test_a_value_that_is_no_image_file_is_refused_with_its_sample(tmp_path: Path, value: Any, what: str) -> None:
    with pytest.raises(FieldError, match=rf"^sample 1: field 'mask' is one of file_fields, and {what}"):
        made(tmp_path / "a.lmdb", SAMPLE, {**SAMPLE, "mask": value})


@pytest.mark.parametrize("names", ["mask", ("mask", "mask"), ("image",), (1,), 5])
def test_names_that_no_further_field_can_have_are_refused(tmp_path: Path, names: Any) -> None:
    with pytest.raises(OptionError, match=r"^file_fields \(--file-field\) must be different names of further fields"):
        made(tmp_path / "a.lmdb", SAMPLE, file_fields=names)


def test_copies_and_unions_keep_file_fields(tmp_path: Path) -> None:
    masks = made(tmp_path / "masks.lmdb", SAMPLE)
    bare = made(tmp_path / "bare.lmdb", {"image": photo(2)}, file_fields=())
    depth = made(tmp_path / "depth.lmdb", {"image": photo(3), "depth": picture("PNG")}, file_fields=("depth",))
    assert copy_store(masks, tmp_path / "copy.lmdb").file_fields == ("mask",)
    assert copy_store([bare, masks, depth], tmp_path / "all.lmdb").file_fields == ("mask", "depth")
    with open_store(masks) as store:
        assert write_store(store, tmp_path / "again.lmdb").file_fields == ("mask",)


def test_stores_in_which_a_field_holds_different_things_are_not_united(tmp_path: Path) -> None:
    masks = made(tmp_path / "masks.lmdb", SAMPLE)
    texts = made(tmp_path / "texts.lmdb", {"image": photo(2), "mask": "none"}, file_fields=())
    with pytest.raises(OptionError, match="'mask' has image files in one store, and other values in another"):
        copy_store([masks, texts], tmp_path / "all.lmdb")
