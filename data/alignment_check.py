"""Check on a few samples, before training, that spikes and frames show the same at the same place.

The spikes around the sharp instant are compared with the sharp frame. If there is no sharp frame,
the spikes of the whole exposure are compared with the blurry frame. The reason: strong motion blurs
the frame, and then the frame shows no edges of the sharp instant.

    warning_of   compares some samples, and returns a warning. The main programs call it.
    compare      compares one sample. scripts/show_sample.py shows the result.

A comparison has three steps:

1. The spikes become a picture. The picture and the frame are reduced to their gradients (edges), on
   the grid of the spike pixels.
2. If picture and frame show the same at the same place, their edges correlate.
3. A phase correlation (cv2.phaseCorrelate) finds the shift between the two, and says by a number,
   the response, how sure the shift is.

Words. A plane is one binary picture of the spike camera. "gt" is the sharp frame, and "lq" is the
blurry frame. A draw (class `Draw`) says what a sample is: the clip, the numbers of its frames, and
the crop. A spike pixel is `pixel` RGB pixels wide.

What must stay: a bad result only gives a warning and never stops a run, because a clip without
texture gives a bad result, too. What may change: the thresholds, if they are measured anew.

Tests: tests/parts/scripts/test_show_sample.py (which shift is found),
tests/parts/data/test_two_cameras.py, tests/parts/data/test_dataset_video_rgbspike.py
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch

from data.augment import Augment
from data.clip import Exposure
from data.clip_dataset import Draw, TrainClips
from data.spike.simulate import to_grey
from utils.image import tensor_to_uint8

# The next two limits were measured on 8 clips of the sample set, 5 frames each. The spikes became
# channels by the representations voxel and tfi (data/spike/represent.py). Each limit lies between
# the values of right and of wrong data:
#
#                                                  correlation       response
#     right place, sharp frames                    0.86 and more     0.80 and more
#     right place, blurry frames                   0.65 and more     0.44 and more
#     right picture, but shifted                                     0.53 and more
#     flipped, mirrored, transposed, other scene   0.28 and less     0.39 and less
#
# A lower limit would miss wrong data, and a higher limit would warn of right data.
# Correlation of the gradients of spikes and frame, at most 1.
LEAST_CORRELATION = 0.4
# Response of the phase correlation (height of its peak), at most about 1.
LEAST_RESPONSE = 0.42
# Largest shift in spike pixels that counts as agreement. A blurry frame may differ more, because
# the middle of its blur need not be the sharp instant.
MOST_SHIFT_OF_SHARP = 0.5
MOST_SHIFT_OF_BLURRY = 2.0
# Number of samples that are compared, and number of frames in each sample. With these numbers, a
# check takes about a second with frames of 720p. The time grows with their product.
SAMPLES = 4
FRAMES = 2
# Share of the samples that must be wrong for a warning, e.g. 3 of 4. It is below 1, so that one
# sample that fits by chance does not hide wrong data. It is large, because samples without texture
# look wrong although their data are right.
LEAST_WRONG_SHARE = 0.75
# Fewest samples for a warning. A single sample proves nothing, because it may lack texture.
LEAST_SAMPLES = 2
# Samples of this epoch are compared. All epochs show the same clips, so any epoch would do.
EPOCH = 0
# A picture has no texture if its gradients have a smaller standard deviation, for values 0 to 1.
# The limit only excludes uniform pictures, for which a correlation would be 0 / 0.
NO_TEXTURE = 1e-6
# Smallest shift along one axis that the warning names, in RGB pixels. Smaller shifts are noise.
SMALLEST_NAMED_SHIFT = 0.35
# Pixels to cut off at each border of a picture of gradients. The gradient is 0 at the border of
# every picture, so the borders of any two pictures would correlate.
BORDER = 2
# A picture of gradients is not cut below this side, because fewer pixels prove nothing.
LEAST_SIDE = 8
# The flips that are tried on the spikes, as an index into (H, W): np.s_[::-1] reverses the rows.
# The words are part of the warning.
FLIPS = {
    "upside down (spike.flip)": np.s_[::-1],
    "mirrored left to right (spike.calibration, key mirror)": np.s_[:, ::-1],
    "turned by 180 degrees (spike.calibration, key mirror, and spike.flip)": np.s_[::-1, ::-1],
}


class Pair(NamedTuple):
    """The two pictures that are compared: display values (H, W) float32."""

    spikes: np.ndarray
    frame: np.ndarray


class Measures(NamedTuple):
    """How well spikes and frames fit, in one frame or in several."""

    correlation: float  # of the gradients; the mean of several frames
    # (right, down) offset of the spikes from the frame in RGB pixels; the median of several frames.
    shift: tuple[float, float]
    # Height of the peak of the phase correlation; the mean of several frames. A high peak means
    # that spikes and frames show the same, maybe at another place.
    response: float


class MiddleFrame(NamedTuple):
    """The middle frame of a sample and its spikes, for the page of scripts/show_sample.py."""

    name: str  # kind and file name without ending, e.g. "gt 000012"
    frame: np.ndarray  # (sH, sW, 3) uint8; s is the scale, 1 without super-resolution
    spikes: np.ndarray  # (H, W) display values, picture of the spikes at the sharp instant


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How well the frames of a sample fit their spikes. Whole frames are compared, no crops.

    With two cameras, only the region is compared that both of them see. scripts/show_sample.py
    reads the fields.
    """

    # The first three are explained in `Measures`.
    correlation: float
    shift: tuple[float, float]
    response: float
    is_right: bool  # whether spikes and frames show the same at the same place
    sentence: str  # the result in words, e.g. "Spikes and frame agree to 0.3 px."
    kind: str  # kind of the compared frames, "gt" or "lq"
    frame_count: int  # number of compared frames
    middle: MiddleFrame


# ---- Several samples -------------------------------------------------------------------------


class _Sample(NamedTuple):
    """A sample to compare."""

    dataset: Any  # the dataset that reads the sample
    draw: Draw  # which frames and which crop are read
    index: int | None  # number of the sample in a training set; None for a frame of a user's clip


def warning_of(source: Any, option_file: str = "") -> str | None:
    """Return a warning if the spikes of nearly all compared samples lie at a wrong place.

    Returns None if they lie at the right place, or if nothing can be compared. E.g. "spikes and
    frames of 4 of 4 training samples do not show the same. Sample 0: They do not agree: the spikes
    are upside down (spike.flip); ..."

    source: a training set, or the list of the readers of a user's own clips.
    option_file: the option file of the training set, for the advice.
    """
    if isinstance(source, list):
        samples = _samples_of_user(source)
        plural = "frames"
    else:
        samples = _samples_of_training(source)
        plural = "training samples"
    wrong = []  # (sample, what is wrong with it)
    for sample in samples:
        comparison = compare(sample.dataset, sample.draw, count=FRAMES)
        if not comparison.is_right:
            wrong.append((sample, comparison.sentence))
    if len(samples) < LEAST_SAMPLES or len(wrong) < LEAST_WRONG_SHARE * len(samples):
        return None

    # The warning describes the first wrong sample.
    sample, sentence = wrong[0]
    name, advice = _name_and_advice(sample, option_file)
    return (
        f"spikes and frames of {len(wrong)} of {len(samples)} {plural} do not show the same. "
        f"{name}: {sentence} {advice}"
    )


def _name_and_advice(sample: _Sample, option_file: str) -> tuple[str, str]:
    """Return two texts for a warning: the name of a sample, and advice how to look at it."""
    draw = sample.draw
    if sample.index is None:
        frame = draw.frames[0]
        name = f"{draw.clip.name}/{draw.clip.stems[frame]}"
        command = f"python scripts/spike_tool.py info {draw.clip.spike[frame]}"
        return name, f"To see which formats fit: {command}"
    name = f"Sample {sample.index}"
    command = (
        f"python scripts/show_sample.py --opt {option_file} --index {sample.index} --out page.html"
    )
    return name, f"Look at it: {command}"


def _samples_of_training(dataset: Any) -> list[_Sample]:
    """Return some samples of the first epoch of a training set, none if it has no spikes."""
    # A user's dataset of another class has no method `draw`, so nothing can be compared.
    if not isinstance(dataset, TrainClips):
        return []
    # An RGB dataset has no spikes. All clips of a dataset have spikes, or none has.
    if not dataset.clips[0].spikes:
        return []
    samples = []
    for index in _evenly_spaced(len(dataset), SAMPLES):
        # A training set makes a `Draw` from the epoch and the number of the sample.
        draw = dataset.draw((EPOCH, index))
        samples.append(_Sample(dataset, draw, index))
    return samples


def _samples_of_user(readers: Sequence[Any]) -> list[_Sample]:
    """Return some frames of a user's clips, only of clips with spikes."""
    frames = []  # (reader, number of the frame in its clip)
    for reader in readers:
        if reader.clip.spikes:
            for frame in range(len(reader.stems)):
                frames.append((reader, frame))
    samples = []
    for number in _evenly_spaced(len(frames), SAMPLES):
        reader, frame = frames[number]
        # The dataset of a user's clips makes a `Draw` from the clip and its frames, here one frame.
        draw = reader.dataset.draw(reader.clip_index, first=frame, count=1)
        samples.append(_Sample(reader.dataset, draw, index=None))
    return samples


def _evenly_spaced(count: int, wanted: int) -> list[int]:
    """Return about `wanted` of the numbers 0 ... count - 1, the first and the last among them.

    Of 10 numbers, 4 wanted: 0, 3, 6, 9. Returns [] if count is 0.
    """
    if count == 0:
        return []
    evenly_spaced = np.linspace(0, count - 1, wanted)
    # A set, because neighbours are rounded to one number if count < wanted.
    return sorted({round(number) for number in evenly_spaced})


# ---- One sample ------------------------------------------------------------------------------


def compare(dataset: Any, draw: Draw, count: int) -> Comparison:
    """Compare the spikes of a sample with its frames.

    dataset: the dataset of the draw. It reads the frames and spikes.
    draw: the sample.
    count: number of frames of the sample to measure. The middle frame is measured in any case.
    """
    kind = "gt" if draw.clip.gt else "lq"
    if kind == "lq":
        draw = _with_mean_of_exposure(draw)
    pairs, middle = _pairs_of_sample(dataset, draw, count, kind)

    pixel = draw.clip.grid.pixel  # number of RGB pixels along a spike pixel
    measures = measure(pairs, pixel)
    distance = float(np.hypot(*measures.shift))  # RGB pixels
    most_spike_pixels = MOST_SHIFT_OF_SHARP if kind == "gt" else MOST_SHIFT_OF_BLURRY
    is_near = distance <= pixel * most_spike_pixels
    is_right = measures.correlation >= LEAST_CORRELATION and is_near
    if is_right:
        # A very small distance would be printed as 0.0 px. So the text says at least 0.1 px.
        sentence = f"Spikes and frame agree to {max(distance, 0.1):.1f} px."
    else:
        is_calibrated = draw.clip.spikes.calibration is not None
        wrong = _what_differs(pairs, measures, pixel, is_calibrated)
        sentence = f"They do not agree: {wrong}."
    return Comparison(
        correlation=measures.correlation,
        shift=measures.shift,
        response=measures.response,
        is_right=is_right,
        sentence=sentence,
        kind=kind,
        frame_count=len(pairs),
        middle=middle,
    )


def _pairs_of_sample(
    dataset: Any, draw: Draw, count: int, kind: str
) -> tuple[list[Pair], MiddleFrame]:
    """Read about `count` frames of a sample, evenly spaced, and the middle frame to show.

    kind: "gt" or "lq", the frames to read.
    """
    # E.g. for a sample of 6 frames and count 2, the positions 0, 3 (the middle) and 5.
    frame_count = len(draw.frames)
    middle_position = frame_count // 2
    positions = {middle_position, *_evenly_spaced(frame_count, wanted=count)}
    pairs = []
    for position in sorted(positions):
        image, pair = _read_pair(dataset, draw, position, kind)
        pairs.append(pair)
        if position == middle_position:
            stem = draw.clip.stems[draw.frames[position]]
            middle = MiddleFrame(f"{kind} {stem}", tensor_to_uint8(image), pair.spikes)
    return pairs, middle


def _read_pair(dataset: Any, draw: Draw, position: int, kind: str) -> tuple[torch.Tensor, Pair]:
    """Read one frame of a sample: the frame (3, sH, sW), and the pair of pictures to compare.

    position: number of the frame in the sample. kind: "gt" or "lq".
    """
    # Read the whole region that both cameras see, because a crop has less texture. An `Augment`
    # says which part of a frame is cut out, and how it is flipped; here it is not flipped.
    region = draw.clip.grid.region
    crop_of_region = Augment(region.top, region.left, region.height, region.width)
    frame = draw.frames[position]  # number of the frame in the clip
    is_backwards = draw.backwards[position]  # whether the spike planes come in reversed time
    one_frame = dataclasses.replace(
        draw, frames=[frame], backwards=[is_backwards], aug=crop_of_region
    )
    item = dataset.read(one_frame)  # (1, channels, height, width) for each kind

    # The picture of the spikes, from all spike channels (S of them). For "gt" it shows the sharp
    # instant. For "lq" the only channel is the mean of the exposure (`_with_mean_of_exposure`).
    channels = item["spike"][0].numpy()  # (S, H, W)
    exposure = draw.clip.exposures[frame]
    spike_picture = draw.clip.spikes.sharp_image(channels, exposure, is_backwards)  # (H, W)

    # The picture of the frame. s is the scale of the kind: 1 for "lq". A sharp frame of a data set
    # for super-resolution has s times as many pixels along each side as a blurry frame.
    image = item[kind][0, :3]  # (3, sH, sW), without the noise map that lq may have
    grey = to_grey(image.permute(1, 2, 0).numpy())  # (sH, sW)
    size = (region.width, region.height)  # OpenCV's order
    frame_picture = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)  # (H, W)
    return image, Pair(spike_picture, frame_picture)


def _with_mean_of_exposure(draw: Draw) -> Draw:
    """Return the draw with one spike channel: the mean of all planes of the exposure.

    This mean is as blurry as the blurry frame, so their edges can be compared.
    """
    # One bin of the representation "voxel" is the mean of its planes.
    spikes = draw.clip.spikes.changed(
        name="voxel",
        options={"num_bins": 1},
        channels=1,
        without_effect=frozenset(),  # options without effect on the representation: none
        rate=1.0,  # no division by a rate, because a constant factor changes no correlation
    )
    exposures = []
    for exposure in draw.clip.exposures:
        # Read the planes of the exposure without context. The sharp instant is set to their middle.
        planes = exposure.own
        exposures.append(
            Exposure(
                own=planes,
                pieces=(planes,),  # one range of planes: no plane between two files is missing
                before=0,  # no context before `own`
                center=(planes.count - 1) / 2,
                origin=exposure.origin,
            )
        )
    clip = dataclasses.replace(draw.clip, exposures=tuple(exposures), spikes=spikes)
    return dataclasses.replace(draw, clip=clip)


def _what_differs(
    pairs: Sequence[Pair], measures: Measures, pixel: int, is_calibrated: bool
) -> str:
    """Return in words why spikes and frames do not agree. The text names the options to check.

    Three causes are tried one after the other: the spikes are flipped, they are shifted, or nothing
    is known.

    pairs: the pictures of each measured frame.
    measures: what `measure` found for them.
    pixel: number of RGB pixels along a spike pixel.
    is_calibrated: whether a calibration says where the spikes lie.
    """
    # Flipped: some flip of the spikes gives a correlation, and the spikes as they are give none.
    if measures.correlation < LEAST_CORRELATION:
        # flip: in words. slices: rows and columns of a picture, backwards where it is flipped.
        for flip, slices in FLIPS.items():
            flipped_pairs = [Pair(pair.spikes[slices], pair.frame) for pair in pairs]
            if_flipped = measure(flipped_pairs, pixel).correlation
            if if_flipped >= LEAST_CORRELATION:
                return (
                    f"the spikes are {flip}; correlation {measures.correlation:.2f}, turned "
                    f"{if_flipped:.2f}"
                )

    # Shifted: the phase correlation has a clear peak.
    if measures.response >= LEAST_RESPONSE:
        shift = _shift_in_words(measures.shift)
        return (
            f"the spikes are shifted by {shift}: check spike.calibration of two cameras, "
            "spike.head_columns, and the planes (spike.first, spike.exposure, spike.center)"
        )

    # With a calibration, the sizes spike.h and spike.w come from its file.
    keys = "spike.flip, spike.h and spike.w, spike.calibration"
    if is_calibrated:
        keys = "spike.calibration, spike.flip"
    return (
        f"check {keys}, and that these are the spikes of this frame. Without texture, no geometry "
        "can be judged: look at other samples"
    )


def _shift_in_words(shift: tuple[float, float]) -> str:
    """Return a shift (right, down) in words: (3.0, -1.5) -> "3.0 px to the right and 1.5 px up"."""
    right, down = shift
    words = []
    if abs(right) >= SMALLEST_NAMED_SHIFT:
        words.append(f"{abs(right):.1f} px {'to the left' if right < 0 else 'to the right'}")
    if abs(down) >= SMALLEST_NAMED_SHIFT:
        words.append(f"{abs(down):.1f} px {'up' if down < 0 else 'down'}")
    return " and ".join(words)


# ---- Correlation and shift -------------------------------------------------------------------
#
# What must stay: how two pictures are compared, because the limits at the top of the module were
# measured with it. test_spikes_that_are_shifted_are_named notices another blur or a wrong sign of
# the shift, test_the_page_says_that_spikes_and_frame_agree another border.


def measure(pairs: Sequence[Pair], pixel: int) -> Measures:
    """Measure how well spikes and frames fit. The order of `pairs` does not matter.

    pairs: the pictures of each measured frame. pixel: number of RGB pixels along a spike pixel.
    """
    of_frames = [_measure_frame(pair, pixel) for pair in pairs]
    fits = np.array([(each.correlation, each.response) for each in of_frames])  # (frames, 2)
    correlation, response = np.mean(fits, axis=0).tolist()
    # A median for the shift, because one frame may give a wrong peak far away.
    shifts = np.array([each.shift for each in of_frames])  # (frames, 2)
    right, down = np.median(shifts, axis=0).tolist()
    return Measures(correlation, (right, down), response)


def _measure_frame(pair: Pair, pixel: int) -> Measures:
    """Measure how well the spikes fit one frame. pixel: RGB pixels along a spike pixel."""
    spikes = _gradients(pair.spikes, pixel)
    frame = _gradients(pair.frame, pixel)
    # A single row or column of spike pixels has no shift across it, and OpenCV refuses it.
    # Nothing correlates with a picture without texture.
    if min(spikes.shape) < 2 or spikes.std() < NO_TEXTURE or frame.std() < NO_TEXTURE:
        return Measures(correlation=0.0, shift=(0.0, 0.0), response=0.0)
    # corrcoef returns a matrix (2, 2) with 1 on its diagonal.
    correlation = np.corrcoef(spikes.ravel(), frame.ravel())[0, 1]
    # The window fades out the borders, because a phase correlation takes the picture as periodic.
    # In place: `phaseCorrelate` multiplies `spikes` and `frame` by the window. So the correlation
    # must be computed before.
    height, width = spikes.shape
    window = cv2.createHanningWindow((width, height), cv2.CV_32F)
    shift_of_frame, response = cv2.phaseCorrelate(spikes, frame, window)
    # OpenCV gives the offset of the frame from the spikes, in spike pixels. `Measures` has the
    # offset of the spikes from the frame, in RGB pixels. So the sign and the unit change.
    right, down = shift_of_frame
    return Measures(float(correlation), (-pixel * right, -pixel * down), response)


def _gradients(image: np.ndarray, pixel: int) -> np.ndarray:
    """Return the magnitude of the gradient of a picture, on the grid of the spike pixels.

    image: (H, W). pixel: number of RGB pixels along a spike pixel.
    Returns a new array of about (H / pixel, W / pixel) float32, without the border.
    `_measure_frame` overwrites it.
    """
    rgb_height, rgb_width = image.shape
    # At least one: a tiny region may be smaller than a spike pixel.
    height = max(1, rgb_height // pixel)
    width = max(1, rgb_width // pixel)
    small = image
    if pixel > 1:
        small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    small = np.ascontiguousarray(small, np.float32)
    # A Gaussian of one spike pixel reduces the noise of the spikes.
    smooth = cv2.GaussianBlur(small, (0, 0), sigmaX=1.0)
    across = cv2.Sobel(smooth, cv2.CV_32F, dx=1, dy=0)
    down = cv2.Sobel(smooth, cv2.CV_32F, dx=0, dy=1)
    magnitude = cv2.magnitude(across, down)
    return np.ascontiguousarray(magnitude[_without_border(height), _without_border(width)])


def _without_border(side: int) -> slice:
    """Return the middle part of a side, without the border, as a slice.

    E.g. of 105 pixels, the border leaves 101. The part has 100 of them: slice(2, 102).

    The length suits the Fourier transform in cv2.phaseCorrelate. The function pads lengths that do
    not suit, and the shift is half a pixel off if the padded length is odd. So the length must be
    even and must need no padding. A side that is too short is kept whole. With whole sides,
    test_a_small_shift_beside_a_large_one_is_named fails.
    """
    longest = side - 2 * BORDER
    shortest = min(side, LEAST_SIDE)
    length = side
    # Try the longest length first.
    for candidate in range(longest, shortest - 1, -1):
        needs_no_padding = cv2.getOptimalDFTSize(candidate) == candidate
        if candidate % 2 == 0 and needs_no_padding:
            length = candidate
            break
    begin = (side - length) // 2
    return slice(begin, begin + length)
