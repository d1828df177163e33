"""Batches are prepared where they are: normalized, erased, mixed; and always in the same way."""

import pickle
import types
from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from dbloader.device import Normalize, Preparation, RandomErasing
from dbloader.device.noise import _quantiles as quantiles
from dbloader.device.noise import normal
from dbloader.errors import OptionError
from dbloader.sampling.rng import SampleRNG, mix

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALF)
MODES = ("const", "rand", "pixel")
CPU = torch.device("cpu")

cuda = pytest.mark.cuda


def pixels(count: int = 4, channels: int = 3, height: int = 17, width: int = 23) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


def every_value() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).expand(1, 3, 1, 256)


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, 7.0, dtype=dtype)


def rng_of(positions: Any, *, seed: int = 1, epoch: int = 2, stream: int = 0) -> SampleRNG:
    return SampleRNG(seed, epoch, positions, stream)


def boxes_of(erased: torch.Tensor) -> list[tuple[int, int, int, int] | None]:
    """Return top, bottom, left and right of what is 0 in each image, which must be one full rectangle or nothing."""
    found: list[tuple[int, int, int, int] | None] = []
    for image in erased:
        rows, columns = (image[0] == 0).nonzero(as_tuple=True)
        if not len(rows):
            found.append(None)
            continue
        box = (int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + 1)
        assert len(rows) == (box[1] - box[0]) * (box[3] - box[2])
        found.append(box)
    return found


# Normalising


@pytest.mark.parametrize("dtype", DTYPES)
def test_uint8_images_become_what_float64_arithmetic_gives(dtype: torch.dtype) -> None:
    result = Normalize(MEAN, STD, dtype=dtype)(every_value())
    exact = (np.arange(256) / 255 - np.array(MEAN)[:, None]) / np.array(STD)[:, None]
    assert (result.dtype, result.shape) == (dtype, (1, 3, 1, 256))
    # Half a unit of the last place of the dtype, and a little of float32's for what is computed before.
    allowed = torch.finfo(dtype).eps / 2 * np.abs(exact) + 5e-7
    assert (np.abs(result[0, :, 0].double().numpy() - exact) <= allowed).all()


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_the_float32_result_rounded_once(dtype: torch.dtype) -> None:
    single, half = (Normalize(MEAN, STD, dtype=each)(every_value()) for each in (torch.float32, dtype))
    assert torch.equal(half, single.to(dtype))


def test_each_step_is_rounded_as_float32_arithmetic_of_numpy_is() -> None:
    mean = np.array([255.0 * value for value in MEAN]).astype(np.float32)[:, None, None]
    scale = np.array([1 / (255.0 * value) for value in STD]).astype(np.float32)[:, None, None]
    expected = (pixels().numpy().astype(np.float32) - mean) * scale
    assert (Normalize(MEAN, STD)(pixels()).numpy() == expected).all()


@pytest.mark.parametrize("given", [*DTYPES, torch.float64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_float_images_are_taken_as_0_to_1(given: torch.dtype, dtype: torch.dtype) -> None:
    images = (pixels() / 255).to(given)
    result = Normalize(MEAN, STD, dtype=dtype)(images)
    exact = (images.double() - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    assert result.dtype is dtype
    assert torch.allclose(result.double(), exact, rtol=torch.finfo(dtype).eps / 2, atol=5e-7)


@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_memory_format_is_the_one_asked_for(given: Any, dtype: torch.dtype, channels_last: bool) -> None:
    images = pixels().contiguous(memory_format=given)
    result = Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last)(images)
    assert result.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    assert torch.equal(result, Normalize(MEAN, STD, dtype=dtype)(pixels()))


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_any_number_of_images_and_channels_is_normalized(channels: int, count: int) -> None:
    images = pixels(count, channels)
    result = Normalize((0.0,) * channels, (1.0,) * channels)(images)
    assert torch.allclose(result, images / 255)
    assert images.dtype is torch.uint8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mean": (123.7, 116.3, 103.5)},
            r"mean \(on the scale 0 to 1, not 0 to 255\) must be at least 0 and at most 1, got 123.7",
        ),
        ({"mean": (-0.1, 0.5, 0.5)}, "must be at least 0 and at most 1, got -0.1"),
        ({"mean": (float("nan"), 0.5, 0.5)}, "must be at least 0 and at most 1, got nan"),
        ({"std": (0.5, 0.0, 0.5)}, r"std \(on the scale 0 to 1, not 0 to 255\) must be above 0 and at most 1, got 0.0"),
        ({"std": (58.4, 57.1, 57.4)}, "must be above 0 and at most 1, got 58.4"),
        ({"std": (0.5, 0.5)}, "mean and std must have one number for each channel, got 3 and 2"),
        ({"mean": (), "std": ()}, "mean and std must have one number for each channel, got 0 and 0"),
        ({"dtype": torch.uint8}, "dtype must be one of torch.float32, .*, got torch.uint8"),
        ({"dtype": "float16"}, "dtype must be one of torch.float32, .*, got 'float16'"),
    ],
)
def test_wrong_options_of_normalize_are_errors(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Normalize(**{"mean": MEAN, "std": STD, **options})


@pytest.mark.parametrize("mean", [0.5, "0.5", ("0.5",), (True,), (None,)])
def test_means_that_are_no_numbers_are_errors(mean: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a (sequence of )?number.*, got"):
        Normalize(mean, (0.5,))


@pytest.mark.parametrize("module", [Normalize(MEAN, STD), RandomErasing()])
def test_what_are_no_images_are_errors(module: torch.nn.Module) -> None:
    with pytest.raises(TypeError, match="images must be a tensor, got ndarray"):
        module(np.zeros((1, 3, 4, 4)))
    with pytest.raises(ValueError, match=r"images must have the shape \(N, C, H, W\), got \(3, 4, 4\)"):
        module(torch.zeros(3, 4, 4))
    with pytest.raises(TypeError, match=r"images must be uint8 \(0 to 255\) or float \(0 to 1\), got torch.int64"):
        module(torch.zeros(1, 3, 4, 4, dtype=torch.int64))


def test_images_with_other_channels_are_an_error() -> None:
    with pytest.raises(OptionError, match="each of the 1 channels of the images, got 3"):
        Normalize(MEAN, STD)(pixels(channels=1))


# Erasing


def reference_boxes(erasing: RandomErasing, given: SampleRNG, height: int, width: int) -> list[list[Any]]:
    """Return the rectangles of each image, drawn one by one as timm's code draws them."""
    found: list[list[Any]] = []
    tries = 10
    count_of = erasing.max_count
    for (erased, counted), row in zip(
        given.uniform(2, "erasing"), given.uniform(count_of * (2 * tries + 2), "boxes"), strict=True
    ):
        boxes: list[Any] = []
        found.append(boxes)
        if erased >= erasing.probability:
            continue
        count = erasing.min_count + int(counted * (erasing.max_count - erasing.min_count + 1))
        for number in range(count):
            draws = row[number * (2 * tries + 2) :]
            for attempt in range(tries):
                share = erasing.min_area + draws[attempt] * (erasing.max_area - erasing.min_area)
                target = share * height * width / count
                low, high = np.log(erasing.min_aspect), np.log(erasing.max_aspect)
                aspect = np.exp(low + draws[tries + attempt] * (high - low))
                h, w = round(np.sqrt(target * aspect)), round(np.sqrt(target / aspect))
                if w < width and h < height:
                    top, left = int(draws[2 * tries] * (height - h + 1)), int(draws[2 * tries + 1] * (width - w + 1))
                    boxes.append((top, top + h, left, left + w, number))
                    break
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("counts", [(1, None), (2, None), (1, 4)])
@pytest.mark.parametrize("size", [(17, 23), (40, 8), (1, 1), (2, 2)])
def test_erasing_is_what_a_loop_over_images_and_boxes_does(mode: Any, counts: Any, size: tuple[int, int]) -> None:
    erasing = RandomErasing(0.7, mode=mode, min_count=counts[0], max_count=counts[1], max_area=0.6)
    images, given = floats(64, 3, *size), rng_of(range(100, 164))
    expected = images.clone()
    noise = normal(given.bits("pixels"), (3, *size), torch.float32, CPU)
    colors = torch.special.ndtri(torch.from_numpy(given.uniform(erasing.max_count * 3, "colors"))).float()
    for place, boxes in enumerate(reference_boxes(erasing, given, *size)):
        for top, bottom, left, right, number in boxes:
            inside = (place, slice(None), slice(top, bottom), slice(left, right))
            if mode == "const":
                expected[inside] = 0
            elif mode == "rand":
                expected[inside] = colors[place, 3 * number : 3 * number + 3, None, None]
            else:
                expected[inside] = noise[inside]
    assert torch.equal(erasing(images, rng=given), expected)
    if size == (17, 23):
        assert not torch.equal(expected, images)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_erasing_keeps_dtype_memory_format_and_its_input(mode: Any, dtype: torch.dtype, layout: Any) -> None:
    images = floats(8, 3, 17, 23, dtype=dtype).contiguous(memory_format=layout)
    result = RandomErasing(1, mode=mode)(images, rng=rng_of(range(8)))
    assert (result.dtype, result.is_contiguous(memory_format=layout)) == (dtype, True)
    assert (images == 7).all()
    plain = RandomErasing(1, mode=mode)(floats(8, 3, 17, 23, dtype=torch.float64), rng=rng_of(range(8)))
    assert torch.equal(result, plain.to(dtype))


@pytest.mark.parametrize("mode", MODES)
def test_an_image_is_erased_in_the_same_way_in_any_batch(mode: Any) -> None:
    erasing = RandomErasing(0.6, mode=mode, max_count=3)
    images, order = floats(60, 3, 16, 16), np.random.default_rng(0).permutation(60)
    whole = erasing(images, rng=rng_of(range(60)))
    for size in (1, 7, 60):
        parts = [erasing(images[: len(part)], rng=rng_of(part)) for part in np.split(order, range(size, 60, size))]
        assert torch.equal(torch.cat(parts), whole[torch.from_numpy(order)])


@pytest.mark.parametrize("other", [{"seed": 3}, {"epoch": 3}, {"stream": 1}])
@pytest.mark.parametrize("mode", MODES)
def test_another_seed_epoch_or_stream_erases_otherwise(mode: Any, other: Any) -> None:
    erasing = RandomErasing(1, mode=mode)
    first, second = (
        erasing(floats(20, 3, 32, 32), rng=given) for given in (rng_of(range(20)), rng_of(range(20), **other))
    )
    assert not any(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_as_many_images_are_erased_as_the_probability_says() -> None:
    for probability in (0, 0.1, 0.5, 0.9, 1):
        erased = RandomErasing(probability)(floats(10_000, 1, 9, 9), rng=rng_of(range(10_000)))
        found = sum(box is not None for box in boxes_of(erased)) / 10_000
        assert abs(found - probability) <= 5 * (probability * (1 - probability) / 10_000) ** 0.5  # 5 sigma


def test_areas_and_aspects_are_within_their_bounds_and_fill_them() -> None:
    erasing = RandomErasing(1, min_area=0.05, max_area=0.25, min_aspect=0.5, max_aspect=1.5)
    size, count = 100, 2000
    found = boxes_of(erasing(floats(count, 1, size, size), rng=rng_of(range(count))))
    heights, widths = np.array([(box[1] - box[0], box[3] - box[2]) for box in found if box]).T
    assert len(heights) == count
    areas, aspects = heights * widths / size**2, np.log(heights / widths)
    # Rounding moves a side by half a pixel, of at least 18.
    assert 0.05 * 0.95 <= areas.min() <= 0.053
    assert 0.247 <= areas.max() <= 0.25 * 1.05
    assert np.log(0.5) - 0.05 <= aspects.min() <= np.log(0.52)
    assert np.log(1.45) <= aspects.max() <= np.log(1.5) + 0.05
    assert abs(areas.mean() - 0.15) < 0.007
    assert abs(aspects.mean() - np.log(0.75) / 2) < 0.04
    tops = np.array([box[0] / (size - box[1] + box[0]) for box in found if box])
    lefts = np.array([box[2] / (size - box[3] + box[2]) for box in found if box])
    for places in (tops, lefts):
        assert (places.min(), places.max()) == (0, 1)
        assert abs(places.mean() - 0.5) < 0.035
    assert abs(np.corrcoef(tops, lefts)[0, 1]) < 0.12


def test_several_rectangles_share_the_area() -> None:
    erasing = RandomErasing(1, min_area=0.2, max_area=0.2, min_aspect=1, min_count=4)
    boxes = erasing._boxes(rng_of(range(50)), 100, 100)
    assert boxes.shape == (50, 4, 4)
    assert set((boxes[..., 1] - boxes[..., 0]).flatten()) == {22}  # round(sqrt(0.2 * 100 * 100 / 4))


def test_all_counts_between_the_least_and_the_greatest_are_as_frequent() -> None:
    boxes = RandomErasing(1, max_area=0.1, min_count=2, max_count=4)._boxes(rng_of(range(3000)), 64, 64)
    counts = np.bincount((boxes[..., 1] > 0).sum(-1), minlength=5)
    assert counts[:2].sum() == 0
    assert (abs(counts[2:] - 1000) < 5 * (3000 * 2 / 9) ** 0.5).all()


def test_one_colour_fills_a_rectangle_and_normal_noise_the_other_mode() -> None:
    images, given = floats(500, 3, 24, 24), rng_of(range(500))
    erased = RandomErasing(1)(images, rng=given) == 0
    colors = RandomErasing(1, mode="rand")(images, rng=given)
    noise = RandomErasing(1, mode="pixel")(images, rng=given)
    firsts = []
    for inside, colored, noisy in zip(erased, colors, noise, strict=True):
        assert (colored[~inside] == 7).all()
        assert (noisy[~inside] == 7).all()
        channels = [colored[channel][inside[channel]].unique() for channel in range(3)]
        assert [len(values) for values in channels] == [1, 1, 1]
        firsts += [float(values) for values in channels]
    assert len(set(firsts)) == 1500
    for values in (torch.tensor(firsts), noise[erased]):
        sigma = len(values) ** -0.5
        assert abs(values.mean()) < 5 * sigma
        assert abs(values.var() - 1) < 5 * 2**0.5 * sigma
        assert abs((values**4).mean() - 3) < 5 * 96**0.5 * sigma


def test_pixel_noise_is_splitmix64_in_a_table_of_normal_quantiles() -> None:
    seeds, shape = rng_of(range(5)).bits("pixels"), (3, 5, 7)
    words = seeds[:, None] + np.arange(1, 28, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mix(words)
    chosen = words.astype("<u8").view("<i2")[:, :105].astype(np.int64) + 2**15
    quantiles = torch.special.ndtri((torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16).numpy()
    expected = quantiles[chosen].astype(np.float32).reshape(5, *shape)
    assert (normal(seeds, shape, torch.float32, CPU).numpy() == expected).all()


def test_pixel_noise_of_neighbors_is_unrelated() -> None:
    noise = normal(rng_of(range(64)).bits("pixels"), (3, 64, 64), torch.float64, CPU)
    bound = 5 / noise.numel() ** 0.5
    for shifts, axes in (((1,), (3,)), ((4,), (3,)), ((1,), (2,)), ((1,), (1,)), ((1,), (0,)), ((1, 1), (2, 3))):
        assert abs((noise * noise.roll(shifts, axes)).mean()) < bound


@pytest.mark.parametrize(("num_splits", "clean"), [(0, 0), (1, 0), (2, 5), (3, 3), (100, 0)])
def test_the_first_split_is_left_alone(num_splits: int, clean: int) -> None:
    erased = RandomErasing(1, num_splits=num_splits)(floats(10, 3, 16, 16), rng=rng_of(range(10)))
    assert [box is None for box in boxes_of(erased)] == [True] * clean + [False] * (10 - clean)


def test_without_keys_torchs_generator_decides() -> None:
    erasing, images = RandomErasing(1, mode="pixel"), floats(8, 3, 16, 16)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(erasing(images))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert not torch.equal(results[2], erasing(images))
    assert not torch.equal(results[2][0], results[2][1])


def test_uint8_images_can_only_be_erased_with_zeros() -> None:
    erased = RandomErasing(1)(pixels(), rng=rng_of(range(4)))
    assert erased.dtype is torch.uint8
    assert (erased != pixels()).any(dim=(1, 2, 3)).all()
    with pytest.raises(TypeError, match=r"mode 'pixel' must come after Normalize, for float images, got torch.uint8"):
        RandomErasing(mode="pixel")(pixels())


def test_a_batch_without_images_stays_so() -> None:
    for mode in MODES:
        assert RandomErasing(mode=mode)(floats(0, 3, 8, 8)).shape == (0, 3, 8, 8)  # type: ignore[arg-type]


def test_other_numbers_of_keys_and_images_are_an_error() -> None:
    with pytest.raises(OptionError, match="rng must have one position for each of the 4 images, got 3"):
        RandomErasing()(pixels(), rng=rng_of(range(3)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probability": 1.5}, "probability must be at least 0 and at most 1, got 1.5"),
        ({"probability": float("nan")}, "probability must be at least 0 and at most 1, got nan"),
        ({"min_area": -0.1}, "min_area must be at least 0 and at most 1, got -0.1"),
        ({"min_area": 0.5}, "max_area must be at least 0.5 and at most 1, got 0.333"),
        ({"max_area": 33}, "max_area must be at least 0.02 and at most 1, got 33"),
        ({"min_aspect": 0}, "min_aspect must be above 0 and finite, got 0"),
        ({"min_aspect": 3}, "max_aspect must be at least 3 and finite, got 0.333"),
        ({"max_aspect": float("inf")}, "max_aspect must be at least 0.3 and finite, got inf"),
        ({"mode": "random"}, "mode must be one of const, rand, pixel, got 'random'"),
        ({"min_count": 0}, "min_count must be at least 1 and at most max_count, got 0 and 0"),
        ({"min_count": 3, "max_count": 2}, "min_count must be at least 1 and at most max_count, got 3 and 2"),
        ({"num_splits": -1}, "num_splits must be at least 0, got -1"),
    ],
)
def test_wrong_options_of_erasing_are_errors(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RandomErasing(**options)


@pytest.mark.parametrize("options", [{"probability": "0.5"}, {"min_area": None}, {"min_count": 1.5}])
def test_options_of_erasing_that_are_no_numbers_are_errors(options: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a number, got|cannot be interpreted as an integer"):
        RandomErasing(**options)


# Modules of other libraries


class LikeTorchvisions(torch.nn.Module):
    """A transform of torchvision's v2, as they all are: it takes any number of inputs, and gives as many."""

    def forward(self, *inputs: Any) -> Any:
        mixed = (inputs[0] * 2, *(torch.nn.functional.one_hot(labels, 10).float() for labels in inputs[1:]))
        return mixed if len(inputs) > 1 else mixed[0]


class LikeTimms:
    """As timm's Mixup: it takes both by these names, and changes the images in place."""

    def __call__(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mul_(2), torch.nn.functional.one_hot(target, 10).float()


@pytest.mark.parametrize("mixer", [LikeTorchvisions(), LikeTimms()])
def test_the_libraries_own_classes_are_given_the_targets_too(mixer: Any) -> None:
    given, labels = torch.ones(2, 3, 4, 4), torch.tensor([3, 9])
    for prepared in (Preparation(mixer), Preparation(Normalize((0, 0, 0), (1, 1, 1)), mixer)):
        images, targets = prepared((given, labels))
        assert targets.shape == (2, 10)
        assert torch.equal(targets.argmax(1), labels)
        assert not torch.equal(images, given)
        assert (given == 1).all()
        assert prepared({"image": given, "label": labels})["label"].shape == (2, 10)


def test_transforms_that_want_no_targets_do_without() -> None:
    images = torch.ones(2, 3, 4, 4)
    assert (Preparation(LikeTorchvisions())(images) == 2).all()
    assert (Preparation(LikeTorchvisions())((images,))[0] == 2).all()
    with pytest.raises(TypeError, match=r"LikeTimms.* wants the targets of a batch, got a batch without"):
        Preparation(LikeTimms())(images)


# Composing


class Pair(NamedTuple):
    image: Any
    label: Any


Untyped = namedtuple("Untyped", ["image", "label", "name"])


def doubled(images: torch.Tensor) -> torch.Tensor:
    return images * 2


def with_targets(images: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return images + 1, targets + 1


class Recorder(torch.nn.Module):
    """Keeps the keys that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, images: torch.Tensor, rng: SampleRNG | None = None) -> torch.Tensor:
        self.seen.append(rng)
        return images


@pytest.mark.parametrize(
    "make",
    [
        lambda images, targets: (images, targets),
        lambda images, targets: [images, targets],
        lambda images, targets: (images, targets, ["a.jpg"]),
        lambda images, targets: Pair(images, targets),
        lambda images, targets: Untyped(images, targets, "a.jpg"),
        lambda images, targets: {"image": images, "label": targets, "name": "a.jpg"},
        lambda images, targets: {"name": ["a.jpg"], "label": targets, "image": images},
        lambda images, targets: types.MappingProxyType({"image": images, "label": targets}),
    ],
)
def test_only_images_are_prepared_and_the_batch_keeps_its_type(make: Any) -> None:
    images, targets = torch.ones(2, 1, 1, 1), torch.tensor([3, 4])
    batch = make(images, targets)
    result = Preparation(doubled, torch.neg)(batch)
    assert type(result) is type(batch)
    assert repr(result) == repr(make(-2 * images, targets))
    assert repr(Preparation(doubled, with_targets)(batch)) == repr(make(2 * images + 1, targets + 1))
    assert repr(batch) == repr(make(torch.ones(2, 1, 1, 1), torch.tensor([3, 4])))


@pytest.mark.parametrize(
    "make", [lambda images: images, lambda images: (images,), lambda images: {"image": images, "name": "a.jpg"}]
)
def test_a_batch_may_have_no_targets_unless_a_module_wants_them(make: Any) -> None:
    images = torch.ones(2, 1, 1, 1)
    assert repr(Preparation(doubled)(make(images))) == repr(make(images * 2))
    with pytest.raises(TypeError, match=r"with_targets.* wants the targets of a batch, got a batch without"):
        Preparation(with_targets)(make(images))


def test_a_mapping_may_have_other_names() -> None:
    prepared = Preparation(with_targets, image="pixel_values", label="labels")
    result = prepared({"pixel_values": torch.zeros(1), "labels": torch.ones(1), "image": "a.jpg"})
    assert (result["pixel_values"].item(), result["labels"].item(), result["image"]) == (1, 2, "a.jpg")


def test_modules_that_draw_get_the_keys_each_a_stream_of_its_own() -> None:
    first, second = Recorder(), Recorder()
    prepared = Preparation(first, doubled, second)
    given = rng_of(range(2))
    prepared((torch.ones(2, 1, 1, 1), torch.zeros(2)), rng=given)
    prepared(torch.ones(2, 1, 1, 1))
    seen = [recorder.seen[0] for recorder in (first, second)]
    assert [each.stream for each in seen] == [0, 1]
    assert [(each.seed, each.epoch, each.positions.tolist()) for each in seen] == [(1, 2, [0, 1])] * 2
    assert [recorder.seen[1] for recorder in (first, second)] == [None] * 2
    prepared(torch.ones(2, 1, 1, 1), rng=rng_of(range(2), stream=5))
    assert [recorder.seen[2].stream for recorder in (first, second)] == [5, 6]


def test_the_modules_of_a_preparation_in_another_stand_in_its_place() -> None:
    recorders = [Recorder() for _ in range(4)]
    prepared = Preparation(recorders[0], Preparation(*recorders[1:3], with_targets), recorders[3])
    images, targets = prepared((torch.ones(2, 1, 1, 1), torch.zeros(2)), rng=rng_of(range(2)))
    assert [recorder.seen[0].stream for recorder in recorders] == [0, 1, 2, 3]
    assert (images == 2).all()
    assert (targets == 1).all()


def test_a_compiled_module_gets_the_keys_too() -> None:
    class Optimized(torch.nn.Module):  # as torch.compile's: takes anything, and keeps the original
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self._orig_mod = module

        def forward(self, *args: Any, **options: Any) -> Any:
            return self._orig_mod(*args, **options)

    recorder = Recorder()
    Preparation(Optimized(recorder))(torch.ones(2, 1, 1, 1), rng=rng_of(range(2)))
    assert recorder.seen[0].stream == 0


def test_two_erasings_in_one_preparation_erase_different_rectangles() -> None:
    once, twice = (Preparation(*[RandomErasing(1)] * count) for count in (1, 2))
    given = rng_of(range(20))
    first, second = (each(floats(20, 1, 32, 32), rng=given) for each in (once, twice))
    assert ((first == 0).sum(dim=(1, 2, 3)) < (second == 0).sum(dim=(1, 2, 3))).float().mean() > 0.9


def test_a_preparation_gives_the_same_for_any_split_into_batches() -> None:
    prepared = Preparation(Normalize(MEAN, STD, dtype=torch.bfloat16), RandomErasing(mode="pixel"))
    images, targets = pixels(24), torch.arange(24)
    whole, _ = prepared((images, targets), rng=rng_of(range(24)))
    parts = [
        prepared((images[part], targets[part]), rng=rng_of(range(part.start, part.stop)))[0]
        for part in (slice(0, 5), slice(5, 6), slice(6, 24))
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_the_default_device_of_torch_changes_nothing() -> None:
    prepared, images = Preparation(Normalize(MEAN, STD), RandomErasing(mode="pixel")), pixels()
    expected = prepared(images, rng=rng_of(range(4)))
    quantiles.cache_clear()
    with torch.device("meta"):
        result = prepared(images, rng=rng_of(range(4)))
        assert prepared(images).device == CPU
    assert torch.equal(result, expected)


def test_a_preparation_without_modules_gives_the_batch_as_it_is() -> None:
    images = pixels()
    assert Preparation(None)((images, 1))[0] is images


def test_modules_are_stateless_and_the_same_after_pickling() -> None:
    prepared = Preparation(Normalize(MEAN, STD), RandomErasing(1, mode="rand"), doubled)
    copied = pickle.loads(pickle.dumps(prepared))  # noqa: S301
    assert prepared.state_dict() == {}
    assert list(prepared.parameters()) == list(prepared.buffers()) == []
    assert repr(copied) == repr(prepared)
    assert torch.equal(copied(pixels(), rng=rng_of(range(4))), prepared(pixels(), rng=rng_of(range(4))))


def test_a_repr_says_all_options() -> None:
    assert repr(Normalize((0.5,), (0.25,))) == (
        "Normalize(mean=(0.5,), std=(0.25,), dtype=torch.float32, channels_last=False)"
    )
    assert repr(RandomErasing(min_area=0.1, max_area=0.2, min_aspect=0.5, max_count=3)) == (
        "RandomErasing(probability=0.5, min_area=0.1, max_area=0.2, min_aspect=0.5, max_aspect=2.0, mode='const', "
        "min_count=1, max_count=3, num_splits=0)"
    )


def test_modules_do_the_same_in_evaluation() -> None:
    prepared = Preparation(Normalize(MEAN, STD), RandomErasing(1))
    first = prepared(pixels(), rng=rng_of(range(4)))
    assert torch.equal(prepared.eval()(pixels(), rng=rng_of(range(4))), first)


def test_what_cannot_be_prepared_is_an_error() -> None:
    with pytest.raises(
        TypeError, match="a preparation must be a module or another callable that takes the images, got 5"
    ):
        Preparation(5)  # type: ignore[arg-type]
    for batch in ("a.jpg", (), None, np.zeros(2)):
        with pytest.raises(
            TypeError, match="a batch must be a tensor of images, or a tuple, list or dict with one in it, got"
        ):
            Preparation(doubled)(batch)
    with pytest.raises(KeyError, match="the batch has no 'image', got img, label: say image="):
        Preparation(doubled)({"img": torch.ones(1), "label": 1})

    def forgetful(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return images

    with pytest.raises(TypeError, match=r"wants targets and so must give \(images, targets\), got Tensor"):
        Preparation(forgetful)((torch.ones(2), torch.ones(2)))


# On a GPU


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())


@cuda
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_gpu_gives_the_bits_that_the_cpu_gives(
    gpu: torch.device, mode: Any, dtype: torch.dtype, channels_last: bool
) -> None:
    erasing = RandomErasing(0.7, mode=mode, max_count=3)
    prepared = Preparation(Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last), erasing)
    images, given = pixels(16, 3, 64, 48), rng_of(range(16))
    expected, result = prepared(images, rng=given), prepared(images.to(gpu), rng=given)
    assert (result.device, result.stride()) == (gpu, expected.stride())
    assert torch.equal(result.cpu(), expected)


@cuda
@pytest.mark.parametrize("mode", MODES)
def test_nothing_waits_for_the_gpu(gpu: torch.device, mode: Any) -> None:
    prepared = Preparation(Normalize(MEAN, STD), RandomErasing(1, mode=mode, max_count=2))
    images, given = pixels(8).to(gpu), rng_of(range(8))
    prepared(images, rng=given)  # CUDA may wait when a kernel is loaded and memory pinned for the first time
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        prepared(images, rng=given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_target_with_a_default_is_an_option_of_the_modules_own_and_one_without_gets_the_labels_by_name() -> None:
    def scale(images: torch.Tensor, target: float = 2.0) -> torch.Tensor:
        return images * target

    def mix(images: torch.Tensor, alpha: float = 3.0, *, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images * alpha, target + 1

    images, labels = torch.ones(2, 3, 4, 4), torch.tensor([3, 9])
    assert torch.equal(Preparation(scale)((images, labels))[0], images * 2)
    mixed, added = Preparation(mix)((images, labels))
    assert torch.equal(mixed, images * 3)
    assert added.tolist() == [4, 10]
