"""data/cameras/timing.py: which planes a frame gets, of its own and of neighbouring spike files.

The steps are in exposures.py, timing.py, sharp_plane.py and context_planes.py in data/cameras. The
section `spike` has these options:

    first, count         a window of each file: only these planes are used
    exposure             if a clip has one file for all frames: where their exposures lie in the
                         file
    context              number of planes before and after an exposure that are read, too
    center               plane of the sharp frame. A number, "gt": as dataset.json says, or "file":
                         the middle of the file
    calibration          has a time offset, which moves windows, exposures and contexts

The clips have four frames with random spikes, 24 planes per frame. Most tests compare two data
sets: one with such an option, and one whose files have exactly the expected planes.
"""

import json
import shutil

import numpy as np
import pytest
import torch

from data.cameras.dataset_info import DatasetInfo
from data.cameras.exposures import Exposures, read_exposures
from data.cameras.spike_source import DatSpikes
from data.cameras.timing import Timing
from data.clips.clip_reader import user_clips
from data.select_dataset import build_dataset
from data.spike.formats import read_spikes, write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.represent import represent
from tests.helpers.clip_files import (
    PLANES,
    add_cache,
    check_clips,
    data_section,
    doctor_of_data,
    write_clip,
    write_dat,
    write_info,
)
from utils.errors import DataError, OptionError

# Rows and columns of a spike plane. A spike pixel covers 2 x 2 RGB pixels.
PLANE = SpikeGeometry(8, 12)
# Number of frames of a clip.
FRAMES = 4
CLIPS = ("a/0", "a/1")

# Representations, which say how spikes become channels:
#
#     VOXEL_OF_3    the means of 3 parts of the planes
#     TFP_OF_5      the mean of 5 planes around the sharp frame
#     RAW_OF_5      these 5 planes themselves
#     RAW_OF_3      3 planes around the sharp frame
VOXEL_OF_3 = {"type": "voxel", "num_bins": 3}
TFP_OF_5 = {"type": "tfp", "half_window": 2}
RAW_OF_5 = {"type": "raw", "window": 5}
RAW_OF_3 = {"type": "raw", "window": 3}


def noise_planes(frame, planes=PLANES):
    """Return random planes (T, 8, 12). frame: number of the frame, which is the seed.

    All clips have the same planes in a frame of the same number.
    """
    return (np.random.default_rng(frame).random((planes, 8, 12)) < 0.3).astype(np.uint8)


def all_noise():
    """Return the planes of all frames of a clip, one after another."""
    return np.concatenate([noise_planes(frame) for frame in range(FRAMES)])


def spike_folder(root, clip):
    """Return the folder of the spike files of a test clip."""
    return root / "GOPRO_Large_spike_seq" / "test" / clip / "spike"


def write_noise(root, part=slice(None), **info):
    """Write two clips whose frame i has the planes `part` of noise_planes(i). Return `root`.

    part: a slice, e.g. slice(5, 20) for planes 5 to 19. info: keys of dataset.json.
    """
    for clip in CLIPS:
        write_clip(root, clip, split="test", frames=FRAMES)
        for frame in range(FRAMES):
            write_spikes(
                spike_folder(root, clip) / f"{frame:06d}.dat", noise_planes(frame)[part], PLANE
            )
    write_info(root, **info)
    return root


def open_test_set(root, **spike):
    """Return the test set of a root. spike: keys of the section `spike`."""
    values = {"type": "dat", "resize": "nearest", "center": "file", "representation": "voxel"}
    return build_test_set(data_section(root, "test", spike=values | spike))


def build_test_set(values):
    """Return the test set of a section. values: its keys."""
    return build_dataset(values, "test", seed=0)


def spike_channels(dataset, clip=0, reverse=False):
    """Return the spike channels (FRAMES, C, H, W) of a clip. reverse: in reversed time."""
    return dataset.read_frames(clip, first=0, count=FRAMES, reverse=reverse)["spike"]


def one_per_spike_pixel(rgb_pixels):
    """Return one value for each spike pixel, which covers 2 x 2 RGB pixels of equal value."""
    return rgb_pixels[..., ::2, ::2]


def have_equal_channels(a, b, reverse=False):
    """Return whether two test sets have the same spike channels in both clips."""
    for clip in range(len(CLIPS)):
        if not torch.equal(spike_channels(a, clip, reverse), spike_channels(b, clip, reverse)):
            return False
    return True


# ---- A window of each file: first, count ----


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "representation", [VOXEL_OF_3, TFP_OF_5, RAW_OF_5], ids=lambda r: r["type"]
)
@pytest.mark.parametrize(
    ("center", "center_in_cut"),
    [
        pytest.param("file", "file", id="middle of the file"),
        pytest.param("gt", "gt", id="sharp frame"),
        # A number counts the planes of the file, not of the window.
        pytest.param(12, 7, id="number"),
    ],
)
def test_a_window_gives_the_same_channels_as_files_of_these_planes(
    tmp_path, representation, center, center_in_cut, reverse
):
    # The window has the planes 5 to 19. Plane 12 of a whole file is plane 12 - 5 = 7 of the window.
    whole = write_noise(tmp_path / "whole", gt_plane=12)
    cut = write_noise(tmp_path / "cut", slice(5, 20), planes=15, gt_plane=7)

    window = open_test_set(whole, first=5, count=15, center=center, representation=representation)

    expected = open_test_set(cut, center=center_in_cut, representation=representation)
    assert have_equal_channels(window, expected, reverse)


def test_bins_around_the_middle_come_in_the_opposite_order_in_reverse(tmp_path):
    root = write_noise(tmp_path)
    window = open_test_set(root, first=5, count=15, representation=VOXEL_OF_3)

    forward = spike_channels(window)[1]  # (bins, H, W) of frame 1
    backward = spike_channels(window, reverse=True)[1]

    assert torch.equal(backward, forward.flip(0))


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, 24, id="all planes"),
        pytest.param(23, 1, id="last plane"),
        pytest.param(0, 1, id="first plane"),
    ],
)
def test_a_window_reaches_to_the_last_plane(tmp_path, first, count):
    root = write_noise(tmp_path)

    dataset = open_test_set(
        root, first=first, count=count, representation={"type": "voxel", "num_bins": 1}
    )

    # One bin is the mean of all planes of the window. Frame 2 stands for all frames.
    frame = 2
    found = one_per_spike_pixel(spike_channels(dataset)[frame, 0])
    assert np.allclose(found, noise_planes(frame)[first : first + count].mean(axis=0))


def test_a_window_without_a_count_reaches_to_the_end(tmp_path):
    dataset = open_test_set(write_noise(tmp_path), first=20)

    assert dataset.clips[0].exposures[0].own.count == 4  # planes 20 to 23


@pytest.mark.parametrize(
    ("first", "count", "message"),
    [
        pytest.param(1, 24, "needs planes 1 to 24", id="one too many"),
        pytest.param(24, None, "gets no plane ", id="after the end"),
    ],
)
def test_a_window_beyond_the_file_is_refused_with_all_clips(tmp_path, first, count, message):
    root = write_noise(tmp_path)

    with pytest.raises(DataError) as error:
        open_test_set(root, first=first, count=count)

    text = str(error.value)
    assert f"frame 0 of clip a/0 {message}" in text
    assert "the file has 24 planes" in text
    assert "a/1" in text
    assert "000000.dat" in text


def test_a_sharp_frame_outside_of_the_window_is_refused(tmp_path):
    root = write_noise(tmp_path)

    with pytest.raises(DataError, match="12 is outside of 13 to 22"):
        open_test_set(root, first=13, count=10, center="gt")


@pytest.fixture
def shorter_last_file(tmp_path):
    """Give clips in which only the last file, of clip a/1, has 20 planes instead of 24."""
    root = write_noise(tmp_path)
    last_file = spike_folder(root, "a/1") / f"{FRAMES - 1:06d}.dat"
    write_spikes(last_file, noise_planes(FRAMES - 1)[:20], PLANE)
    return root


def test_the_last_file_of_a_clip_may_be_shorter_if_it_has_the_window(shorter_last_file):
    assert len(open_test_set(shorter_last_file, first=2, count=18).clips) == 2


def test_the_last_file_of_a_clip_must_have_the_window(shorter_last_file):
    with pytest.raises(DataError, match=r"needs planes 3 to 20.*has 20 planes"):
        open_test_set(shorter_last_file, first=3, count=18)


# ---- One file per clip: exposure ----

# The exposures within a file: the exposure of frame i begins at plane 7 + 31.4 i, rounded, and has
# 24 planes. For the frames 0 to 3, 7 + 31.4 i is 7, 38.4, 69.8 and 101.2, and FIRSTS has the
# rounded numbers. The last exposure has the planes 101 to 124, which are the last planes of the
# file.
START = 7
PERIOD = 31.4
FIRSTS = [7, 38, 70, 101]
EXPOSURE = {"start": START, "length": PLANES, "period": PERIOD}
# Each exposure begins one plane later, at plane 8 + 31.4 i. So the last exposure would have planes
# 102 to 125, but the file ends with plane 124.
EXPOSURE_PAST_THE_END = EXPOSURE | {"start": START + 1}
# Exposures without a gap: frame i begins at plane 24 i.
EXPOSURE_WITHOUT_GAPS = {"start": 0, "length": PLANES, "period": PLANES}


def join_spike_files(root, joined_name, firsts=FIRSTS, planes=None):
    """Join the spike files of each clip to one file, and remove them.

    Between the exposures, all values are 1. So a frame that gets a wrong plane has other channels.

    joined_name: path of the new file, e.g. "{clip}/spike/long.dat".
    firsts: the first plane of each exposure.
    planes: number of planes of the file. None: the file ends with the last exposure.
    """
    if planes is None:
        planes = firsts[-1] + PLANES
    for clip in CLIPS:
        stream = np.ones((planes, 8, 12), np.uint8)
        files = sorted(spike_folder(root, clip).iterdir())
        for first, path in zip(firsts, files, strict=True):
            stream[first : first + PLANES] = read_spikes(path, PLANE)
            path.unlink()
        name = joined_name.format(clip=clip)
        write_spikes(root / "GOPRO_Large_spike_seq/test" / name, stream, PLANE)
        is_empty = not list(spike_folder(root, clip).iterdir())
        if is_empty:
            spike_folder(root, clip).rmdir()


NAMES_OF_JOINED_FILES = ["{clip}/spike/long.dat", "{clip}/capture.npz"]


@pytest.fixture(params=NAMES_OF_JOINED_FILES, ids=["in the folder of spikes", "beside the frames"])
def joined_files(request, tmp_path):
    """Give two roots of the same clips: one spike file per frame, and one spike file per clip."""
    parts = write_noise(tmp_path / "parts")
    joined = write_noise(tmp_path / "joined")
    join_spike_files(joined, request.param)
    return parts, joined


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("center", ["gt", "file", 3])
def test_one_file_per_clip_gives_the_same_channels_as_one_file_per_frame(
    joined_files, center, reverse
):
    parts, joined = joined_files

    found = open_test_set(joined, center=center, exposure=EXPOSURE)

    assert have_equal_channels(found, open_test_set(parts, center=center), reverse)


# Exposures for each clip: rows [first plane, number of planes], or start, length and period.
TABLE_OF_CLIPS = {"a/1": [[first, PLANES] for first in FIRSTS], "a/0": EXPOSURE}


@pytest.mark.parametrize("is_file", [False, True], ids=["in the options", "in a file"])
def test_exposures_may_be_a_table_of_clips(joined_files, tmp_path, is_file):
    parts, joined = joined_files
    exposure = TABLE_OF_CLIPS
    if is_file:
        path = tmp_path / "table.json"
        path.write_text(json.dumps(TABLE_OF_CLIPS))
        exposure = str(path)

    found = open_test_set(joined, center=3, exposure=exposure)

    assert have_equal_channels(found, open_test_set(parts, center=3))


@pytest.mark.parametrize(
    ("joined_name", "warnings"), [(NAMES_OF_JOINED_FILES[0], 0), (NAMES_OF_JOINED_FILES[1], 1)]
)
def test_a_format_that_can_only_be_read_from_the_start_is_warned_of(
    tmp_path, joined_name, warnings
):
    root = write_noise(tmp_path)
    join_spike_files(root, joined_name)

    report = check_clips(data_section(root, "test", spike={"type": "dat", "exposure": EXPOSURE}))

    # The second path is a compressed .npz, which can only be read from its start.
    found = [warning for warning in report.warnings if "from the start" in warning.what]
    assert len(found) == warnings


# Options `spike` whose sharp frame is at plane 3 of each exposure.
AT_PLANE_3 = {"type": "dat", "resize": "nearest", "center": 3, "representation": "voxel"}


class CachedFiles:
    """Clips with one spike file per clip, and a cache of them. folder: place of all files."""

    def __init__(self, folder):
        self.root = write_noise(folder)
        join_spike_files(self.root, "{clip}/spike/long.npy")
        self.cache = folder / "cache"
        spike = AT_PLANE_3 | {"exposure": EXPOSURE}
        values = add_cache(data_section(self.root, "test", spike=spike), self.cache)
        self.backend = values["io_backend"]  # the option that says where the cache is

    def build(self, **spike):
        """Return the test set, read from the cache. spike: keys of the section `spike`."""
        values = data_section(self.root, "test", spike=AT_PLANE_3 | spike)
        return build_test_set(values | {"io_backend": self.backend})


@pytest.fixture
def cached_files(tmp_path):
    """Give clips with one spike file per clip, and a cache of these clips."""
    return CachedFiles(tmp_path / "cached")


def test_a_cache_of_one_file_per_clip_gives_the_same_channels(cached_files, tmp_path):
    expected = open_test_set(write_noise(tmp_path / "parts"), center=3)

    assert have_equal_channels(cached_files.build(exposure=EXPOSURE), expected)


def test_a_cache_of_one_file_per_clip_has_its_planes(cached_files):
    size = (cached_files.cache / "a/0/spike.u8").stat().st_size

    assert size == (FIRSTS[-1] + PLANES) * 12  # bytes of a plane of 8 x 12 bits


def test_a_cache_of_one_file_per_clip_is_refused_for_files_per_frame(cached_files):
    with pytest.raises(DataError, match=r"one spike file of clip a/0 \(spike.exposure\)"):
        cached_files.build()


def test_exposures_beyond_the_file_are_refused_in_a_cache(cached_files):
    with pytest.raises(DataError, match="frame 3 of clip a/0 needs planes 102 to 125"):
        cached_files.build(exposure=EXPOSURE_PAST_THE_END)


# ---- Planes around an exposure: context ----
#
# With the option `context: 30`, a frame also gets up to 30 planes before its exposure and up to 30
# planes after it.

# A representation of 5 channels. Channel 0: light around the sharp frame (2 planes on each side).
# Channels 1 to 3: light of 3 parts of the exposure. All this light is divided by the mean light of
# the exposure. Channel 4: a confidence.
RELATIVE = {"type": "relative", "half_windows": [2], "num_bins": 3}


def expected_with_context(frame, context, reverse):
    """Return the channels of a frame, made from the noise and not from files.

    The sharp frame is at plane 11 of the 24 planes of the exposure. Plane 0 is not used, so 10
    planes come before the sharp frame. The program also takes 10 planes after the sharp frame, so
    half_exposure is 10.

    context: number of planes on each side of the exposure, fewer at the ends of the clip.
    """
    stream = all_noise()
    first = frame * PLANES  # the first plane of the exposure
    start = max(first - context, 0)
    stop = min(first + PLANES + context, len(stream))
    sharp_plane = first + 11
    return represent(
        "relative",
        stream[start:stop],
        center=sharp_plane - start,
        reverse=reverse,
        half_windows=[2],
        num_bins=3,
        half_exposure=10,
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("context", [5, 40])
def test_context_of_a_file_per_frame_is_in_the_files_beside(tmp_path, context, reverse):
    root = write_noise(tmp_path)

    found = spike_channels(
        open_test_set(root, center=11, representation=RELATIVE, context=context), reverse=reverse
    )

    # On each side, a frame reads one neighbouring file, which has 24 planes. So a context of 40
    # planes gives 24 planes.
    reach = min(context, PLANES)
    for frame in range(FRAMES):
        expected = expected_with_context(frame, reach, reverse)
        assert np.array_equal(one_per_spike_pixel(found[frame]), expected)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("context", [5, 40])
def test_context_of_one_file_is_around_the_exposure(tmp_path, context, reverse):
    root = write_noise(tmp_path)
    join_spike_files(root, "{clip}/spike/long.npy", range(0, FRAMES * PLANES, PLANES))
    dataset = open_test_set(
        root, center=11, representation=RELATIVE, context=context, exposure=EXPOSURE_WITHOUT_GAPS
    )

    found = spike_channels(dataset, reverse=reverse)

    for frame in range(FRAMES):
        expected = expected_with_context(frame, context, reverse)
        assert np.array_equal(one_per_spike_pixel(found[frame]), expected)


@pytest.mark.parametrize("context", [5, 40])
def test_context_changes_the_intervals_at_the_ends_of_an_exposure(tmp_path, context):
    root = write_noise(tmp_path)

    with_context = open_test_set(root, center=11, representation=RELATIVE, context=context)
    without = open_test_set(root, center=11, representation=RELATIVE)

    assert not torch.equal(
        spike_channels(with_context, reverse=True), spike_channels(without, reverse=True)
    )


CONTEXT_OF_30 = {
    "type": "dat",
    "resize": "nearest",
    "center": 11,
    "representation": RELATIVE,
    "context": 30,
}


@pytest.fixture
def with_context(tmp_path):
    """Give clips, and the channels of clip a/0 with a context of 30 planes."""
    root = write_noise(tmp_path)
    dataset = build_test_set(data_section(root, "test", spike=CONTEXT_OF_30))
    return root, spike_channels(dataset, clip=0)


def test_context_is_the_same_from_a_cache(with_context, tmp_path):
    root, expected = with_context
    values = add_cache(data_section(root, "test", spike=CONTEXT_OF_30), tmp_path / "cache")

    found = spike_channels(build_test_set(values), clip=0)

    assert torch.equal(found, expected)


def test_context_is_the_same_if_a_user_gives_the_folders_of_a_clip(with_context):
    root, expected = with_context
    frames = root / "GOPRO_Large/test/a/0/blur"

    (clip,) = user_clips(frames, spike_folder(root, "a/0"), spike_options=CONTEXT_OF_30)

    for frame in range(FRAMES):
        assert torch.equal(clip.frame(frame)["spike"], expected[frame])


def test_context_can_be_trained_with(with_context):
    root, _ = with_context
    # The camera is drawn for each sample, but a threshold of 1 changes no spike.
    camera = {"type": "perturb", "threshold_prob": 1.0, "threshold_range": [1.0, 1.0]}
    frames = str(root / "GOPRO_Large/test")
    values = data_section(
        root,
        "train",
        spike=CONTEXT_OF_30,
        num_frame=FRAMES,
        camera=camera,
        gt_size=8,
        dataroot_gt=frames,
        dataroot_lq=frames,
        dataroot_spike=str(root / "GOPRO_Large_spike_seq/test"),
    )

    dataset = build_dataset(values, "train", seed=0)
    epoch = 0
    index = 0
    sample = dataset[epoch, index]

    assert sample["spike"].isfinite().all()


# ---- Where one file of a clip may lie, and what is refused ----


@pytest.fixture
def files_beside_folders(tmp_path):
    """Give clips "one" and "two" of two frames, with spike files one.dat and two.dat."""
    for clip in ("one", "two"):
        write_clip(tmp_path, clip, split="test", frames=2)
        folder = spike_folder(tmp_path, clip).parent
        shutil.rmtree(folder)
        stream = np.concatenate((noise_planes(frame=0), noise_planes(frame=1)))
        write_dat(folder.with_name(f"{clip}.dat"), stream)
    write_info(tmp_path)
    return tmp_path


def test_a_clip_takes_the_spike_file_of_its_name(files_beside_folders):
    dataset = open_test_set(
        files_beside_folders,
        exposure=EXPOSURE_WITHOUT_GAPS,  # frame i begins at plane 24 i
        representation={"type": "raw", "window": 1},
    )

    # Look at the second frame of clip "two". Its only channel is plane 12, the middle of its 24
    # planes.
    item = dataset.read_frames(index=1, first=1, count=1)
    found = one_per_spike_pixel(item["spike"][0, 0])
    assert np.array_equal(found, noise_planes(frame=1)[12])


def test_the_check_of_the_data_knows_files_beside_the_folders(files_beside_folders):
    test = data_section(
        files_beside_folders, "test", spike={"type": "dat", "exposure": EXPOSURE_WITHOUT_GAPS}
    )

    assert doctor_of_data(files_beside_folders, test=test) == 0


@pytest.mark.parametrize(("planes", "frames"), [(94, 3), (95, 4), (119, 4), (120, 5)])
def test_a_file_holds_each_frame_whose_exposure_ends_in_it(planes, frames):
    # The exposures end at the planes 20, 45, 70, 95 and 120.
    timing = Timing(exposures=read_exposures({"start": 0, "length": 20, "period": 25}))

    assert timing.frames("clip", planes) == frames


def test_half_a_plane_is_rounded_up():
    # The rows are (start, length) of two frames, in planes. `planes_of` gives whole numbers.
    exposures = Exposures(rows=((0.5, 2.5), (1.5, 3.5)))

    # Halves are rounded up: the first frame begins at plane 1 and has 3 planes. Python's round()
    # would give (0, 2) for this frame, because it rounds halves to even numbers.
    assert exposures.planes_of(0) == (1, 3)
    assert exposures.planes_of(1) == (2, 4)
    assert exposures.planes_of(0, offset=-3) == (-2, 3)  # the start is -2.5


@pytest.fixture
def one_file(tmp_path):
    """Give clips with one spike file per clip."""
    root = write_noise(tmp_path)
    join_spike_files(root, "{clip}/spike/long.dat")
    return root


@pytest.mark.parametrize(
    ("exposure", "message"),
    [
        # The file has the planes 0 to 124. The last exposure, of frame 3, should begin at plane
        # 101, because 7 + 3 * 31.4 = 101.2. Then its 24 planes are the planes 101 to 124. In the
        # first two cases the last exposure begins at plane 102, because 8 + 3 * 31.4 = 102.2, and 7
        # + 3 * 31.6 = 101.8.
        pytest.param(
            EXPOSURE_PAST_THE_END,
            "frame 3 of clip a/1 needs planes 102 to 125 .*the file has 125 planes",
            id="start 8: one plane too late",
        ),
        pytest.param(
            EXPOSURE | {"period": 31.6},
            "frame 3 of clip a/0 needs planes 102 to 125",
            id="period 31.6: too long",
        ),
        pytest.param(
            {"a/0": EXPOSURE, "a/1": [[0, 24], [30, 24], [101, 24]]},
            "lists 3 frames of clip a/1, which has a frame 3",
            id="frame 3 is not listed",
        ),
        pytest.param({"a/0": EXPOSURE}, "does not list clip a/1", id="clip a/1 is not listed"),
    ],
)
def test_exposures_outside_of_the_file_name_clip_frame_or_planes(one_file, exposure, message):
    with pytest.raises(DataError, match=message) as error:
        open_test_set(one_file, exposure=exposure)

    assert "spike.exposure" in error.value.do


def test_one_file_without_exposures_is_refused(one_file):
    message = r"one spike file for 4 frames needs spike\.exposure, which says"
    with pytest.raises(DataError, match=message):
        open_test_set(one_file)


def test_two_files_with_exposures_are_refused(one_file):
    write_spikes(spike_folder(one_file, "a/0") / "second.dat", noise_planes(0), PLANE)

    with pytest.raises(DataError, match=r"2 spike files: .*with spike\.exposure a clip has one"):
        open_test_set(one_file, exposure=EXPOSURE)


@pytest.mark.parametrize(
    "exposure",
    [
        pytest.param({"start": 0, "length": 5}, id="no period"),
        pytest.param({"start": -1, "length": 5, "period": 9}, id="negative start"),
        pytest.param([], id="list"),
        pytest.param({}, id="no clip"),
        pytest.param(5.5, id="number"),
        pytest.param({"start": 0, "length": 0.4, "period": 9}, id="less than a plane"),
        pytest.param({"start": 0, "length": "5", "period": 9}, id="text"),
        pytest.param({"a/0": [[0, 5], [3]]}, id="row of one"),
        pytest.param({"a/0": []}, id="clip without frames"),
    ],
)
def test_an_exposure_of_a_wrong_form_is_refused(exposure):
    with pytest.raises(OptionError, match=r"spike\.exposure is"):
        read_exposures(exposure)


def test_an_exposure_excludes_a_window():
    with pytest.raises(OptionError, match="exclude one another"):
        DatSpikes(DatasetInfo(), h=8, w=12, exposure=EXPOSURE, first=3)


def test_an_exposure_needs_its_file():
    with pytest.raises(DataError, match="cannot read the exposures: No such file"):
        read_exposures("none.json")


# ---- One file of a user ----

# Options `spike` of a user. OF_USER has no size of a plane, and WITH_SIZE has it.
OF_USER = {"type": "dat", "center": "file", "rate": 1.0, "representation": "voxel"}
WITH_SIZE = OF_USER | {"h": 8, "w": 12}
# A window with the planes of all frames.
WINDOW = OF_USER | {"first": 5, "count": FRAMES * PLANES}


def channels_of_user(frames, spikes, options):
    """Return the channels of each frame of a user's clip, forward and backward."""
    (clip,) = user_clips(frames, spikes, spike_options=options)
    found = []
    for frame in range(FRAMES):
        for reverse in (False, True):
            found.append(clip.frame(frame, reverse)["spike"])
    return torch.stack(found)


@pytest.mark.parametrize(
    ("place", "options"),
    [
        pytest.param("file", WITH_SIZE | {"exposure": EXPOSURE}, id="file with exposures"),
        pytest.param("folder", WITH_SIZE | {"exposure": EXPOSURE}, id="folder of this file"),
        # An array has a shape, so its options need no size of a plane.
        pytest.param("even.npy", WINDOW, id="array, divided evenly"),
        pytest.param("even.npz", WINDOW, id="compressed array, divided evenly"),
    ],
)
def test_a_users_file_is_divided_by_exposures_or_evenly_within_the_window(tmp_path, place, options):
    root = write_noise(tmp_path)
    frames = root / "GOPRO_Large/test/a/0/blur"
    folder = spike_folder(root, "a/0")
    expected = channels_of_user(frames, folder, WITH_SIZE)
    if place.startswith("even"):
        # The file has 5 planes before the planes of the frames, and 3 planes after them.
        together = np.concatenate([noise_planes(9)[:5], all_noise(), noise_planes(9)[:3]])
        write_spikes(tmp_path / place, together, PLANE)
        spikes = tmp_path / place
    else:
        join_spike_files(root, "{clip}/spike/long.dat")
        spikes = folder / "long.dat" if place == "file" else folder

    found = channels_of_user(frames, spikes, options)

    assert torch.equal(found, expected)


def test_a_users_window_counts_the_planes_of_each_file(tmp_path):
    # The window has the planes 3 to 11 of each file. `center` counts the planes of the file, too.
    # RAW_OF_3 gives plane 7 and one plane on each side: the planes 6, 7 and 8.
    root = write_noise(tmp_path)
    options = {
        "type": "dat",
        "h": 8,
        "w": 12,
        "resize": "nearest",
        "first": 3,
        "count": 9,
        "center": 7,
        "representation": RAW_OF_3,
    }
    frames = root / "GOPRO_Large/test/a/0/blur"

    (clip,) = user_clips(frames, spike_folder(root, "a/0"), spike_options=options)

    assert np.array_equal(clip.frame(2)["spike"][:, ::2, ::2], noise_planes(2)[6:9])


def test_exposures_beyond_a_users_file_are_refused(one_file):
    frames = one_file / "GOPRO_Large/test/a/0/blur"
    options = WITH_SIZE | {"exposure": EXPOSURE_PAST_THE_END}

    with pytest.raises(DataError, match="frame 3 of clip 0 needs planes 102 to 125 "):
        user_clips(frames, spike_folder(one_file, "a/0"), spike_options=options)


# ---- The time offset of a calibration ----


def calibration(path, offset):
    """Write a calibration with a time offset in planes. Return its path as a text.

    The cameras are aligned: a spike pixel covers 2 x 2 RGB pixels. Spike pixel 0 covers the RGB
    pixels 0 and 1, so its middle is at 0.5.
    """
    values = {
        "format": 1,
        "matrix": [[2, 0, 0.5], [0, 2, 0.5]],
        "spike_size": [8, 12],
        "rgb_size": [16, 24],
        "time_offset_planes": offset,
    }
    path.write_text(json.dumps(values))
    return str(path)


def channels_with_offset(root, offset):
    """Return the channels of clips whose exposures come `offset` planes later.

    The calibration of the clips has this offset. So the channels are the same for each offset.
    """
    write_noise(root)
    firsts = [first + round(offset) for first in FIRSTS]
    join_spike_files(root, "{clip}/spike/long.dat", firsts, planes=160)
    path = calibration(root / "calibration.json", offset)
    dataset = open_test_set(
        root, exposure=EXPOSURE, calibration=path, resize="bilinear", center="gt"
    )
    return spike_channels(dataset)


@pytest.mark.parametrize("offset", [2.8, -3.0])
def test_the_time_offset_of_a_calibration_moves_the_planes(tmp_path, offset):
    expected = channels_with_offset(tmp_path / "none", offset=0.0)

    assert torch.equal(channels_with_offset(tmp_path / "offset", offset), expected)


# With first=1, the planes 1 to 23 of a file are used, and plane 12 is the middle. With an offset of
# 5 the middle is plane 17, and planes after 23 are missing. With an offset of -5 the middle is
# plane 7, and planes before 0 are missing.
@pytest.mark.parametrize(("offset", "center"), [(0, 12), (5, 17), (-5, 7)])
def test_the_time_offset_moves_the_middle_of_whole_files(tmp_path, offset, center):
    root = write_noise(tmp_path)
    none = calibration(root / "none.json", 0)
    moved = calibration(root / "moved.json", offset)

    found = open_test_set(root, first=1, calibration=moved, representation=RAW_OF_3)

    expected = open_test_set(
        root, first=1, calibration=none, center=center, representation=RAW_OF_3
    )
    assert have_equal_channels(found, expected)


def test_a_time_offset_that_leaves_the_sharp_frame_out_is_refused(tmp_path):
    # A frame has the planes 0 to 23, and 11.5 is their middle. With the offset, plane p of the
    # frame is plane p + 14 of its file. The file ends with plane 23, so p is at most 9.
    root = write_noise(tmp_path)
    late = calibration(root / "late.json", 14)

    with pytest.raises(DataError, match=r"plane of the sharp frame 11\.5 is outside of 0 to 9"):
        open_test_set(root, calibration=late, representation=RAW_OF_3)


def test_a_time_offset_that_moves_a_window_out_of_the_file_is_refused(tmp_path):
    root = write_noise(tmp_path)
    late = calibration(root / "late.json", 14)

    message = r"needs planes 14 to 37 \(spike\.first, spike\.count, time offset 14\)"
    with pytest.raises(DataError, match=message):
        open_test_set(root, calibration=late, count=24, representation=RAW_OF_3)


@pytest.mark.parametrize("offset", [5, -5])
def test_the_time_offset_moves_the_middle_of_even_parts(tmp_path, offset):
    root = write_noise(tmp_path)
    write_spikes(tmp_path / "even.npy", all_noise(), PLANE)
    frames = root / "GOPRO_Large/test/a/0/blur"
    common = {"type": "dat", "h": 8, "w": 12, "representation": RAW_OF_3}
    moved = common | {"calibration": calibration(root / "moved.json", offset), "center": "file"}
    # `numbered` means the same planes as `moved`. In place of an offset, it gives the number of the
    # middle plane.
    numbered = common | {"calibration": calibration(root / "none.json", 0), "center": 12 + offset}

    (found,) = user_clips(frames, tmp_path / "even.npy", spike_options=moved)

    (expected,) = user_clips(frames, tmp_path / "even.npy", spike_options=numbered)
    for frame in range(FRAMES):
        assert torch.equal(found.frame(frame)["spike"], expected.frame(frame)["spike"])


# ---- Texts in the digests of runs ----
#
# A run resumes only if the digest of its data is the digest in its checkpoint. A digest is computed
# from the texts below, so these texts must stay as they are. A new field must not be in a text as
# long as it has its default.


def test_whole_files_add_nothing_to_a_digest():
    assert Timing().describe() == ""


def test_the_text_of_the_planes_in_a_digest_stays():
    text = " Timing(first=2, count=None, exposures=None, offset=0.0)"
    assert Timing(first=2, share=0.5).describe() == text


def test_the_text_of_a_dataset_json_in_a_digest_stays():
    info = DatasetInfo(h=2, rate=0.5, calibration={"time_offset_planes": 3})

    assert repr(info) == (
        "DatasetInfo(path='', h=2, w=None, flip=None, planes=None, gt_plane=None, rate=0.5, "
        "light=None, interpolate=8, clips={})"
    )
