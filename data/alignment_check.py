"""Check on a few samples, before training, that spikes and frames show the same at the same place.

main_train_vrt.py and data/own_clips.py (for a user's own clips) call `warning_of`. This function
compares a few samples (data/alignment.py), and returns a warning if nearly all of them are wrong.

What must stay: a bad result only gives a warning and never stops a run, because a clip without
texture gives a bad result, too. The numbers at the top may change.

Tests: tests/parts/utils/test_health.py, tests/parts/data/test_dataset_video_rgbspike.py
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from data.alignment import compare
from data.alignment_pictures import evenly_spaced
from data.clip_dataset import TrainClips
from data.clip_reading import Draw

# What is compared. With these numbers, a check takes about a second with frames of 720p. The time
# grows with the product of both numbers.
SAMPLES = 4  # number of samples
FRAMES = 2  # number of frames in each sample
# Share of the samples that must be wrong for a warning, e.g. 3 of 4. The share is below 1, so that
# one sample that fits by chance does not hide wrong data. The share is large, because samples
# without texture look wrong although their data are right.
LEAST_WRONG_SHARE = 0.75
# Smallest number of compared samples for a warning. A single sample proves nothing, because it may
# lack texture.
LEAST_SAMPLES = 2
# Samples of this epoch are compared. All epochs show the same clips, so any epoch would do.
EPOCH = 0


class _Sample(NamedTuple):
    """A sample to compare."""

    dataset: Any  # the dataset that reads the sample
    draw: Draw  # which frames and which crop are read
    index: int | None  # number of the sample in a training set. None for a frame of a user's clip


def warning_of(source: Any, option_file: str = "") -> str | None:
    """Return a warning if the spikes of nearly all compared samples lie at a wrong place.

    Returns None if the spikes lie at the right place, or if nothing can be compared. E.g.
    "spikes and frames of 4 of 4 training samples do not show the same. Sample 0: They do not agree:
    the spikes are upside down (spike.flip); ..."

    source: a training set, or the list of the readers of a user's own clips.
    option_file: the option file of the training set, for the advice.
    """
    if isinstance(source, list):  # the readers of a user's clips
        samples = _samples_of_user(source)
        plural = "frames"
    else:
        samples = _samples_of_training(source)
        plural = "training samples"
    wrong_samples = []  # (sample, what is wrong with it)
    for sample in samples:
        comparison = compare(sample.dataset, sample.draw, count=FRAMES)
        if not comparison.is_right:
            wrong_samples.append((sample, comparison.sentence))
    has_few_samples = len(samples) < LEAST_SAMPLES
    # E.g. of 4 samples, at least 0.75 * 4 = 3 must be wrong for a warning.
    has_few_wrong = len(wrong_samples) < LEAST_WRONG_SHARE * len(samples)
    if has_few_samples or has_few_wrong:
        return None

    # The warning describes the first wrong sample.
    sample, sentence = wrong_samples[0]
    name, advice = _name_and_advice(sample, option_file)
    numbers = f"{len(wrong_samples)} of {len(samples)}"  # e.g. "3 of 4"
    return (
        f"spikes and frames of {numbers} {plural} do not show the same. {name}: {sentence} {advice}"
    )


def _name_and_advice(sample: _Sample, option_file: str) -> tuple[str, str]:
    """Return two texts for a warning: the name of a sample, and how the user can look at it.

    E.g. "Sample 0" and "Look at it: python scripts/show_sample.py --opt ...".
    """
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
    """Return some samples of the first epoch of a training set, or [] if it has no spikes."""
    # A user's dataset of another class has no method `draw`, so nothing can be compared.
    if not isinstance(dataset, TrainClips):
        return []
    # An RGB dataset has no spikes. The first clip is enough, because all clips of a dataset have
    # spikes, or no clip has spikes.
    if not dataset.clips[0].spikes:
        return []
    samples = []
    for index in evenly_spaced(len(dataset), SAMPLES):
        # A training set makes a `Draw` from the epoch and the number of the sample.
        draw = dataset.draw((EPOCH, index))
        samples.append(_Sample(dataset, draw, index))
    return samples


def _samples_of_user(readers: Sequence[Any]) -> list[_Sample]:
    """Return some frames of the clips that have spikes. readers: the readers of a user's clips."""
    frames = []  # (reader, number of the frame in its clip)
    for reader in readers:
        if reader.clip.spikes:
            for frame in range(len(reader.stems)):
                frames.append((reader, frame))
    samples = []
    for number in evenly_spaced(len(frames), SAMPLES):
        reader, frame = frames[number]
        # The dataset of a user's clips makes a `Draw` from the clip and its frames, here one frame.
        draw = reader.dataset.draw(reader.clip_index, first=frame, count=1)
        samples.append(_Sample(reader.dataset, draw, index=None))
    return samples
