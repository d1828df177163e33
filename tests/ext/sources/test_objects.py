"""Images in object storage become the same records as the same folder on a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbloader import Listing, convert, open_store
from dbloader.errors import PlaceError, SourceError
from dbloader.ext.parts.part import convert_part
from dbloader.ext.parts.publish import publish
from tests.support.http_proxy import HTTPProxy, web_server
from tests.support.images import photo, plant
from tests.support.object_store import ObjectStore, Outside, listed, plan_then_change, put, put_folder, within
from tests.support.parts import plan_conversion

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("object_store")]

# Names that sort differently as keys and as paths, or need escapes in URLs and signatures.
NAMES = (
    "cat/2.jpg", "cat/10.jpg", "cat/a/1.jpg", "cat/a-b/1.jpg", "cat/a/b/z.JPEG", "cat/z.png.jpg", "Dog/ä ö%20+&=?#.jpg",
    "Dog/é/é.jpg", "dog-2/1.jpg", "dog/1.jpg",
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of photographs and of files that are skipped."""
    plant(tmp_path / "images", {name: photo(number) for number, name in enumerate(NAMES)})
    others = ("cat/notes.txt", "cat/.hidden.jpg", "text/readme.md", ".git/1.jpg", "cat/metadata.csv")
    images = {"loose.jpg": photo(77), "dog/broken.jpg": photo(5)[:300]}
    images |= {"cat/2.txt": b"a cat", "dog/1.jpg.json": b"[1]"}  # become fields
    images |= {"cat/@eaDir/2.jpg/SYNOPHOTO_THUMB_S.jpg": photo(78), "#recycle/cat/3.jpg": photo(79)}
    return plant(tmp_path / "images", {**dict.fromkeys(others, b"x"), **images})


def test_objects_are_listed_like_the_same_folder(object_store: ObjectStore, outside: Outside, root: Path) -> None:
    place = object_store.place("train")
    outside(put_folder, place, root)
    outside(put, place, {"cat/empty/": b""})  # an empty object, which programs make to represent a folder
    assert outside(listed, place) == listed(str(root))


def test_conversion_whole_or_in_parts_gives_the_digest_of_the_folder(
    object_store: ObjectStore, outside: Outside, root: Path, tmp_path: Path
) -> None:
    place, parts = object_store.place("train"), tmp_path / "parts.lmdb"
    outside(put_folder, place, root)
    expected = convert(root, tmp_path / "expected.lmdb", shuffle_seed=3)
    report = outside(convert, f"{place}/", tmp_path / "one.lmdb", shuffle_seed=3)
    assert (report.digest, report.records, report.rejected) == (expected.digest, expected.records, 2)
    assert report.skipped == {".txt": 1, ".md": 1, ".csv": 1}
    assert report.warnings == expected.warnings
    assert report.understood[1:] == expected.understood[1:]
    assert "txt (1 of 11 images)" in report.understood[2]
    assert "@eaDir (1)" in report.understood[3]
    assert any(warning.startswith("cat/metadata.csv is not used: ") for warning in report.warnings)
    outside(plan_conversion, place, parts, 3, shuffle_seed=3)
    for part in range(3):
        outside(convert_part, parts, part)
    assert outside(publish, parts).digest == expected.digest
    with open_store(parts) as store:
        assert store.manifest.source["path"] == place


def test_object_changed_after_listing_is_rejected(
    object_store: ObjectStore, outside: Outside, root: Path, tmp_path: Path
) -> None:
    place = object_store.place("train")
    outside(put_folder, place, root)
    outside(plan_then_change, place, tmp_path / "out.lmdb", {"cat/2.jpg": photo(99)})
    with open_store(tmp_path / "out.lmdb") as store:
        reasons = {event["name"]: event["reason"] for event in store.events() if event["event"] == "rejected"}
        assert "was changed after it was listed" in reasons["cat/2.jpg"]
        assert "cat/2.jpg" not in [*store.names()]


def test_listing_names_objects_and_files_of_a_web_server(
    object_store: ObjectStore, outside: Outside, root: Path, tmp_path: Path
) -> None:
    listing = tmp_path / "list.csv"
    listing.write_text(
        'path,label,mask\ncat/a/1.jpg,cat,dog/1.jpg\nDog/é/é.jpg,dog,\ncat/none.jpg,cat,\n../x.jpg,cat,\n"a\nb",cat,\n'
    )
    place = object_store.place("bucket")  # an error that contains this name must not look like an error about a bucket
    outside(put_folder, place, root)
    root.rename(tmp_path / "files")
    with web_server(tmp_path) as address:
        for source in (place, address):
            to = tmp_path / f"{source[:3]}.lmdb"
            outside(convert, source, to, listing=listing, file_fields=("mask",))
            with open_store(to) as store:
                assert [*store.names()] == ["cat/a/1.jpg", "Dog/é/é.jpg"]
                assert store.read([0])[0].fields["mask"] == (tmp_path / "files/dog/1.jpg").read_bytes()
                rejected = {event["name"]: event["reason"] for event in store.events()}
                assert "does not exist" in rejected["cat/none.jpg"]
                assert "leaves" in rejected["../x.jpg"]
                assert "does not exist" in rejected["a\nb"]


def test_ids_find_objects_and_their_folders_may_be_classes(
    object_store: ObjectStore, outside: Outside, tmp_path: Path
) -> None:
    images = {"x/cat/0001.jpg": photo(1), "x/dog/0002.jpg": photo(2), "y/cat/ä.jpg": photo(3)}
    folder, place = plant(tmp_path / "images", images), object_store.place("train")
    outside(put_folder, place, folder)
    listing = tmp_path / "list.csv"
    listing.write_text("id,breed\n0002,pug\nä,tabby\n0003,pug\n")
    by_id: dict[str, Any] = {"listing": Listing(listing, label="breed")}
    for options in (by_id, {"class_folder": "last"}, {"class_folder": "path"}, {}):
        expected = convert(folder, tmp_path / "expected.lmdb", overwrite=True, **options)
        report = outside(convert, place, tmp_path / "one.lmdb", overwrite=True, **options)
        assert (report.digest, report.rejected) == (expected.digest, expected.rejected)
        assert report.warnings == expected.warnings
        assert report.understood[1:] == expected.understood[1:]


def test_place_that_cannot_be_converted_is_refused(object_store: ObjectStore, outside: Outside, tmp_path: Path) -> None:
    place, to = object_store.place(""), tmp_path / "out.lmdb"
    images = {"flat/1.jpg": photo(1), "flat/.2.jpg": photo(1), "table/cat/1.jpg": photo(1)}
    outside(put, place, {**images, "x.tar": b"x", "table/metadata.csv": b"x"})
    for name in ("x.tar", "flat", "nothing"):
        with pytest.raises(
            SourceError, match=rf"{name}: it contains no class folders: .* copy anything else to a disk"
        ):
            outside(convert, f"{place}{name}", to)
    with pytest.raises(SourceError, match=r"holds metadata\.csv"):
        outside(convert, f"{place}table", to)
    with pytest.raises(SourceError, match=r"access is refused \(403, SignatureDoesNotMatch\)") as caught:
        outside(convert, f"{place}flat", to, environment=object_store.environment(secret="wrong"))
    assert "wrong" not in str(caught.value).replace("are wrong", "")
    nowhere = object_store.environment(endpoint="http://user:hidden@127.0.0.1:9")
    with pytest.raises(SourceError, match=r"no server answers at 127\.0\.0\.1:9 \(AWS_ENDPOINT_URL\)"):
        outside(within, 1.0, convert, f"{place}flat", to, environment=nowhere)
    with HTTPProxy(object_store.port, lambda *_: (301, "PermanentRedirect")) as proxy:  # the response of S3
        elsewhere = object_store.environment(endpoint=proxy.endpoint)
        with pytest.raises(SourceError, match="s3://images is in another region: set AWS_REGION"):
            outside(convert, f"{place}flat", to, environment=elsewhere)
    with pytest.raises(SourceError, match="a web server does not list its files"):
        outside(convert, "https://127.0.0.1/train", to)
    with pytest.raises(PlaceError, match="must not contain credentials"):
        convert("s3://AKIA:secret@bucket/train", to)
    assert not to.exists()


def test_split_gets_the_numbers_of_train_beside_it(object_store: ObjectStore, outside: Outside, tmp_path: Path) -> None:
    place = object_store.place("pets")
    files = [
        f"{split}/{name}/0.jpg"
        for split, names in {"train": "abc", "val": "ac", "test": "ad"}.items()
        for name in names
    ]
    outside(put, place, {name: photo(number) for number, name in enumerate(files)})
    report = outside(convert, f"{place}/val/", tmp_path / "val.lmdb")
    assert report.understood[1].endswith(f" (classes of {place}/train: 3, of which 2 occur here)")
    with open_store(tmp_path / "val.lmdb") as store:
        assert (store.manifest.classes, store.column("label").tolist()) == (("a", "b", "c"), [0, 2])
    (warning,) = outside(convert, f"{place}/test", tmp_path / "test.lmdb").warnings
    assert warning.startswith(f"{place}/train has other classes (3; here 2) and lacks 'd'")
    for split, names in {"train": "abc", "val": "ac"}.items():
        rows = "".join(f"{split}/{name}/0.jpg,{name}\n" for name in names)
        (tmp_path / f"{split}.csv").write_text(f"path,label\n{rows}")
    outside(convert, place, tmp_path / "listed.lmdb", listing=tmp_path / "val.csv")
    with open_store(tmp_path / "listed.lmdb") as store:
        assert (store.manifest.classes, store.column("label").tolist()) == (("a", "b", "c"), [0, 2])
