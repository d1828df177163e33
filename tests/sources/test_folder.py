"""Folders of images: which files become records, in which order, and how all other files are reported."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbloader import convert, open_store
from dbloader.errors import SourceError
from dbloader.sources.base import Entry, Loaded, Problem, Tally
from dbloader.sources.folder import EXTENSIONS, FolderSource
from tests.support.children import traced_peak
from tests.support.images import as_nobody, plant_kinds
from tests.support.tallies import contents, entries, only_entries, tally_of, warnings_of

TORCHVISION_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def plant(root: Path, *names: str | bytes) -> Path:
    """Make empty files. A name that ends with a slash becomes a folder."""
    for name in names:
        path = os.path.join(os.fsencode(root), os.fsencode(name))  # noqa: PTH118 - bytes
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - bytes
        if not path.endswith(b"/"):
            os.close(os.open(path, os.O_CREAT))
    return root


def names(source: FolderSource) -> list[str]:
    return [entry.name for entry in only_entries(source)]


def split(source: FolderSource) -> tuple[list[str], dict[str, str]]:
    """Return the names of the entries, and the reasons of the problems."""
    found = list(source.entries())
    problems = [item for item in found if isinstance(item, Problem)]
    assert len({problem.name for problem in problems}) == len(problems)
    return [item.name for item in found if isinstance(item, Entry)], dict(problems)


def torchvision_samples(root: Path) -> list[tuple[bytes, int]]:
    """Sort like ImageFolder: by class, then by the folder's path as one string, then by name."""
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    files = [path for path in root.glob("*/**/*") if path.is_file() and path.suffix.lower() in TORCHVISION_EXTENSIONS]
    files.sort(key=lambda path: (classes.index(path.relative_to(root).parts[0]), str(path.parent), path.name))
    return [(os.fsencode(path.relative_to(root)), classes.index(path.relative_to(root).parts[0])) for path in files]


# Characters before and after the slash, upper case, bytes that are not UTF-8, letters beyond the surrogates.
stems = st.text("aB-/0~é\udce9\ufb01\U0001f600 ", min_size=1, max_size=8).map(lambda text: f"a{text}")
files = st.builds("{}{}".format, stems, st.sampled_from([".jpg", ".JPEG", ".tIf", ".webp", ".txt", ""]))


@pytest.mark.slow
@settings(max_examples=50)
@given(st.sets(files, max_size=25))
def test_order_and_labels_equal_torchvision(names: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = plant(Path(folder), "class/a.png")
        for name in names:
            try:
                plant(root, name)
            except (IsADirectoryError, NotADirectoryError, FileExistsError):
                continue  # another name is already a folder or file with this path
        # dbloader reports images beside the class folders, and torchvision ignores them.
        assert [(entry.location[0], entry.label) for entry in entries(FolderSource(root))] == torchvision_samples(root)


def test_extensions_match_in_upper_and_lower_case(tmp_path: Path) -> None:
    assert EXTENSIONS[: len(TORCHVISION_EXTENSIONS)] == TORCHVISION_EXTENSIONS
    plant(tmp_path, *(f"cat/a{extension.upper()}" for extension in EXTENSIONS), "cat/jpg", "cat/a.jpg.txt")
    assert sorted(names(FolderSource(tmp_path))) == sorted(f"cat/a{extension.upper()}" for extension in EXTENSIONS)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    def peak(root: Path) -> int:
        source = FolderSource(root)
        assert sum(1 for _ in source.entries()) == 500 * len(source.classes)
        return traced_peak(lambda: sum(1 for _ in source.entries()))

    peaks = []
    for folders in (2, 8):
        root = tmp_path / str(folders)
        for folder in range(folders):
            plant(root, f"{folder:02}/")
            for file in range(500):
                os.close(os.open(root / f"{folder:02}" / f"{file}.jpg", os.O_CREAT))
        peaks.append(peak(root))
    assert peaks[1] < 1.1 * peaks[0]


def test_files_that_are_not_images_are_counted_by_extension(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.jpg", "cat/a.txt", "cat/x/b.TXT", "cat/c.tar.gz", "cat/README", b"cat/d.\xe9", "e.csv")
    source = FolderSource(tmp_path)
    assert names(source) == ["cat/1.jpg"]
    assert tally_of(source).skipped == {".txt": 2, ".gz": 1, "": 1, ".\\xe9": 1, ".csv": 1}


def test_hidden_files_and_folders_are_skipped_and_counted(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.jpg", "cat/._1.jpg", "cat/.jpg", "cat/.cache/1.jpg", ".git/1.jpg", ".2.jpg")
    source = FolderSource(tmp_path)
    assert source.classes == ("cat",)
    assert names(source) == ["cat/1.jpg"]
    assert tally_of(source).hidden == 5
    assert tally_of(source).skipped == {}


def test_classes_without_images_are_kept_with_a_warning(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.jpg", "b/", "c/1.txt", "d/x/1.jpg")
    source = FolderSource(tmp_path)
    assert [entry.label for entry in entries(source)] == [0, 3]
    assert source.classes == ("a", "b", "c", "d")
    assert warnings_of(source) == ("2 classes have no images: 'b', 'c'",)


def test_links_to_files_folders_and_classes_are_followed(tmp_path: Path) -> None:
    plant(tmp_path, "elsewhere/1.jpg", "elsewhere/2.jpg", "root/cat/1.jpg")
    root = tmp_path / "root"
    (root / "dog").symlink_to("../elsewhere")
    (root / "cat/3.jpg").symlink_to("1.jpg")
    (root / "cat/more").symlink_to(tmp_path / "elsewhere")
    assert names(FolderSource(root)) == [
        "cat/1.jpg",
        "cat/3.jpg",
        "cat/more/1.jpg",
        "cat/more/2.jpg",
        "dog/1.jpg",
        "dog/2.jpg",
    ]


@pytest.mark.parametrize("target", ["cat/a", ""])
def test_listing_a_loop_of_links_ends(tmp_path: Path, target: str) -> None:
    plant(tmp_path, "cat/a/1.jpg", "dog/1.jpg")
    (tmp_path / "cat/a/loop").symlink_to(tmp_path / target)
    found, problems = split(FolderSource(tmp_path))
    assert found == ["cat/a/1.jpg", "dog/1.jpg"]
    assert problems == {"cat/a/loop": f"is the same folder as {target or '.'!r}, which is read only once"}


def test_broken_link_is_a_problem(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.jpg")
    for name in ("cat/2.jpg", "cat/more", "dog"):
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
    (tmp_path / "cat/self.png").symlink_to("self.png")
    source = FolderSource(tmp_path)
    found, problems = split(source)
    assert source.classes == ("cat",)
    assert found == ["cat/1.jpg"]
    assert problems == {
        "cat/2.jpg": "the link cannot be followed: No such file or directory",
        "cat/more": "the link cannot be followed: No such file or directory",
        "cat/self.png": "the link cannot be followed: Too many levels of symbolic links",
        "dog": "the link cannot be followed: No such file or directory",
    }


def test_failing_file_system_ends_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "cat/1.jpg", "dog/1.jpg")
    scandir = os.scandir

    def fail(folder: bytes) -> Any:
        if folder.endswith(b"dog"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return scandir(folder)

    source = FolderSource(tmp_path)
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(SourceError, match=r"dog cannot be read: .*; is its disk there\?$"):
        [*source.entries()]


def test_pipes_and_sockets_named_like_images_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "cat/1.jpg")
    monkeypatch.chdir(tmp_path)  # a socket's path may have at most 107 bytes
    os.mkfifo("cat/pipe.jpg")
    os.mkfifo("cat/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("cat/socket.png")
    Path("cat/zero.jpg").symlink_to("/dev/zero")
    source = FolderSource(tmp_path)
    assert [item.reason for item in contents(source) if isinstance(item, Problem)] == [
        *("is not a regular file", "cannot be read: No such device or address", "is not a regular file")
    ]
    assert tally_of(source).skipped == {"": 1}


def test_unreadable_folder_is_a_problem_and_other_folders_are_read(open_path: Path) -> None:
    plant(open_path, "cat/1.jpg", "cat/locked/2.jpg", "cat/open/3.jpg", "cow/4.jpg", "dog/5.jpg", "out/6.jpg")
    (open_path / "dog/link.jpg").symlink_to(open_path / "out/6.jpg")
    for locked in ("cat/locked", "cow", "out"):
        (open_path / locked).chmod(0)
    with as_nobody():
        found, problems = split(source := FolderSource(open_path))
        assert warnings_of(source) == ("2 classes have no images: 'cow', 'out'",)
    for locked in ("cat/locked", "cow", "out"):
        (open_path / locked).chmod(0o755)
    assert found == ["cat/1.jpg", "cat/open/3.jpg", "dog/5.jpg"]
    assert problems == {
        "cat/locked": "the folder cannot be read: Permission denied",
        "cow": "the folder cannot be read: Permission denied",
        "dog/link.jpg": "the link cannot be followed: Permission denied",
        "out": "the folder cannot be read: Permission denied",
    }


def test_unreadable_root_is_refused(open_path: Path) -> None:
    root = plant(open_path, "root/cat/1.jpg") / "root"
    root.chmod(0)
    with as_nobody(), pytest.raises(SourceError, match=r"root: the folder cannot be read: Permission denied$"):
        FolderSource(root)
    root.chmod(0o755)


def test_name_in_another_encoding_is_stored_as_text(tmp_path: Path) -> None:
    plant(tmp_path, b"\xfcber/caf\xe9.jpg", b"\xfcber/b\xff/1.jpg", b"\xfcber/b\xff/2.jpg")
    source = FolderSource(tmp_path)
    assert source.classes == ("\\xfcber",)
    assert [(entry.name, entry.location[0]) for entry in entries(source)] == [
        ("\\xfcber/caf\\xe9.jpg", b"\xfcber/caf\xe9.jpg"),
        ("\\xfcber/b\\xff/1.jpg", b"\xfcber/b\xff/1.jpg"),
        ("\\xfcber/b\\xff/2.jpg", b"\xfcber/b\xff/2.jpg"),
    ]
    assert warnings_of(source) == ("3 names are not valid UTF-8: each invalid byte is written as in '\\xfcber'",)


def test_folder_without_classes_and_images_is_an_error_with_remedy(tmp_path: Path) -> None:
    plant(tmp_path, "3.txt", ".git/1.jpg", "@eaDir/2.jpg")
    remedy = "put the images of each class into a folder or use --listing FILE"
    with pytest.raises(SourceError, match=rf"it contains no class folders \(no image directly in it\): {remedy}$"):
        FolderSource(tmp_path)


def test_images_directly_in_a_folder_have_no_label(tmp_path: Path) -> None:
    plant(tmp_path, "2.jpg", "1.JPG", "notes/day.txt", ".git/3.jpg", "README.md")
    source = FolderSource(tmp_path)
    assert [(entry.name, entry.label) for entry in only_entries(source)] == [("1.JPG", None), ("2.jpg", None)]
    assert source.classes == ()
    assert source.in_words(Tally())[1:] == ["labels: none, for lack of class folders"]
    assert warnings_of(source) == ()


SYSTEM = [
    *("@eaDir", "#recycle", "#snapshot", "@Recycle", "@Recently-Snapshot", "@sharebin", "LOST.DIR"),
    *("$RECYCLE.BIN", "$Recycle.Bin", "RECYCLER"),
    *("System Volume Information", "FOUND.000", "lost+found", "__MACOSX", "Network Trash Folder", "Temporary Items"),
]


@pytest.mark.parametrize("name", SYSTEM)
def test_folders_of_a_mac_nas_or_windows_are_left_out_and_named(tmp_path: Path, name: str) -> None:
    plant(tmp_path, "cat/1.jpg", f"{name}/cat/9.jpg", f"cat/{name}/1.jpg/THUMB.jpg", f"cat/deep/{name}.jpg")
    source = FolderSource(tmp_path)
    assert source.classes == ("cat",)
    assert names(source) == ["cat/1.jpg", f"cat/deep/{name}.jpg"]
    line = f"left out: {name} (2), added by a Mac, a NAS or Windows"
    assert source.in_words(tally_of(source))[-1] == line


@pytest.mark.parametrize("name", ["@eaDirs", "recycler", "my #recycle", "snapshot", "$", "lost", "@home", "__MACOS"])
def test_other_folders_are_classes(tmp_path: Path, name: str) -> None:
    plant(tmp_path, f"{name}/1.jpg", "zebra/2.jpg")
    assert FolderSource(tmp_path).classes == (name, "zebra")


UTF8 = "'utf-8' codec can't decode byte 0xff in position 0"


def test_files_beside_images_become_fields(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.jpg", "cat/2.png", "cat/3.jpg", "cat/x/1.jpg", "cat/notes.txt", "cat/3.md")
    (tmp_path / "cat/1.txt").write_text("\ufeffa cat", encoding="utf-8")
    (tmp_path / "cat/1.JSON").write_text('{"age": 3}')
    (tmp_path / "cat/2.png.json").write_text("[1, 2]")
    (tmp_path / "cat/3.txt").write_bytes(b"\xff")
    source = FolderSource(tmp_path)
    loaded = source.load(entries(source), lambda _: None)
    assert [item.entry.fields if isinstance(item, Loaded) else item for item in loaded] == [
        {"txt": "a cat", "json": {"age": 3}},
        {"json": [1, 2]},
        Problem("cat/3.jpg", f"its cat/3.txt cannot be the field 'txt': {UTF8}: invalid start byte"),
        b"",
    ]
    tally = tally_of(source)
    assert tally.skipped == {".txt": 1, ".md": 1}
    assert source.in_words(tally)[-1] == "fields: json (2 of 4 images), txt (2 of 4 images), from the file beside each"


def test_folder_without_images_is_an_error_with_extensions(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.psd", "cat/2.psd", "cat/README", "dog/")
    with pytest.raises(SourceError, match=r"not one image .* more extensions, found 2 \.psd, found 1 without"):
        only_entries(FolderSource(tmp_path))


def test_two_classes_of_the_same_name_are_an_error_before_anything_is_read(tmp_path: Path) -> None:
    plant(tmp_path, rb"caf\xe9/1.jpg", b"caf\xe9/1.jpg", "cat/1.jpg")
    with pytest.raises(SourceError, match=r"two class folders would have the same name, .*: rename one"):
        FolderSource(tmp_path)


def test_folder_says_how_it_is_read_in_the_store_and_in_its_report(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    plant_kinds(root)
    report = convert(root, tmp_path / "o.lmdb")
    assert report.understood == [
        f"images: {root}",
        "labels: the first folder of each path: 2 classes, 'cat' is 0 and 'dog' is 1",
    ]
    with open_store(tmp_path / "o.lmdb") as store:
        assert store.manifest.understood == report.understood
