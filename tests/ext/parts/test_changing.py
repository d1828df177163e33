"""Files of a folder that changes during its conversion are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbloader import convert, verify_store
from dbloader.conversion.report import Progress
from tests.conversion.test_convert import convert_while_changing
from tests.ext.parts.test_shards import Here
from tests.support.images import photo, plant, plant_photos


@pytest.mark.parametrize("shards", [None, 2])
def test_every_image_of_a_changing_folder_is_stored_or_named(root: Path, place: Path, shards: int | None) -> None:
    options: dict[str, Any] = {"shards": shards, "executor": Here()} if shards else {}
    convert_while_changing(root, place, **options)
    assert verify_store(place, against=root).problems == ({"missing": 4} if shards else {})


def test_late_images_of_shards_are_named_by_a_warning_if_the_report_cannot_be_written(root: Path, place: Path) -> None:
    plant_photos(root, 4)
    place.with_name(f"{place.name}.report.jsonl").mkdir()

    def change(progress: Progress) -> None:
        if progress.done == 0:
            plant(root, {"cat/late.jpg": photo(90)})

    report = convert(root, place, progress=change, shards=2, executor=Here())
    (warning,) = report.warnings
    assert "cannot be written: Is a directory" in warning
    assert warning.endswith(
        "the store contains the same report, without cat/late.jpg, added too late: read it with dbloader info --report"
    )
    assert (report.files, report.records, report.rejected, report.report_file) == (5, 4, 1, "")
