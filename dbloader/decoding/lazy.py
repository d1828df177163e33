"""PIL images that decode only the pixels that are needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image
from typing_extensions import override

from dbloader._describe import add_note
from dbloader.decoding.codecs import CodecImage, is_bare, open_codec
from dbloader.decoding.jpeg import JPEG, open_jpeg, shrink_factor
from dbloader.decoding.open import ArrayImage, decode_pil
from dbloader.decoding.pillow import PillowImage, open_file
from dbloader.decoding.render import mirror, resize_pixels
from dbloader.errors import ImageError
from dbloader.images.markers import START

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

_Pixels = TypeVar("_Pixels")

RESIZES = ("exact", "fast", "scaled")

_FILTERS: dict[int | None, str] = {
    None: "bicubic",
    Image.Resampling.BICUBIC: "bicubic",
    Image.Resampling.BILINEAR: "bilinear",
}

_FLIPS = (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM)


class Pixels:
    """The pixels of an image, decoded when they are needed. Threads may share this object."""

    def __init__(self, image: JPEG | PillowImage | ArrayImage) -> None:
        self.image = image
        self._whole = image.array if isinstance(image, ArrayImage) else None
        self._spent = 0.0  # work that was spent on crops; 1 is the work of decoding the whole image
        self._lock = threading.Lock()

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> npt.NDArray[np.uint8]:
        """Return a part of the image: uint8, shape (height, width, 3), RGB. Callers must not write to the array.

        With ``factor`` 2, 4 or 8, the result may be smaller by this factor.
        """
        with self._lock:
            box = (left, top, width, height)
            if self._whole is None and isinstance(self.image, JPEG):
                image = self.image
                size = (image.height, image.width, 3)
                share = (top + height) / image.height if image.tiles is None else width * height / (size[0] * size[1])
                self._spent += share if factor == 1 else share / 2
                if self._spent > 1 and share < 1:  # decode the whole image once, so further crops cost nothing
                    box, factor = (0, 0, image.width, image.height), 1
                pixels = image.part(*box, factor)()
                whole = pixels.base if isinstance(pixels.base, np.ndarray) else pixels
                if whole.shape != size:
                    return pixels
                self._whole = whole
            if self._whole is not None:
                return self._whole[top : top + height, left : left + width]
            return self.image.part(*box, 1)()


class View(NamedTuple):
    """A part of an image's pixels."""

    pixels: Pixels
    left: int
    top: int
    width: int
    height: int

    def decode(self, factor: int = 1) -> npt.NDArray[np.uint8]:
        """Return the pixels as `Pixels.part` does."""
        return self.pixels.part(*self[1:], factor)

    def to_pil(self) -> Image.Image:
        """Return an ordinary image with a copy of the pixels."""
        image = self.pixels.image
        if isinstance(image, PillowImage):
            return image.image.crop((self.left, self.top, self.left + self.width, self.top + self.height))
        pixels = self.decode()
        height, width, _ = pixels.shape
        stride = pixels.strides[0]  # Image.fromarray would copy the pixels twice if the rows are not contiguous
        memory = np.lib.stride_tricks.as_strided(pixels, (stride * (height - 1) + 3 * width,), (1,), writeable=False)
        return Image.frombuffer("RGB", (width, height), memory, "raw", "RGB", stride, 1)


def open_lazy(
    data: bytes, tiles: bytes | None = None, *, known_intact: bool = False, resize: str = "exact", note: str = ""
) -> Image.Image:
    """Open an image file as a PIL image of mode RGB, with the pixels, ``info`` and errors of ``decode_pil``.

    If the file is a JPEG that is known to be intact, only the needed pixels are decoded, and only when they are needed.
    Other files are decoded at once, to find damage early.

    ``tiles`` and ``known_intact`` are as in ``Decoder``. LMDBDataset explains ``resize``, one of RESIZES. ``note`` is
    added to every error of decoding, which may occur long after this call.
    """
    opened: JPEG | CodecImage | ArrayImage | None = None
    if known_intact:
        opened = open_jpeg(data, tiles, known_intact=True) or open_codec(data)
    if isinstance(opened, CodecImage):
        pixels = np.ascontiguousarray(opened.crop(0, 0, opened.width, opened.height))
        if resize == "exact" and is_bare(data):  # nothing is left to read or decode, so a LazyImage saves no time
            return Image.fromarray(pixels)
        opened = ArrayImage(pixels)
    if opened is not None:
        return LazyImage(View(Pixels(opened), 0, 0, opened.width, opened.height), data, resize, note)
    image = decode_pil(data)
    if resize == "exact":
        return image
    return LazyImage(View(Pixels(PillowImage(image)), 0, 0, *image.size), image.info, resize, note)


class LazyImage(Image.Image):
    """An RGB image whose pixels are decoded when they are needed.

    A copy of the image, or a crop within it, is also lazy. When Pillow needs pixels in its own memory, the image
    decodes them and changes its class to ``PIL.Image.Image``. Pickling does so too.

    Threads may share an image. While a method runs, ``_settle`` in another thread may set ``info``, change the class,
    and set ``_view`` to None and ``_file`` to b"". The new class lacks this class's private methods, so methods call
    functions of this module. They read ``_view`` only once. They read ``_file`` before ``info``, which is set earlier.

    The argument ``info`` is Pillow's ``info`` of the image, or the image file that contains this ``info``.
    """

    def __init__(self, view: View, info: bytes | dict[Any, Any], resize: str, note: str) -> None:
        vars(self).update(vars(Image.Image()))  # calling Image.__init__ would call the setter of `im`
        self._mode = "RGB"
        self._size = (view.width, view.height)
        self._view: View | None = view  # None after the image has become an ordinary image
        self._resize, self._note = resize, note
        self._lock = threading.Lock()
        del vars(self)["info"]
        self._file = b"" if isinstance(info, dict) else info
        if isinstance(info, dict):
            self.info = info

    @property
    def info(self) -> dict[Any, Any]:  # an attribute in the base class
        """Data of the header, such as EXIF. ``decode_pil`` returns an image with the same ``info``."""
        file, known = self._file, vars(self)
        if "info" not in known:  # Pillow takes 50 us to read the header
            with _noted(self, open_file if file[:2] == START else decode_pil, file) as image:
                known.setdefault("info", image.info)  # Pillow reads the whole info of a WebP only when it decodes
        info: dict[Any, Any] = known["info"]
        return info

    @info.setter
    def info(self, info: dict[Any, Any]) -> None:
        vars(self)["info"] = info

    @property
    def im(self) -> Any:
        """The pixels in Pillow's memory."""
        self.load()
        return self.im  # load() has changed the class, so this is Pillow's attribute

    @im.setter
    def im(self, im: Any) -> None:
        with self._lock:
            _settle(self, im)

    @override
    def load(self) -> Any:
        with self._lock:
            if self._view is not None:
                _settle(self, _noted(self, self._view.to_pil).im)
        return Image.Image.load(self)

    @override
    def close(self) -> None:
        with self._lock:
            _settle(self, None)
        Image.Image.close(self)

    @override
    def copy(self) -> Image.Image:
        view = self._view
        return Image.Image.copy(self) if view is None else _derive(self, view)

    __copy__ = copy

    @override
    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        if mode in (None, "RGB") and not args and not kwargs:
            return self.copy()
        return Image.Image.convert(self, mode, *args, **kwargs)

    @override
    def crop(self, box: Sequence[float] | None = None) -> Image.Image:
        view = self._view
        if view is not None and box is not None:
            try:
                left, top, right, bottom = (int(round(edge)) for edge in box)  # noqa: RUF046 # Pillow's own rounding
            except (TypeError, ValueError, OverflowError):
                return Image.Image.crop(self, box)  # type: ignore[arg-type] # raises Pillow's error
            if 0 <= left < right <= view.width and 0 <= top < bottom <= view.height:
                return _derive(self, View(view.pixels, view.left + left, view.top + top, right - left, bottom - top))
        return Image.Image.crop(self, box)  # type: ignore[arg-type] # any box that Pillow takes

    @override
    def resize(
        self, size: Any, resample: int | None = None, box: Any = None, reducing_gap: float | None = None
    ) -> Image.Image:
        view = self._view
        if view is None:
            return Image.Image.resize(self, size, resample, box, reducing_gap)
        usual = len(size) == 2 and all(type(side) is int and side > 0 for side in size) and resample in _FILTERS
        if self._resize == "exact" or not usual or box is not None or reducing_gap is not None:
            return _of(self, PillowImage(_noted(self, view.to_pil).resize(size, resample, box, reducing_gap)))
        width, height = size
        factor = shrink_factor(view.height, view.width, (height, width)) if self._resize == "scaled" else 1
        pixels = _noted(self, view.decode, factor)
        rows, columns, _ = pixels.shape
        if _FILTERS[resample] == "bicubic" and height < rows and height * columns < rows * width:
            # Width and height are resized one after the other. If the height shrinks more than the width, Pillow 13
            # often begins with the height. torch begins with the width. Bicubic pixels then differ by up to 26 levels.
            return _of(self, PillowImage(Image.fromarray(pixels).resize(size, resample)))
        if (rows, columns) != (height, width):
            pixels = resize_pixels(pixels, (height, width), _FILTERS[resample])
        return _of(self, ArrayImage(np.ascontiguousarray(pixels)))

    @override
    def transpose(self, method: Image.Transpose) -> Image.Image:
        view = self._view
        if view is None or method not in _FLIPS:
            return Image.Image.transpose(self, method)
        pixels = _noted(self, view.decode)  # np.flipud returns a view with a negative stride, so copy it
        return _of(self, ArrayImage(mirror(pixels) if method == _FLIPS[0] else np.flipud(pixels).copy()))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        view = self._view
        if view is None:
            return Image.Image.__array_interface__.__get__(self)  # type: ignore[no-any-return]
        pixels = np.ascontiguousarray(_noted(self, view.decode))
        return {"version": 3, "shape": pixels.shape, "typestr": "|u1", "data": pixels.data.toreadonly()}

    @override
    def __eq__(self, other: object) -> bool:
        for image in (self, other):
            if isinstance(image, LazyImage):
                image.load()  # Pillow compares classes too
        return Image.Image.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment] # as Pillow's

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        try:
            self.load()
        except Exception as error:
            # A DataLoader's worker pickles samples in another thread. An error in this thread would drop the sample,
            # and the training would wait forever. So the error is pickled, and unpickling raises it.
            return _raise, (error,)
        return Image.Image.__reduce_ex__(self, protocol)


def _settle(image: LazyImage, im: Any) -> None:
    """Make the image an ordinary image with the pixels ``im``."""
    plain = Image.Image()
    plain.im = im
    # The name of Pillow's attribute, ``im`` or ``_im``, depends on Pillow's version.
    pixels = {name: value for name, value in vars(plain).items() if name in ("im", "_im")}
    vars(image).update(pixels, info=image.info)
    image.__class__ = Image.Image  # type: ignore[assignment]
    image._view, image._file = None, b""


def _noted(image: LazyImage, decode: Callable[..., _Pixels], *args: Any) -> _Pixels:
    try:
        return decode(*args)
    except (ImageError, MemoryError) as error:
        add_note(error, image._note)
        raise


def _derive(image: LazyImage, view: View) -> LazyImage:
    file, known = image._file, vars(image).get("info")
    return LazyImage(view, file if known is None else known.copy(), image._resize, image._note)


def _of(image: LazyImage, opened: ArrayImage | PillowImage) -> LazyImage:
    return _derive(image, View(Pixels(opened), 0, 0, opened.width, opened.height))


def _raise(error: Exception) -> None:
    raise error
