"""A JPEG is repaired if only its end marker is missing, and never if pixels are missing."""

import io
import re

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dbloader.errors import DamagedImageError, NotAnImageError
from dbloader.images.check import check_decodes
from dbloader.images.info import Facts
from dbloader.images.jpeg import State, Structure, examine, repair
from dbloader.images.markers import Frame
from tests.support.jpegs import AC, DC, END, code_blocks, draw, encode, frame, scan, segment, thumbnail_exif

THUMBNAIL = encode(draw(16, 16, seed=1), quality=20)
SAMPLES = {
    "gray": encode(draw(40, 29, "L"), quality=40),
    "4:4:4": encode(draw(40, 29), quality=20, subsampling=0),
    "4:2:2": encode(draw(40, 29), quality=20, subsampling=1),
    "4:2:0": encode(draw(64, 48), quality=10, subsampling=2),
    "optimized": encode(draw(40, 29), quality=30, optimize=True),
    "restart blocks": encode(draw(40, 29), quality=20, subsampling=2, restart_marker_blocks=1),
    "restart rows": encode(draw(40, 29, "L"), quality=30, restart_marker_rows=1),
    "thumbnail": encode(draw(24, 17), quality=20, exif=thumbnail_exif(THUMBNAIL)),
    "comment": encode(draw(24, 17, "L"), quality=30, comment=b"not the end: \xff\xd9"),
    "profile": encode(draw(24, 17, "L"), quality=30, icc_profile=b"\xff\xd9" * 20),
    "cmyk": encode(draw(24, 17, "CMYK"), quality=20),
    "progressive gray": encode(draw(40, 29, "L"), quality=30, progressive=True),
    "progressive 4:2:0": encode(draw(40, 29), quality=20, progressive=True, subsampling=2),
    "progressive 4:2:2": encode(draw(33, 24), quality=60, progressive=True, subsampling=1),
    "progressive restart": encode(draw(24, 17), quality=30, progressive=True, restart_marker_blocks=1),
    "progressive cmyk": encode(draw(16, 16, "CMYK"), quality=20, progressive=True),
    # 40 x 29 pixels need 5 x 4 blocks, or 3 x 2 blocks in a halved component. Each scan has one component.
    "scans": frame(0xC1, 40, 29, 0x22, 0x11, 0x11)
    + scan([1], code_blocks(20))
    + scan([2], code_blocks(6, seed=1))
    + scan([3], code_blocks(6, seed=2))
    + END,
    # Of 17 x 9 pixels, the scan of component 2 has 2 x 2 blocks. The other scan has 2 x 2 MCUs of 2 + 1 blocks.
    "scans of two": frame(0xC0, 17, 9, 0x21, 0x11, 0x11)
    + scan([2], code_blocks(4))
    + scan([1, 3], code_blocks(12))
    + END,
    # The last of 177 bits begins a new byte, and padding fills this byte to FF.
    "last byte FF": frame(0xC0, 8, 8, 0x11) + scan([1], DC[0] + (AC[0x31] + "1") * 2 + (AC[0x01] + "1") * 55) + END,
}
GREY = SAMPLES["gray"][:-2]
FRAME = segment(0xC0, GREY[GREY.index(b"\xff\xc0") + 4 :][:9])

each_sample = pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES)


def frame_of(data: bytes) -> Frame:
    found = examine(data).frame
    assert found
    return found


def repaired(data: bytes) -> bytes:
    """Return the JPEG with its end marker, or raise DamagedImageError if more is missing."""
    structure = examine(data)
    if structure.state is not State.NO_END:
        raise DamagedImageError(structure.reason)
    return repair(data, structure)


def decode(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels, or raise ValueError if libjpeg warns."""
    colorspace = {1: "GRAY", 3: "RGB", 4: "CMYK"}[len(frame_of(data).sampling)]
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, colorspace=colorspace, strict=True)
    return pixels


def find_scans(data: bytes) -> list[tuple[int, int]]:
    """Return where each scan header begins and where the scan's data ends."""
    ends = re.compile(rb"\xff[\xc4\xd9\xda]")
    headers = [found.start() for found in re.finditer(b"\xff\xda", data)]
    return [(header, next(ends.finditer(data, header + 2)).start()) for header in headers]


def drop_end(data: bytes) -> bytes:
    assert data.endswith(END)
    return data[:-2]


@each_sample
def test_examine_recognizes_a_complete_image_and_its_size(data: bytes) -> None:
    image = Image.open(io.BytesIO(data))
    structure, frame = examine(data), frame_of(data)
    assert structure == Structure(State.COMPLETE, "", len(data), frame, len(data) - 2)
    assert (frame.width, frame.height) == image.size
    assert len(frame.sampling) == len(image.getbands())
    assert bool(structure.coefficient_bytes) is bool(image.info.get("progressive"))
    decode(data)


@each_sample
def test_only_images_cut_at_the_end_marker_are_repaired(data: bytes) -> None:
    for length in range(len(data)):
        if length in (len(data) - 1, len(data) - 2):
            assert examine(data[:length]).reason == "the end marker is missing"
            assert repaired(data[:length]) == data
        else:
            assert examine(data[:length]).state is not State.COMPLETE
            with pytest.raises(DamagedImageError, match=r"."):
                repaired(data[:length])


@each_sample
def test_fill_bytes_before_the_end_marker_are_dropped(data: bytes) -> None:
    body = drop_end(data)
    for fill in (b"\xff", b"\xff\xff", b"\xff\xff\xff"):
        assert examine(body + fill + END).state is State.COMPLETE
        assert repaired(body + fill) == data


def test_fill_bytes_are_not_mistaken_for_a_last_data_byte_of_ff() -> None:
    body = drop_end(SAMPLES["last byte FF"])
    with pytest.raises(DamagedImageError, match="premature end of data segment"):
        repaired(body[:-2] + b"\xff\xff")
    # The same holds before another scan.
    first, others = b"\xff\xda" + body.partition(b"\xff\xda")[2], scan([2], "000") + scan([3], "000")
    three = frame(0xC0, 8, 8, 0x11, 0x11, 0x11)
    assert repaired(three + first + others) == three + first + others + END
    with pytest.raises(DamagedImageError, match="premature end of data segment"):
        repaired(three + first[:-2] + b"\xff" + others)


@pytest.mark.parametrize("name", ["4:2:0", "restart rows", "progressive gray", "last byte FF"])
@pytest.mark.parametrize("junk", [b"\x00", b"\xff\x00", b"\x7f\xff", bytes(6)])
def test_bytes_after_the_last_block_are_refused(name: str, junk: bytes) -> None:
    with pytest.raises(DamagedImageError, match=r"data are left|extraneous bytes"):
        repaired(drop_end(SAMPLES[name]) + junk)


@pytest.mark.parametrize("trailer", [bytes(53), SAMPLES["gray"], b"\n", b"\xff", b"junk\xff\xd9\xff\xd8\xff"])
@each_sample
def test_bytes_after_the_end_marker_are_ignored(data: bytes, trailer: bytes) -> None:
    for fill in (b"", b"\xff\x01"):  # nothing, or a marker without parameters
        structure = examine(data[:-2] + fill + END + trailer)
        assert (structure.state, structure.end) == (State.COMPLETE, len(data) + len(fill))


def test_truncated_image_before_a_second_image_is_not_repaired() -> None:
    for name in ("4:2:0", "restart rows", "progressive gray"):
        cut = SAMPLES[name][:-30]
        with pytest.raises(DamagedImageError, match=f"a second image begins at byte {len(cut)}"):
            repaired(cut + SAMPLES["cmyk"])


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\x00", END + SAMPLES["gray"]])
def test_other_data_is_not_a_jpeg(data: bytes) -> None:
    assert examine(data).state is State.NOT_JPEG


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.startswith("progressive")])
def test_progressive_image_cut_between_two_scans_is_not_repaired(name: str) -> None:
    data = SAMPLES[name]
    pixels = decode(data)
    for _, end in find_scans(data)[:-1]:
        with pytest.raises(DamagedImageError, match=r"a further scan of component \d of \d is missing"):
            repaired(data[:end])
        # With an end marker, libjpeg decodes different pixels without a warning, so the file counts as complete.
        assert not np.array_equal(decode(data[:end] + END), pixels)
        assert examine(data[:end] + END).state is State.COMPLETE


def test_image_that_lacks_a_scan_is_damaged() -> None:
    data = SAMPLES["scans"]
    for number, (_, end) in enumerate(find_scans(data)[:-1], 1):
        for cut in (data[:end], data[:end] + END):
            assert examine(cut).state is State.DAMAGED
            assert examine(cut).reason == f"only {number} of 3 components have a scan"


def test_image_without_height_is_damaged() -> None:
    at = GREY.index(FRAME) + 5
    for more in (b"", segment(0xDC, b"\x00\x1d")):  # libjpeg reads no DNL segment
        assert examine(GREY[:at] + bytes(2) + GREY[at + 2 :] + more + END).reason.startswith("its header has no height")


@pytest.mark.parametrize(("process", "precision"), [(0xC9, 8), (0xCA, 8), (0xC3, 8), (0xC1, 12)])
def test_image_of_a_kind_with_unreliable_libjpeg_warnings_is_not_repaired(process: int, precision: int) -> None:
    data = SAMPLES["restart rows"].replace(b"\xff\xc0\x00\x0b\x08", bytes((0xFF, process, 0, 11, precision)))
    assert examine(data).state is State.COMPLETE
    with pytest.raises(DamagedImageError, match=f"a frame SOF{process - 0xC0} of {precision}-bit samples cannot be"):
        repaired(drop_end(data))


@pytest.mark.parametrize("name", ["restart blocks", "restart rows", "progressive restart"])
def test_image_without_a_restart_marker_is_damaged_and_not_repaired(name: str) -> None:
    data = SAMPLES[name]
    header, end = find_scans(data)[0]
    first, second, *_, last = (found.start() for found in re.finditer(b"\xff[\xd0-\xd7]", data[header:end]))
    for damaged in (
        data[: header + second] + b"\xff\xd4" + data[header + second + 2 :],
        data[: header + first] + data[header + first + 2 :],
        data[: header + last] + data[end:],
    ):
        with pytest.raises(DamagedImageError, match="does not decode: Corrupt JPEG data"):
            check_decodes(damaged, Facts("JPEG", 40, 29))
        with pytest.raises(DamagedImageError, match="more than its end marker is missing"):
            repaired(drop_end(damaged))


@pytest.mark.parametrize("stray", [b"\x00", b"\xff\x00", b"stray \xff\x00\xff\xff"])
def test_stray_bytes_are_ignored_only_with_an_end_marker(stray: bytes) -> None:
    data = SAMPLES["gray"]
    for at in (data.index(b"\xff\xdb"), data.index(FRAME), len(data) - 2):
        longer = data[:at] + stray + data[at:]
        assert examine(longer).state is State.COMPLETE
        assert Image.open(io.BytesIO(longer)).tobytes() == Image.open(io.BytesIO(data)).tobytes()
        with pytest.raises(DamagedImageError, match=r"no marker begins at byte|data are left|extraneous bytes"):
            repaired(drop_end(longer))


HEAD = frame(0xC0, 8, 8, 0x11)
AT_FRAME = HEAD.index(b"\xff\xc0")
SCAN = scan([1], "000")
COMMENT = segment(0xFE, b"")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xd8", "the image ends at byte 2, before its first scan"),
        (HEAD + END, f"the image ends at byte {len(HEAD) + 2}, before its first scan"),
        (b"\xff\xd8" + SCAN + END, "segment FFDA at byte 2 is before the frame"),
        (HEAD + b"\x00" + SCAN, f"no marker begins at byte {len(HEAD)}, and the end marker is missing"),
        (HEAD + SCAN + COMMENT + b"\xff\x00", f"no marker begins at byte {len(HEAD + SCAN + COMMENT)}, and the end"),
        (HEAD + SCAN + b"\xff\x02" + END, f"marker FF02 is out of place at byte {len(HEAD + SCAN)}"),
        (HEAD + b"\xff\xe0\x00\x01" + SCAN + END, f"segment FFE0 at byte {len(HEAD)} contradicts"),
        (HEAD + b"\xff\xe0\x00", f"segment FFE0 at byte {len(HEAD)} is cut short"),
        (HEAD + FRAME + SCAN + END, f"segment FFC0 at byte {len(HEAD)} begins a second frame"),
        (frame(0xC0, 0, 8, 0x11) + SCAN + END, f"segment FFC0 at byte {AT_FRAME} contradicts"),
        (frame(0xC0, 8, 8, 0x01) + SCAN + END, f"segment FFC0 at byte {AT_FRAME} contradicts"),
        (b"\xff\xd8" + segment(0xC0, FRAME[4:-1]) + END, "segment FFC0 at byte 2 contradicts"),
        (HEAD + scan([2]) + END, f"segment FFDA at byte {len(HEAD)} names a component"),
        (HEAD + scan([1, 1]) + END, f"segment FFDA at byte {len(HEAD)} names a component"),
        (HEAD + segment(0xDA, b"\x01\x01\x00\x3f\x00") + END, f"segment FFDA at byte {len(HEAD)} contradicts"),
    ],
)
def test_inconsistent_segment_is_named_with_its_offset(data: bytes, reason: str) -> None:
    structure = examine(data)
    assert structure.state is State.DAMAGED
    assert structure.reason.startswith(reason)
    assert 2 <= structure.end <= len(data)


FLAT = frame(0xC2, 16, 8, 0x11)  # two blocks
COLOURS = frame(0xC2, 8, 8, 0x11, 0x11)
FIRST_DC = scan([1], DC[0] * 2, band=(0, 0))
FIRST_AC = scan([1], (AC[0x01] + "1" + AC[0x00]) * 2, band=(1, 63), bits=0x01)
COARSE_DC = scan([1], DC[0] * 2, band=(0, 0), bits=0x02)
BOTH_DC = scan([1, 2], DC[0] * 2, band=(0, 0))
ALL_AC = scan([1], AC[0x00] * 2, band=(1, 63))
COARSE_AC = scan([1], AC[0x00] * 2, band=(1, 63), bits=0x02)
REFINED_AC = scan([1], AC[0x00] * 2, band=(1, 63), bits=0x10)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        # A scan contradicts earlier scans.
        (HEAD + scan([1], "000", bits=0x01), "component 1 of 1 is missing"),
        (HEAD + SCAN + SCAN, "expect more than one scan"),
        (FLAT + FIRST_AC, "component 1 of 1 is missing"),
        (FLAT + FIRST_DC + REFINED_AC, "Inconsistent progression sequence"),
        (FLAT + FIRST_DC + COARSE_AC + REFINED_AC, "Inconsistent progression sequence"),
        (FLAT + REFINED_AC + scan([1], DC[0] * 2, band=(0, 0)), "Inconsistent progression sequence"),
        (FLAT + scan([1], DC[0] * 2, band=(0, 63)), "Invalid progressive"),
        (FLAT + COARSE_DC + scan([1], "00", band=(0, 0), bits=0x20) + ALL_AC, "Invalid progressive"),
        (FLAT + FIRST_DC + scan([1], "0", band=(1, 64)), "Invalid progressive"),
        (COLOURS + BOTH_DC + scan([1, 2], "00", band=(1, 63)), "subsampling level"),
        # The scans are consistent, but one is missing.
        (HEAD + scan([1], "000", band=(0, 62)), "component 1 of 1 is missing"),
        (COLOURS + scan([1], DC[0], band=(0, 0)) + scan([1], "0", band=(1, 63)), "only 1 of 2 components have a scan"),
        (FLAT + FIRST_DC + scan([1], AC[0x00] * 2, band=(1, 62)), "a further scan of component 1 of 1 is missing"),
        (FLAT + FIRST_DC + FIRST_AC, "a further scan of component 1 of 1 is missing"),
        (FLAT + FIRST_DC + scan([1], "0", band=(2, 1)), "a further scan of component 1 of 1 is missing"),
    ],
)
def test_image_without_end_marker_needs_all_scans(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedImageError, match=reason):
        repaired(data)


@pytest.mark.parametrize("zeros", [1, 2, 7, 8, 100, 3000])
@pytest.mark.parametrize("name", ["gray", "4:2:0", "progressive 4:2:2"])
def test_image_with_zeros_in_place_of_lost_data_is_not_repaired(name: str, zeros: int) -> None:
    data = SAMPLES[name]
    for length in (len(data) - 6, len(data) - 40, len(data) - 90):
        with pytest.raises(DamagedImageError, match=r"is damaged|is missing"):
            repaired(data[:length] + bytes(zeros))


def test_image_that_cannot_be_checked_is_not_repaired() -> None:
    with pytest.raises(DamagedImageError, match=r"its end marker is missing .*subsampling"):
        repaired(drop_end(encode(draw(40, 29, "CMYK"), subsampling=1)))
    at = GREY.index(FRAME) + 5
    with pytest.raises(NotAnImageError, match="too large to be decoded"):
        repaired(GREY[:at] + b"\xff\xdc\xff\xdc" + GREY[at + 4 :])


@settings(max_examples=100)
@given(name=st.sampled_from(sorted(SAMPLES)), at=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_repaired_image_decodes_without_warnings(name: str, at: float, mask: int) -> None:
    data = bytearray(SAMPLES[name])
    scans = find_scans(SAMPLES[name])
    header, end = scans[int(at * len(scans))]
    begin = header + 2 + int.from_bytes(data[header + 2 : header + 4], "big")
    data[begin + int(at * len(scans) % 1 * (end - begin))] ^= mask
    cut = bytes(data[:-2])
    try:
        whole = repaired(cut)
    except DamagedImageError:
        return
    assert whole == cut.rstrip(b"\xff") + END, "a repair must add only the end marker"
    assert decode(whole).shape == decode(SAMPLES[name]).shape


@settings(max_examples=300)
@given(
    data=st.sampled_from(sorted(SAMPLES.values())),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6),
    length=st.integers(0, 2000),
)
def test_examine_never_raises(data: bytes, changes: list[tuple[int, int]], length: int) -> None:
    changed = bytearray(data)
    for at, value in changes:
        changed[at % len(data)] = value
    changed = changed[:length]
    structure = examine(bytes(changed))
    assert 0 <= structure.end <= len(changed)
    assert bool(structure.reason) is (structure.state is not State.COMPLETE)
