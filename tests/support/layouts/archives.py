"""Tars and zips: names in other encodings, and links."""

from __future__ import annotations

from pathlib import Path

from tests.support.layouts.base import Answer, by_folder, layout, photos, rename_in_zip, write_tar, write_zip

ENCODING = r"UTF-8"


# --- 7: names in a zip that are not UTF-8 -----------------------------------------------------------------------------


def _encoded_zip(at: Path, encoding: str, names: tuple[str, ...], extension: str) -> Answer:
    """Write a zip whose folders have names in an old encoding, without the flag for UTF-8."""
    images = photos(f"{name}/{number}.{extension}" for number, name in enumerate(names))
    coded = [name.encode(encoding) for name in names]
    plain = [bytes([ord("p") + number]) * len(name) for number, name in enumerate(coded)]
    files = {f"{plain[number].decode()}/{number}.{extension}": data for number, data in enumerate(images.values())}
    path = write_zip(at / "photos.zip", files)
    rename_in_zip(path, {old + b"/": new + b"/" for old, new in zip(plain, coded, strict=True)})
    return Answer(images, by_folder(images), classes=sorted(names))


@layout(7, "zip in GBK", "photos.zip STORE", says=ENCODING, option="photos.zip STORE --encoding gbk")
def gbk(at: Path) -> Answer:
    return _encoded_zip(at, "gbk", ("猫科", "狗狗"), "jpg")


@layout(7, "zip in Shift-JIS", "photos.zip STORE", says=ENCODING, option="photos.zip STORE --encoding shift_jis")
def shift_jis(at: Path) -> Answer:
    return _encoded_zip(at, "shift_jis", ("いぬ", "とり", "ねこ"), "png")


@layout(7, "zip in the code page 866", "photos.zip STORE", says=ENCODING, option="photos.zip STORE --encoding cp866")
def cp866(at: Path) -> Answer:
    return _encoded_zip(at, "cp866", ("кошка", "собака"), "jpg")


# --- 21: hard links in tars -------------------------------------------------------------------------------------------


@layout(21, "tar of folders with hard links", "pets.tar STORE", says="is a link")
def linked_folders(at: Path) -> Answer:
    images = photos(["cat/0.jpg", "dog/1.jpg"])
    images["twin/2.jpg"] = images["cat/0.jpg"]
    write_tar(at / "pets.tar", {**images, "twin/2.jpg": "cat/0.jpg"})
    return Answer(images, by_folder(images), classes=("cat", "dog", "twin"))


@layout(21, "tar.gz with hard links", "pets.tar.gz STORE", says="is a link")
def linked_gz(at: Path) -> Answer:
    images = photos(["./train/a/0.png", "./train/b/1.png"])
    images["./train/b/2.png"] = images["./train/a/0.png"]
    write_tar(at / "pets.tar.gz", {**images, "./train/b/2.png": "./train/a/0.png"}, "w:gz")
    return Answer(images, by_folder(images, 2), classes=("a", "b"))


@layout(21, "WebDataset with hard links", "shard-000000.tar STORE", says="is a link")
def linked_samples(at: Path) -> Answer:
    images = photos(["000.jpg", "001.jpg"])
    images["002.jpg"] = images["000.jpg"]
    files: dict[str, bytes | str] = {"000.jpg": images["000.jpg"], "000.cls": b"4", "001.jpg": images["001.jpg"]}
    files |= {"001.cls": b"2", "002.jpg": "000.jpg", "002.cls": "000.cls"}
    write_tar(at / "shard-000000.tar", files)
    return Answer(images, {"000.jpg": 4, "001.jpg": 2, "002.jpg": 4})
