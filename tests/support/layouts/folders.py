"""Folders: which are classes, how classes are numbered, and files beside the images."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

from tests.support.images import plant
from tests.support.layouts.base import (
    Answer,
    by_folder,
    layout,
    photo,
    photos,
    png,
    rename_in_zip,
    write,
    write_csv,
    write_tar,
    write_zip,
)

CLASSES = r"(?!)"  # the option must be named
NUMBERS = r"look like numbers"
DEPTH = r"only folders|innermost"
FLAT = "directly in it"
ALIKE = r"look (the same|alike)|normal form|NFC|only by (upper|case|capital)"


# --- 3: train and val with different classes --------------------------------------------------------------------------


@layout(3, "folders, a class is missing in val", "train STORE", "val STORE", says=CLASSES,
        option="val STORE --classes earlier-0.lmdb")  # fmt: skip
def val_folder(at: Path) -> Answer:
    plant(at / "train", photos(f"{name}/{n}.jpg" for name in "abc" for n in range(2)))
    images = photos(["a/7.jpg", "c/8.jpg"], 20)
    plant(at / "val", images)
    return Answer(images, by_folder(images), classes="abc")


@layout(3, "zips, the first class is missing", "train.zip STORE", "valid.zip STORE", says=CLASSES,
        option="valid.zip STORE --classes earlier-0.lmdb")  # fmt: skip
def val_zip(at: Path) -> Answer:
    write_zip(at / "train.zip", photos(f"{name}/{n}.png" for name in ("ant", "bee", "fly") for n in range(2)))
    images = photos(["bee/7.png", "fly/8.png"], 20)
    write_zip(at / "valid.zip", images)
    return Answer(images, by_folder(images), classes=("ant", "bee", "fly"))


@layout(3, "listings, test has fewer names", "photos STORE --listing train.csv", "photos STORE --listing test.csv",
        says=CLASSES, option="photos STORE --listing test.csv --classes earlier-0.lmdb")  # fmt: skip
def val_listing(at: Path) -> Answer:
    names = [f"{n}.jpg" for n in range(5)]
    plant(at / "photos", photos(names))
    write_csv(at, "train.csv", [("path", "label"), *zip(names[:3], ("oak", "ash", "elm"), strict=True)])
    labels = {"3.jpg": "oak", "4.jpg": "elm"}
    write_csv(at, "test.csv", [("path", "label"), *labels.items()])
    return Answer(photos(["3.jpg", "4.jpg"], 3), labels, classes=("ash", "elm", "oak"))


# --- 4: what a Mac, a NAS or Windows adds -----------------------------------------------------------------------------


@layout(4, "Mac and Synology", "pets STORE")
def synology(at: Path) -> Answer:
    images = photos(["cat/0.jpg", "cat/1.jpg", "dog/2.jpg"])
    plant(at / "pets", images)
    plant(at / "pets", {"__MACOSX/cat/._0.jpg": b"\0\5\x16\7" + bytes(60), "cat/@eaDir/0.jpg/SYNO@.fileindexdb": b"x"})
    plant(at / "pets", {"cat/@eaDir/0.jpg/SYNOPHOTO_THUMB_SM.jpg": photo(50), ".DS_Store": b"x"})
    return Answer(images, by_folder(images), classes=("cat", "dog"))


@layout(4, "Windows and other NAS", "pets STORE")
def windows(at: Path) -> Answer:
    images = photos(["cat/0.jpg", "dog/1.png", "dog/2.png"])
    plant(at / "pets", images)
    plant(at / "pets", {"$RECYCLE.BIN/S-1-5-21/$RABC.jpg": photo(50), "System Volume Information/WPSettings.dat": b"x"})
    plant(at / "pets", {"#recycle/cat/9.jpg": photo(51), "@Recycle/cat/9.jpg": photo(52), "cat/Thumbs.db": b"x"})
    plant(at / "pets", {"dog/.@__thumb/default1.png": photo(53), "lost+found/#12": b"x", "dog/desktop.ini": b"x"})
    return Answer(images, by_folder(images), classes=("cat", "dog"))


@layout(4, "zip of a Mac", "pets.zip STORE")
def mac_zip(at: Path) -> Answer:
    images = photos(["pets/cat/0.jpg", "pets/Spaß/1.jpg"])
    names = ("._pets", "pets/._cat", "pets/cat/._0.jpg", "pets/Spaß/._1.jpg")
    resources = {f"__MACOSX/{name}": b"\0\5\x16\7" for name in names}
    path = write_zip(at / "pets.zip", {**images, "pets/.DS_Store": b"x", **resources})
    rename_in_zip(path, {})  # a Mac writes UTF-8 without the flag
    return Answer(images, by_folder(images, 1), classes=("Spaß", "cat"))


# --- 8: folders that are numbers --------------------------------------------------------------------------------------


@layout(8, "folders 0 to 11", "train STORE", says=NUMBERS, option="train STORE --classes numbers", tool="torchvision")
def numbers(at: Path) -> Answer:
    images = photos(f"{n}/{n}.jpg" for n in range(12))
    plant(at / "train", images)
    return Answer(images, {name: int(name.split("/")[0]) for name in images})


@layout(8, "zip, folders 1 to 10", "flowers.zip STORE", says=NUMBERS, option="flowers.zip STORE --classes numbers")
def numbers_in_zip(at: Path) -> Answer:
    images = photos(f"flowers/{n}/image_{n:05}.jpg" for n in range(1, 11))
    write_zip(at / "flowers.zip", images)
    return Answer(images, {name: int(name.split("/")[1]) for name in images})


@layout(8, "tar, folders 0, 5 and 10", "ages.tar STORE", says=NUMBERS, option="ages.tar STORE --classes numbers")
def numbers_in_tar(at: Path) -> Answer:
    images = photos(f"{n}/{n}.png" for n in (0, 10, 5))
    write_tar(at / "ages.tar", images)
    return Answer(images, {name: int(name.split("/")[0]) for name in images})


# --- 9: classes below classes -----------------------------------------------------------------------------------------


@layout(9, "Places365, the path is the class", "places STORE", says=DEPTH, tool="torchvision",
        option="places STORE --class-folder path")  # fmt: skip
def places_folder(at: Path) -> Answer:
    folders = ("a/airfield", "a/apartment_building/outdoor", "a/apartment_building/indoor", "b/bakery")
    images = photos(f"{folder}/{n:08}.jpg" for n, folder in enumerate(folders))
    plant(at / "places", images)
    return Answer(images, {name: name.rpartition("/")[0] for name in images}, classes=sorted(folders))


@layout(9, "the innermost folder is the class", "birds STORE", says=DEPTH, option="birds STORE --class-folder last")
def innermost(at: Path) -> Answer:
    folders = ("Animalia/Aves/Passer", "Animalia/Aves/Corvus", "Animalia/Mammalia/Felis", "Plantae/Rosales/Rosa")
    images = photos(f"{folder}/{n}.jpg" for n, folder in enumerate(folders))
    plant(at / "birds", images)
    return Answer(images, by_folder(images, 2), classes=("Corvus", "Felis", "Passer", "Rosa"))


@layout(9, "zip, a folder for each site", "sites.zip STORE", says=DEPTH, option="sites.zip STORE --class-folder last")
def sites_zip(at: Path) -> Answer:
    images = photos(f"{site}/{label}/{site}.png" for site in ("north", "south") for label in ("healthy", "rust"))
    write_zip(at / "sites.zip", images)
    return Answer(images, by_folder(images, 1), classes=("healthy", "rust"))


# --- 10: names that look alike ----------------------------------------------------------------------------------------


@layout(10, "folders in NFC and NFD", "food STORE", says=ALIKE, remedy=ALIKE)
def nfc_nfd(at: Path) -> Answer:
    names = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
    images = photos([f"{names[0]}/0.jpg", f"{names[1]}/1.jpg", "tea/2.jpg"])
    plant(at / "food", images)
    return Answer(images, {name: unicodedata.normalize("NFC", name.split("/")[0]) for name in images})


@layout(10, "Cat beside cat", "pets STORE", says=ALIKE, remedy=ALIKE)
def letter_case(at: Path) -> Answer:
    images = photos(["Cat/0.jpg", "cat/1.jpg", "dog/2.jpg"])
    plant(at / "pets", images)
    return Answer(images, {name: name.split("/")[0].lower() for name in images}, classes=("cat", "dog"))


@layout(10, "list in NFC, files in NFD", "photos STORE --listing labels.csv", says="NFC|normal form")
def listed_nfc(at: Path) -> Answer:
    names = ["Bögen/Größe 1.jpg", "Bögen/naïve.jpg"]
    images = photos(names)
    plant(at / "photos", {unicodedata.normalize("NFD", name): data for name, data in images.items()})
    labels = dict(zip(names, ("große", "kleine"), strict=True))
    write_csv(at, "labels.csv", [("filename", "label"), *labels.items()])
    return Answer(images, labels, classes=("große", "kleine"))


# --- 11: images without classes ---------------------------------------------------------------------------------------


@layout(11, "three JPEGs", "shots STORE", says=FLAT)
def loose(at: Path) -> Answer:
    images = photos(["a.jpg", "b.jpg", "c.JPG"])
    plant(at / "shots", images)
    return Answer(images, dict.fromkeys(images))


@layout(11, "zip of PNGs", "renders.zip STORE")
def loose_zip(at: Path) -> Answer:
    images = photos(["renders/0.png", "renders/1.png"])
    write_zip(at / "renders.zip", images)
    return Answer(images, dict.fromkeys(images))


@layout(11, "images beside a folder of notes", "upload STORE", says=FLAT)
def loose_in_one(at: Path) -> Answer:
    images = photos(["0001.jpg", "0002.jpg"])
    plant(at / "upload", images)
    write(at, "upload/2024-05-01/notes.txt", "sunny\n")
    return Answer(images, dict.fromkeys(images))


# --- 12: files beside each image --------------------------------------------------------------------------------------


@layout(12, "captions in .txt, flat", "lora STORE", says=FLAT)
def captions_flat(at: Path) -> Answer:
    images = photos(["0001.jpg", "0002.jpg", "0003.jpg"])
    plant(at / "lora", images)
    for number in (1, 2):
        write(at, f"lora/000{number}.txt", f"a photo of sks dog, {number}")
    fields = {f"000{number}.jpg": {"txt": f"a photo of sks dog, {number}"} for number in (1, 2)}
    return Answer(images, dict.fromkeys(images), fields=fields)


@layout(12, "JSON in class folders", "pets STORE")
def json_sidecars(at: Path) -> Answer:
    images = photos(["cat/0.png", "dog/1.png"])
    plant(at / "pets", images)
    facts = {"cat/0.png": {"age": 3, "tags": ["a", "b"]}, "dog/1.png": {"age": 5, "tags": []}}
    for name, value in facts.items():
        write(at, f"pets/{name[:-4]}.json", json.dumps(value))
    fields = {name: {"json": value} for name, value in facts.items()}
    return Answer(images, by_folder(images), classes=("cat", "dog"), fields=fields)


@layout(12, "captions in a zip", "train.zip STORE")
def captions_zip(at: Path) -> Answer:
    images = photos(["img/a.jpg", "img/b.jpg"])
    write_zip(at / "train.zip", {**images, "img/a.txt": "ein Hündchen".encode(), "img/b.txt": b"a cat"})
    fields = {"img/a.jpg": {"txt": "ein Hündchen"}, "img/b.jpg": {"txt": "a cat"}}
    return Answer(images, dict.fromkeys(images), fields=fields)


# --- 25: pointers of git-lfs ------------------------------------------------------------------------------------------

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
LFS = r"b'vers'|git lfs"


@layout(25, "a pointer beside images", "pets STORE", says=LFS, remedy="git lfs pull")
def lfs_folder(at: Path) -> Answer:
    images = photos(["cat/0.jpg", "dog/1.jpg"])
    plant(at / "pets", {**images, "dog/2.jpg": POINTER})
    return Answer({**images, "dog/2.jpg": photo(9)}, by_folder(images))


@layout(25, "pointers in a zip", "pets.zip STORE", says=LFS, remedy="git lfs pull")
def lfs_zip(at: Path) -> Answer:
    images = {"cat/0.png": png(0), "dog/1.png": png(1)}
    write_zip(at / "pets.zip", {**images, "dog/1.png": POINTER})
    return Answer(images, by_folder(images))


@layout(25, "a listed pointer", "images STORE --listing list.csv", says=LFS, remedy="git lfs pull")
def lfs_listing(at: Path) -> Answer:
    images = {"0.tif": photo(0), "1.webp": photo(1)}
    plant(at / "images", {"0.tif": photo(0), "1.webp": POINTER.replace(b"12345", b"7")})
    write_csv(at, "list.csv", [("path", "label"), ("0.tif", "a"), ("1.webp", "b")])
    return Answer(images, {"0.tif": "a", "1.webp": "b"})
