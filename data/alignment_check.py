"""Check on a few samples, before training, that spikes and frames show the same at the same place.

The spikes around the sharp instant are compared with the sharp frame. If there is no sharp frame,
the spikes of the whole exposure are compared with the blurry frame, because a frame blurred by
strong motion shows nothing of a sharp instant.

    warning_of   compares some samples, and returns a warning. The main programs call it.
    compare      compares one sample. scripts/show_sample.py shows the result.

A comparison turns the picture of the spikes and the frame into gradients (edges) on the grid of the
spike pixels. If the two show the same, their edges correlate. If they show the same at another
place, a phase correlation finds the shift between them.

What must stay: the result is only said and never stops a run, because a clip without texture looks
wrong, too. What may change: the thresholds, if they are measured anew.

Tests: tests/parts/data/test_two_cameras.py, tests/parts/data/test_dataset_video_rgbspike.py
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np

from data.augment import Augment
from data.clip import Exposure
from data.clip_dataset import Draw, TrainClips
from data.spike.simulate import to_grey
from utils.image import tensor_to_uint8

# Measured on 8 clips of the sample set, 5 frames each, with voxel and tfi. If spikes lie in place,
# gradients correlate with 0.86 and more (blurry frames: 0.65). If they are flipped, mirrored,
# transposed or foreign, the correlation is 0.28 and less.
LEAST_CORRELATION = 0.4
# The phase correlation responds with 0.80 and more in place (blurry: 0.44), with 0.53 and more if
# the spikes are shifted, and else with 0.39 and less.
LEAST_RESPONSE = 0.42
# Largest shift in spike pixels that counts as agreement, for a sharp and for a blurry frame. A
# frame blurred by motion may lie a little beside the sharp instant.
MOST_SHIFT_OF_SHARP = 0.5
MOST_SHIFT_OF_BLURRY = 2.0
# Number of samples that are compared, and of frames in each. With these numbers, a check takes
# about a second with frames of 720p.
SAMPLES = 4
FRAMES = 2
# Share of the samples that must be wrong for a warning. A clip without texture cannot be judged and
# looks wrong.
LEAST_WRONG = 0.75
# Fewest samples for a warning. A single sample proves nothing, because it may lack texture.
LEAST_SAMPLES = 2
# Samples of this epoch are compared. Any epoch would do; the first one needs no other state.
EPOCH = 0
# Standard deviation of gradients below which a picture has no texture, of values 0 to 1.
NO_TEXTURE = 1e-6
# Smallest shift along one axis that the sentence names, in RGB pixels. Smaller shifts are noise.
SMALLEST_NAMED_SHIFT = 0.35
# Pixels to cut off at each border of a gradient. There the gradient is 0 in every image, and equal
# borders would correlate.
BORDER = 2
# A picture of gradients is not cut below this side, because fewer pixels tell nothing.
LEAST_SIDE = 8

# Display values (H, W) float32 of the spikes and of the frame.
Pair = tuple[np.ndarray, np.ndarray]


class Measures(NamedTuple):
    """How well spikes and frames of a sample fit.

    correlation: correlation of the gradients, mean over the frames.
    shift: (right, down) offset of the spikes from the frame in RGB pixels, median over the frames.
    response: height of the peak of the phase correlation, at most about 1, mean over the frames.
    """

    correlation: float
    shift: tuple[float, float]
    response: float


class Shown(NamedTuple):
    """The middle frame of a sample, to show.

    name: kind and stem of the frame, such as "gt 000012".
    frame: the frame, (sH, sW, 3) uint8; s is the scale.
    spikes: picture of the spikes at the sharp instant, (H, W) display values.
    """

    name: str
    frame: np.ndarray
    spikes: np.ndarray


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How well the frames of a sample fit their spikes. Whole frames are compared, no crops.

    With a calibration, only the region is compared that both cameras see.
    correlation, shift, response: see `Measures`.
    is_right: whether spikes and frames show the same at the same place.
    sentence: the result in words.
    kind: kind of the compared frames, "gt" or "lq". measured: number of compared frames.
    shown: the middle frame.
    """

    correlation: float
    shift: tuple[float, float]
    response: float
    is_right: bool
    sentence: str
    kind: str
    measured: int
    shown: Shown


# ---- Several samples -------------------------------------------------------------------------


class _Sample(NamedTuple):
    """A sample to compare.

    dataset: the dataset that reads the sample.
    draw: which frames and which crop are read.
    index: number of the sample in a training set; None for a frame of a user's clip.
    """

    dataset: Any
    draw: Draw
    index: int | None


def warning_of(source: Any, option_file: str = "") -> str | None:
    """Return a warning if the spikes of nearly all compared samples lie at a wrong place.

    Returns None if they lie at the right place, or if nothing can be compared.
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
    if len(samples) < LEAST_SAMPLES or len(wrong) < LEAST_WRONG * len(samples):
        return None

    # The warning describes the first wrong sample.
    sample, sentence = wrong[0]
    draw = sample.draw
    frame = draw.frames[0]
    if sample.index is None:
        name = f"{draw.clip.name}/{draw.clip.stems[frame]}"
        advice = (
            f"To see which formats fit: python scripts/spike_tool.py info {draw.clip.spike[frame]}"
        )
    else:
        name = f"Sample {sample.index}"
        advice = (
            f"Look at it: python scripts/show_sample.py --opt {option_file} --index {sample.index} "
            "--out page.html"
        )
    return (
        f"spikes and frames of {len(wrong)} of {len(samples)} {plural} do not show the same. "
        f"{name}: {sentence} {advice}"
    )


def _samples_of_training(dataset: Any) -> list[_Sample]:
    """Return some samples of the first epoch of a training set, none if it has no spikes."""
    # A user's dataset of another kind has no draws that could be compared.
    if not isinstance(dataset, TrainClips) or not dataset.clips[0].spikes:
        return []
    samples = []
    for index in _spread(len(dataset), SAMPLES):
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
    for number in _spread(len(frames), SAMPLES):
        reader, frame = frames[number]
        draw = reader.dataset.draw(reader.clip_index, first=frame, count=1)
        samples.append(_Sample(reader.dataset, draw, None))
    return samples


def _spread(count: int, wanted: int) -> list[int]:
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

    dataset: the dataset of the draw. count: number of frames of the sample to measure. The middle
    frame is measured in any case.
    """
    grid = draw.clip.grid
    # Compare the whole region that both cameras see, because a crop has less texture.
    top, left, height, width = grid.region
    region = Augment(top, left, height, width)
    kind = "gt" if draw.clip.gt else "lq"
    if kind == "lq":
        draw = _with_mean_of_exposure(draw)
    spikes = draw.clip.spikes

    # The pictures of the spikes and of the frames.
    frame_count = len(draw.frames)
    middle = frame_count // 2
    positions = {middle, *_spread(frame_count, wanted=count)}  # in the sample
    pairs = []
    for position in sorted(positions):
        frame = draw.frames[position]
        is_backwards = draw.backwards[position]
        one_frame = dataclasses.replace(draw, frames=[frame], backwards=[is_backwards], aug=region)
        item = dataset.read(one_frame)
        exposure = draw.clip.exposures[frame]
        channels = item["spike"][0].numpy()  # (S, H, W)
        spike_picture = spikes.sharp_image(channels, exposure, is_backwards)  # (H, W)
        image = item[kind][0, :3]  # (3, sH, sW), without the noise map that lq may have
        grey = to_grey(image.permute(1, 2, 0).numpy())  # (sH, sW)
        size = (width, height)  # OpenCV's order
        frame_picture = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)  # (H, W)
        pairs.append((spike_picture, frame_picture))
        if position == middle:
            name = f"{kind} {draw.clip.stems[frame]}"
            shown = Shown(name, tensor_to_uint8(image), spike_picture)

    measures = measure(pairs, grid.pixel)
    distance = float(np.hypot(*measures.shift))  # RGB pixels
    most_spike_pixels = MOST_SHIFT_OF_SHARP if kind == "gt" else MOST_SHIFT_OF_BLURRY
    # `grid.pixel` is the number of RGB pixels along a spike pixel.
    is_near = distance <= grid.pixel * most_spike_pixels
    is_right = measures.correlation >= LEAST_CORRELATION and is_near
    if is_right:
        # Without the limit, the text would say 0.0 px for a very small distance.
        sentence = f"Spikes and frame agree to {max(distance, 0.1):.1f} px."
    else:
        is_calibrated = spikes.calibration is not None
        wrong = _what_differs(pairs, measures, grid.pixel, is_calibrated)
        sentence = f"They do not agree: {wrong}."
    return Comparison(
        correlation=measures.correlation,
        shift=measures.shift,
        response=measures.response,
        is_right=is_right,
        sentence=sentence,
        kind=kind,
        measured=len(pairs),
        shown=shown,
    )


def _with_mean_of_exposure(draw: Draw) -> Draw:
    """Return the draw with one spike channel: the mean of all planes of the exposure.

    This mean is as blurry as the blurry frame, so their edges can be compared.
    """
    # One bin of the representation "voxel" is the mean of its planes.
    spikes = draw.clip.spikes.changed(
        name="voxel", options={"num_bins": 1}, channels=1, ignored=frozenset(), rate=1.0
    )
    exposures = []
    for exposure in draw.clip.exposures:
        # Only the planes of the exposure, without context, and the sharp instant in their middle.
        planes = exposure.own
        exposures.append(
            Exposure(
                own=planes,
                pieces=(planes,),
                before=0,
                center=(planes.count - 1) / 2,
                origin=exposure.origin,
            )
        )
    clip = dataclasses.replace(draw.clip, exposures=tuple(exposures), spikes=spikes)
    return dataclasses.replace(draw, clip=clip)


def _what_differs(
    pairs: Sequence[Pair], measures: Measures, pixel: int, is_calibrated: bool
) -> str:
    """Return in words what may be wrong with the geometry.

    pixel: see `measure`. is_calibrated: whether a calibration says where the spikes lie.
    """
    # Do the spikes fit if they are turned? A turn is an index: np.s_[::-1] reverses the rows.
    turns = {
        "upside down (spike.flip)": np.s_[::-1],
        "mirrored left to right (spike.calibration, key mirror)": np.s_[:, ::-1],
        "turned by 180 degrees (spike.calibration, key mirror, and spike.flip)": np.s_[::-1, ::-1],
    }
    correlation = measures.correlation
    for name, turn in turns.items():
        turned_pairs = [(spikes[turn], frame) for spikes, frame in pairs]
        if_turned = measure(turned_pairs, pixel).correlation
        if correlation < LEAST_CORRELATION <= if_turned:
            return f"the spikes are {name}; correlation {correlation:.2f}, turned {if_turned:.2f}"

    # If the phase correlation has a clear peak, the spikes fit after a shift.
    if measures.response >= LEAST_RESPONSE:
        keys = (
            "two cameras, spike.head_columns, and the planes (spike.first, spike.exposure, "
            "spike.center)"
        )
        shift = _shift_in_words(measures.shift)
        return f"the spikes are shifted by {shift}: check spike.calibration of {keys}"

    keys = "spike.flip, spike.h and spike.w, spike.calibration"
    if is_calibrated:
        keys = "spike.calibration, spike.flip"
    text = "and that these are the spikes of this frame. Without texture, no geometry can be judged"
    return f"check {keys}, {text}: look at other samples"


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


def measure(pairs: Sequence[Pair], pixel: int) -> Measures:
    """Measure how well spikes and frames fit.

    pairs: for each frame, what the spikes show and the frame, both (H, W).
    pixel: number of RGB pixels along a spike pixel.
    """
    values = []  # (correlation, right, down, response) of each frame
    for spike_picture, frame_picture in pairs:
        spikes = _gradients(spike_picture, pixel)
        frame = _gradients(frame_picture, pixel)
        # Nothing correlates with a picture without texture.
        if spikes.std() < NO_TEXTURE or frame.std() < NO_TEXTURE:
            values.append((0.0, 0.0, 0.0, 0.0))
            continue
        # corrcoef returns a matrix (2, 2) with 1 on its diagonal.
        correlation = np.corrcoef(spikes.ravel(), frame.ravel())[0, 1]
        # The window fades out the borders, because a phase correlation takes the picture as
        # periodic. `phaseCorrelate` multiplies its arguments by the window, in place.
        height, width = spikes.shape
        window = cv2.createHanningWindow((width, height), cv2.CV_32F)
        shift_of_frame, response = cv2.phaseCorrelate(spikes, frame, window)
        # `shift_of_frame` is the offset of the frame from the spikes, in spike pixels. `Measures`
        # has the offset of the spikes from the frame, in RGB pixels.
        right, down = shift_of_frame
        values.append((correlation, -pixel * right, -pixel * down, response))
    correlation, _, _, response = np.mean(values, axis=0).tolist()
    # A median, because one frame may give a wrong peak.
    _, right, down, _ = np.median(values, axis=0).tolist()
    return Measures(correlation, (right, down), response)


def _gradients(image: np.ndarray, pixel: int) -> np.ndarray:
    """Return the magnitude of the gradient of a picture, on the grid of the spike pixels.

    image: (H, W). pixel: see `measure`.
    Returns about (H / pixel, W / pixel) float32, without the border.
    """
    rgb_height, rgb_width = image.shape
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
    return np.ascontiguousarray(magnitude[_inner(height), _inner(width)])


def _inner(side: int) -> slice:
    """Return the middle part of a side, without the border, as a slice.

    The length of the part suits the Fourier transform: cv2.phaseCorrelate pads other lengths, and
    its result is half a pixel off if the padded length is odd. So the length must be even and need
    no padding. A side that is too short is kept whole.
    """
    length = side
    longest = side - 2 * BORDER
    shortest = min(side, LEAST_SIDE)
    # Take the longest such length.
    for candidate in range(longest, shortest - 1, -1):
        needs_no_padding = cv2.getOptimalDFTSize(candidate) == candidate
        if candidate % 2 == 0 and needs_no_padding:
            length = candidate
            break
    begin = (side - length) // 2
    return slice(begin, begin + length)
