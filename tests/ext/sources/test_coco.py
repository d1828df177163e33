"""COCO's annotations, and the boxes of any annotations in stored images."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from dbloader import ImageFormat, LMDBDataset, convert, open_store
from dbloader.errors import SourceError
from dbloader.ext.sources.open import open_source
from dbloader.sources.base import Problem
from tests.support.tallies import entries, problems, warnings_of

CATEGORIES = [{"id": 18, "name": "dög"}, {"id": 3, "name": "中 cat"}]


def coco(photos: Path, *annotations: dict[str, Any], **changes: Any) -> Path:
    """Write a COCO file of the three photographs, whose ids start at 10. Each annotation needs an image and a box."""
    whole = [
        {"id": number, "category_id": 18, "segmentation": [[1, 2, 3]], **annotation}
        for number, annotation in enumerate(annotations, 100)
    ]
    images = [{"id": 10 + number, "file_name": f"{number}.jpg", "width": 64, "height": 48} for number in range(3)]
    content = {"info": {"year": "]é"}, "images": images, "annotations": whole, "categories": CATEGORIES, **changes}
    path = photos.parent / "instances.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def box(image: int, *bbox: float, **more: Any) -> dict[str, Any]:
    return {"image_id": image, "bbox": bbox, **more}


def test_dataset_has_coco_boxes(photos: Path, tmp_path: Path) -> None:
    boxes = box(12, 1, 2, 3, 4), box(10, 1.5, 2, 10, 20, category_id=3), box(12, 0, 0, 64.4, 48, iscrowd=1)
    listing = coco(photos, *boxes)
    report = convert(photos, tmp_path / "out.lmdb", listing=listing)
    assert (report.records, report.rejected, report.warnings) == (3, 0, ())
    fields = ("name", "boxes", "box_labels", "iscrowd", "image_id", "annotations", "label")
    dataset = LMDBDataset(tmp_path / "out.lmdb", fields=fields)
    assert dataset.classes == ["中 cat", "dög"]  # classes are in the order of their ids
    first, empty, last = dataset[0:3]
    assert (first["name"], first["image_id"], first["label"]) == ("0.jpg", 10, None)
    np.testing.assert_array_equal(first["boxes"], np.array([[1.5, 2, 11.5, 22]], np.float32), strict=True)
    np.testing.assert_array_equal(first["box_labels"], np.array([0]), strict=True)
    assert (empty["boxes"].shape, empty["boxes"].dtype, empty["box_labels"].shape) == ((0, 4), np.float32, (0,))
    # cut at the edge, which the box exceeded by 0.4
    np.testing.assert_array_equal(last["boxes"], [[1, 2, 4, 6], [0, 0, 64, 48]])
    assert last["iscrowd"].tolist() == [0, 1]
    found = [(one["id"], one["segmentation"]) for one in json.loads(last["annotations"])]
    assert found == [(100, [[1, 2, 3]]), (102, [[1, 2, 3]])]
    batch = next(iter(DataLoader(dataset, 3, collate_fn=list)))
    assert [len(sample["boxes"]) for sample in batch] == [1, 0, 2]


def test_coco_file_may_have_any_layout_and_no_annotations(photos: Path) -> None:
    listing = coco(photos, box(10, 1, 2, 3, 4))
    expected = [str(entry) for entry in entries(open_source(photos, listing))]
    content = json.loads(listing.read_text())
    for order in (reversed(content), sorted(content)):
        text = json.dumps({key: content[key] for key in order}, indent=1, ensure_ascii=False)
        listing.write_text("\ufeff \n" + text + "\n", encoding="utf-8")
        assert [str(entry) for entry in entries(open_source(photos, listing))] == expected
    del content["annotations"]  # the files of COCO's test images have no annotations
    listing.write_text(json.dumps(content))
    assert [len(entry.fields["boxes"]) for entry in entries(open_source(photos, listing))] == [0, 0, 0]


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (box(11, 1, 2, 3), r"its annotation 100 must have a bbox of four numbers, got \[1, 2, 3\]"),
        (box(11, 1, 2, 3, float("nan")), "must have a bbox of four numbers"),
        (box(11, 1, 2, 3, 4, category_id=7), "its annotation 100 has a category_id that no category has: 7"),
        (box(11, 1, 2, -3, 4), r"its box 0, \[1.0, 2.0, -2.0, 6.0\], is not within its 64 x 48 pixels"),
        (
            box(11, 60, 2, 6, 4),
            r"within its 64 x 48 pixels; mend it, or .* give boxes='upright' or 'stored' \(--boxes\)",
        ),
    ],
)
def test_image_with_wrong_box_is_rejected(
    annotation: dict[str, Any], reason: str, photos: Path, tmp_path: Path
) -> None:
    report = convert(photos, tmp_path / "out.lmdb", listing=coco(photos, annotation, box(10, 1, 2, 3, 4)))
    assert (report.records, report.rejected) == (2, 1)
    with open_store(tmp_path / "out.lmdb") as store:
        [event] = store.events()
        assert [record.name for record in store] == ["0.jpg", "2.jpg"]
    assert event["name"] == "1.jpg"
    assert re.search(reason, event["reason"])


def test_annotations_without_boxes_are_labels(photos: Path, tmp_path: Path) -> None:
    labels: list[dict[str, Any]] = [{"image_id": 10, "category_id": 18}, {"image_id": 12, "category_id": 3, "bbox": []}]
    listing = coco(photos, *labels)
    content = json.loads(listing.read_text())
    for annotation in content["annotations"]:
        del annotation["segmentation"]
    listing.write_text(json.dumps(content))
    convert(photos, tmp_path / "out.lmdb", listing=listing, progress=None)
    with LMDBDataset(tmp_path / "out.lmdb", fields=("label", "image_id")) as dataset:
        assert dataset.classes == ["中 cat", "dög"]
        assert dataset[:] == [{"label": label, "image_id": n} for label, n in ((1, 10), (None, 11), (0, 12))]
    content["annotations"].append({"id": 9, "image_id": 12, "category_id": 18})
    listing.write_text(json.dumps(content))
    convert(photos, tmp_path / "several.lmdb", listing=listing, progress=None)
    with LMDBDataset(tmp_path / "several.lmdb") as dataset:
        assert dataset.targets.tolist() == [[0, 1], [0, 0], [1, 1]]


def test_images_of_lvis_are_named_by_their_url(photos: Path) -> None:
    url = f"http://images.cocodataset.org/{photos.name}/1.jpg"
    image = {"id": 1, "width": 64, "height": 48, "coco_url": url}
    listing = coco(photos, box(1, 1, 2, 3, 4), images=[image])
    for root, name in ((photos, "1.jpg"), (photos.parent, f"{photos.name}/1.jpg")):
        assert [entry.name for entry in entries(open_source(root, listing))] == [name]


def test_two_images_with_one_file_are_a_warning(photos: Path) -> None:
    listing = coco(
        photos, images=[{"id": n, "file_name": name} for n, name in enumerate(("0.jpg", "1.jpg", "./0.jpg"))]
    )
    (warning,) = warnings_of(open_source(photos, listing))
    assert warning == "1 image with the file of an earlier image: each becomes a record; give each file one id"


def test_annotations_without_an_image_and_images_without_a_file_are_named(photos: Path, tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "0.jpg"}, {"id": 2}, {"id": 3, "file_name": "gone.jpg"}]
    listing = coco(photos, box(1, 1, 2, 3, 4), box(77, 1, 2, 3, 4), images=images)
    assert problems(open_source(photos, listing)) == [
        Problem("image 2", "its file_name is no path: None"),
        Problem("annotation 101", "no image has the id 77"),
    ]
    assert convert(photos, tmp_path / "out.lmdb", listing=listing).rejected == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": [{"id": 1, "file_name": "0.jpg"}] * 2}, "two images have the id 1: give each its own id"),
        ({"images": [{"id": "1", "file_name": "a"}]}, "images, item 1: must be an object with an integer as its id"),
        ({"annotations": [{"image_id": 1, "segments_info": []}]}, "annotations, item 1: is of COCO's"),
        ({"annotations": [{"id": 1}]}, "annotations, item 1: must be an object with an integer as its image_id"),
        ({"annotations": [{"id": 1, "image_id": 10}] * 2}, "two annotations have the id 1"),
        ({"categories": [{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]}, "two categories have the id 1"),
        ({"categories": [{"id": n, "name": "x"} for n in (1, 2)]}, "categories, item 2: must have a unique name, got"),
    ],
)
def test_inconsistent_coco_file_is_refused(changes: dict[str, Any], message: str, photos: Path) -> None:
    with pytest.raises(SourceError, match=f"instances.json(:|,) {message}"):
        open_source(photos, coco(photos, **changes))


def test_truncated_coco_file_is_refused(photos: Path) -> None:
    listing = coco(photos, box(10, 1, 2, 3, 4))
    listing.write_bytes(listing.read_bytes()[:330])
    with pytest.raises(SourceError, match=r"instances.json: is not JSON"):
        open_source(photos, listing)


@pytest.mark.parametrize("text", ['{"x": [1], 9: [1]}', '{"images": [], [1]: []}', "{null: 1}"])
def test_json_with_a_key_that_is_no_text_is_refused(photos: Path, text: str) -> None:
    listing = photos.parent / "list.json"
    listing.write_text(text)
    with pytest.raises(SourceError, match=r"list.json: is not JSON"):
        open_source(photos, listing)


def test_coco_file_changed_after_opening_is_an_error(photos: Path) -> None:
    listing = coco(photos, box(10, 1, 2, 3, 4))
    found = open_source(photos, listing)
    listing.write_bytes(b" " + listing.read_bytes())
    with pytest.raises(SourceError, match=r"instances\.json: was changed since it was first read$"):
        list(found.entries())


def test_boxes_are_scaled_only_with_their_image(photos: Path, tmp_path: Path) -> None:
    listing = coco(photos, box(10, 8, 12, 32, 24))
    first, small = [8, 12, 40, 36], [2, 3, 10, 9]
    formats = {"a": ImageFormat(), "b": ImageFormat(short_side=12), "c": ImageFormat(max_side=16, raw=True)}
    for (place, images), expected in zip(formats.items(), (first, small, small), strict=True):
        convert(photos, tmp_path / place, listing=listing, images=images)
        with open_store(tmp_path / place) as store:
            assert store[0].fields["boxes"].tolist() == [expected]
    for side, expected in ((48, first), (12, small)):
        convert(tmp_path / "a", tmp_path / "again", images=ImageFormat(short_side=side), overwrite=True)
        with open_store(tmp_path / "again") as store:
            assert (store[0].fields["boxes"].tolist(), store[1].fields["boxes"].shape) == ([expected], (0, 4))


def test_image_of_another_size_than_annotated_is_rejected(photos: Path, tmp_path: Path) -> None:
    images = [{"id": 10, "file_name": "0.jpg", "width": 48, "height": 64}, {"id": 11, "file_name": "1.jpg"}]
    listing = coco(photos, box(10, 1, 2, 3, 4), box(11, 1, 2, 3, 4), images=images)
    assert convert(photos, tmp_path / "out.lmdb", listing=listing).records == 1
    with open_store(tmp_path / "out.lmdb") as store:
        reason = "has 64 x 48 pixels, but its annotations are for 48 x 64 pixels"
        assert [*store.events()] == [{"name": "0.jpg", "event": "rejected", "reason": reason}]
