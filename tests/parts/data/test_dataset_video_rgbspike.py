"""Samples of a training set, and clips of a test set: data/clip_dataset.py and data/loader.py.

tests/helpers/clip_files.py writes the clips. Blurry frames ("lq"), sharp frames ("gt") and spikes
show the same random levels, and the green value of a frame is its number. So a test can tell from a
sample which frames it has, whether time runs backwards, and whether lq, gt and spikes show the same
pixels of the scene.

Helpers of clip_files.py that most tests use:

    write_clips   writes clips of 6 frames: frames of 16 x 24 pixels, 24 spike planes of 8 x 12
    build_clips   makes the data set of the written clips. Its arguments are keys of the section
    data_section  gives this section, datasets.train or datasets.test, as a dict
"""

import pickle
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from data.augment import Augment
from data.cameras.channels_of_frame import rate_of
from data.cameras.scaled_grid import ScaledGrid
from data.clips.preflight import preflight
from data.loader import TrainLoader
from data.sample_order import ResumableDistributedSampler
from data.select_dataset import build_dataset
from data.spike.geometry import Crop, SpikeGeometry
from scripts.make_sample_data import SAMPLE, make_sample
from tests.helpers.clip_files import (
    CROP,
    GT_RED_OF_LEVEL,
    LQ_RED_OF_LEVEL,
    PLANES,
    SAMPLE_FRAMES,
    build_clips,
    data_section,
    equal_samples,
    resolve_section,
    write_clip,
    write_clips,
    write_info,
)
from utils.errors import DataError, OptionError
from utils.options.loader_options import DatasetsOptions, LoaderOptions

# All random turns of a sample: flips, turns by 90 degrees, and reversed time.
ALL_TURNS: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}


@pytest.fixture(scope="module")
def clips_root(tmp_path_factory):
    """Give the root of two training clips (6 and 4 frames) and a test clip (5 frames).

    The green values of the frames begin with 0 in clip0, and with 47 in clip1.
    """
    root = tmp_path_factory.mktemp("clips")
    write_clip(root, "clip0", frames=6, first=0, seed=0)
    write_clip(root, "clip1", frames=4, first=47, seed=1)
    write_clip(root, "clip9", split="test", frames=5, seed=9)
    write_info(root)
    return root


def levels_in(item):
    """Return the levels that lq, gt and spikes of an item show, each (N, h, w), as large as lq."""
    # Red is channel 0. Its values in a sample are the values of the file divided by 255.
    lq = item["lq"][:, 0] * 255 / LQ_RED_OF_LEVEL
    scale = item["gt"].shape[-1] // item["lq"].shape[-1]
    gt = item["gt"][:, 0, ::scale, ::scale] * 255 / GT_RED_OF_LEVEL
    # Each of the two spike channels is for one half of the planes:
    #
    #     channel = spikes of a pixel in this half / planes of this half
    #
    # The level is the number of spikes in both halves.
    planes_of_a_half = PLANES / 2
    spike = item["spike"].sum(1) * planes_of_a_half
    return lq, gt, spike


def greens_in(item):
    """Return the numbers of the frames of an item, which are their green values."""
    return (item["lq"][:, 1, 0, 0] * 255).round().int().tolist()


# ---- A sample ----
#
# The index of a training sample is (epoch, number of the sample). The index of a test clip is only
# a number.


def training_sample(root, epoch, index):
    """Return a sample of the training set of `build_clips`."""
    return build_clips(root)[(epoch, index)]


def corner_of(crop, frame):
    """Return (top, left) of a crop (3, CROP, CROP) in a frame (3, H, W), by its pixels."""
    _, height, width = frame.shape
    for top in range(height - CROP + 1):
        for left in range(width - CROP + 1):
            if torch.equal(frame[:, top : top + CROP, left : left + CROP], crop):
                return top, left
    raise AssertionError("the frame does not have this crop")


@pytest.mark.parametrize(("key", "channels"), [("lq", 3), ("spike", 2), ("gt", 3)])
def test_a_sample_has_the_shapes_of_the_batch(clips_root, key, channels):
    tensor = training_sample(clips_root, epoch=0, index=0)[key]

    assert tensor.shape == (SAMPLE_FRAMES, channels, CROP, CROP)
    assert tensor.dtype == torch.float32
    assert tensor.min() >= 0


def test_the_frames_of_a_sample_are_in_the_range_from_0_to_1(clips_root):
    assert training_sample(clips_root, epoch=0, index=0)["lq"].max() <= 1


def test_a_sample_says_its_clip_with_its_frame(clips_root):
    assert training_sample(clips_root, epoch=0, index=0)["key"].startswith("clip0/00000")


def test_a_data_set_can_be_sent_to_loader_processes(clips_root):
    dataset = build_clips(clips_root)

    received = pickle.loads(pickle.dumps(dataset))

    assert torch.equal(received[(0, 1)]["lq"], dataset[(0, 1)]["lq"])


@pytest.mark.parametrize("scale", [1, 2])
def test_crops_of_frames_sharp_frames_and_spikes_agree_to_the_pixel(tmp_path, scale):
    write_clips(tmp_path, "clip0", scale=scale)
    dataset = build_clips(tmp_path, gt_size=CROP * scale, **ALL_TURNS)

    for epoch in range(4):
        for index in range(len(dataset)):
            item = dataset[(epoch, index)]
            assert item["lq"].shape[-2:] == (CROP, CROP)
            assert item["gt"].shape[-2:] == (CROP * scale, CROP * scale)
            lq, gt, spike = levels_in(item)
            # Levels are whole numbers, so a wrong pixel would differ by 1. The tolerance allows for
            # the rounding of float32.
            assert torch.allclose(lq, spike, atol=1e-3)
            assert torch.allclose(lq, gt, atol=1e-3)


def test_resizing_a_crop_of_spikes_equals_cropping_the_resized_spikes(clips_root):
    spike = {"type": "dat", "representation": {"type": "tfp", "half_window": 9}}
    whole = build_clips(clips_root, "test", spike=spike)[0]
    # Use the test clip also as a training set, in which a sample is a crop of a single frame.
    frames = str(clips_root / "GOPRO_Large/test")
    values = data_section(
        clips_root,
        dataroot_gt=frames,
        dataroot_lq=frames,
        dataroot_spike=str(clips_root / "GOPRO_Large_spike_seq/test"),
        spike=spike,
        num_frame=1,
        gt_size=CROP,
    )
    crops = build_dataset(values, "train", seed=0)

    for index in range(5):  # the frames of the clip
        item = crops[(0, index)]
        top, left = corner_of(item["lq"][0], whole["lq"][index])

        expected = whole["spike"][index][:, top : top + CROP, left : left + CROP]
        assert torch.equal(item["spike"][0], expected)


# ---- What is drawn for a sample ----


def draws(count=200, size=(20, 30), **allowed):
    """Return a list of random draws (`Augment`): crops of 8 x 8, perhaps flipped or turned.

    count: number of draws. size: height and width of the frame. allowed: which changes may be
        drawn, e.g. hflip=True.
    """
    rng = np.random.default_rng(0)
    whole_frame = Crop(0, 0, *size)
    drawn = []
    for _ in range(count):
        # step=2: the crops begin at even rows and columns.
        drawn.append(Augment.draw(rng, whole_frame, patch=8, step=2, **allowed))
    return drawn


# Spike pixels cover 2 x 2 pixels of a frame, so crops begin at even rows and columns.
def test_crops_reach_every_even_place():
    plain = draws(count=2000)  # far more draws than the 7 rows and 12 columns that are possible

    # The frame has 20 x 30 pixels, so a crop of 8 x 8 begins at most at row 12 and column 22.
    assert {augment.top for augment in plain} == set(range(0, 12 + 1, 2))
    assert {augment.left for augment in plain} == set(range(0, 22 + 1, 2))


def test_a_crop_as_large_as_the_frame_has_one_place():
    places = {(augment.top, augment.left) for augment in draws(count=20, size=(8, 8))}

    assert places == {(0, 0)}


@pytest.mark.parametrize("turn", ["hflip", "vflip", "transpose", "reverse"])
def test_an_allowed_turn_comes_half_of_the_time(turn):
    turned = draws(hflip=True, rot=True, reverse=True)

    # About 100 of 200 draws are turned. The probability of a number outside of 60 ... 140 is below
    # 1e-7.
    assert 60 < sum(getattr(augment, turn) for augment in turned) < 140


@pytest.mark.parametrize("turn", ["hflip", "vflip", "transpose", "reverse"])
def test_a_turn_that_is_not_allowed_never_comes(turn):
    for augment in draws(count=2000):
        assert not getattr(augment, turn)


def test_an_allowed_turn_leaves_the_rest_of_the_draw_as_it_was():
    all_turns = draws(hflip=True, rot=True, reverse=True)
    one_turn = draws(hflip=True)

    for a, b in zip(all_turns, one_turn, strict=True):
        assert (a.top, a.left, a.hflip) == (b.top, b.left, b.hflip)


# The frame of this test, and the frame after a flip of its columns and a swap of its axes:
#
#     0 1 2    hflip    2 1 0    transpose    2 5
#     3 4 5             5 4 3                 1 4
#                                             0 3
@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ({"hflip": True}, [[2, 1, 0], [5, 4, 3]]),
        ({"vflip": True}, [[3, 4, 5], [0, 1, 2]]),
        ({"transpose": True}, [[0, 3], [1, 4], [2, 5]]),
        ({"hflip": True, "transpose": True}, [[2, 5], [1, 4], [0, 3]]),
        ({"vflip": True, "transpose": True}, [[3, 0], [4, 1], [5, 2]]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_the_axes_are_swapped_after_the_flips(turns, expected):
    frames = np.array([[[0, 1, 2], [3, 4, 5]]])  # (1, 2, 3)

    # `Augment.whole` is a crop of the whole frame without turns, and `replace` adds the turns.
    flipped = replace(Augment.whole((2, 3)), **turns).flip(frames)

    assert flipped[0].tolist() == expected


@pytest.mark.parametrize(
    ("index", "clip", "frames", "corner", "turns"),
    [
        ((0, 0), "clip0", [0, 1, 2], (8, 2), {"vflip"}),
        ((0, 5), "clip0", [2, 1, 0], (0, 4), {"hflip", "vflip", "reverse"}),
        ((3, 5), "clip0", [0, 2, 4], (2, 12), {"hflip", "vflip", "transpose"}),
        ((1, 9), "clip1", [2, 2, 0], (6, 4), {"hflip", "transpose", "reverse"}),
        ((7, 8), "clip1", [0, 2, 2], (0, 14), {"transpose"}),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else "",
)
def test_a_seed_gives_the_draws_that_it_always_gave(clips_root, index, clip, frames, corner, turns):
    # The index is (epoch, sample), and the corner is (top, left) of the crop. The expected values
    # are the draws of an earlier version. These draws must stay, because a resumed run must see the
    # samples that it would have seen without the interruption.
    #
    # Samples 0 to 5 begin at frames 0 to 5 of clip0, and samples 6 to 9 at frames 0 to 3 of clip1.
    # The distance between two frames of a sample is drawn: 1 or 2 (interval_list). If three frames
    # at this distance do not fit into the clip, the first frame is drawn, too:
    #
    #     index     frames     why the sample has these frames
    #     (0, 0)    0, 1, 2    distance 1 from frame 0 on
    #     (0, 5)    2, 1, 0    frame 5 is too late. The drawn first frame is 0. Time is reversed
    #     (3, 5)    0, 2, 4    frame 5 is too late. The drawn first frame is 0. Distance 2
    #     (1, 9)    2, 2, 0    0, 2, 2 as in the next case, but time is reversed
    #     (7, 8)    0, 2, 2    distance 2 needs five frames, but clip1 has four. So clip1 is played
    #                          back and forth, 0 1 2 3 2 1 ..., and every second frame is taken
    draw = build_clips(clips_root, **ALL_TURNS, interval_list=[1, 2]).draw(index)

    assert draw.clip.name == clip
    assert draw.frames == frames
    assert (draw.aug.top, draw.aug.left) == corner
    all_turns = ("hflip", "vflip", "transpose", "reverse")
    assert {turn for turn in all_turns if getattr(draw.aug, turn)} == turns


@pytest.fixture
def sample_of_eight_epochs(clips_root):
    """Give sample 0 of eight epochs. In some epochs its time is reversed."""
    dataset = build_clips(clips_root, random_reverse=True)
    return [dataset[(epoch, 0)] for epoch in range(8)]


# The numbers of the three frames of a sample, in both directions of time.
FORWARD = [0, 1, 2]
BACKWARD = [2, 1, 0]


def test_time_runs_forward_in_some_epochs_but_backward_in_others(sample_of_eight_epochs):
    orders = [greens_in(item) for item in sample_of_eight_epochs]

    assert FORWARD in orders
    assert BACKWARD in orders
    for order in orders:
        assert order in (FORWARD, BACKWARD)


def test_time_reversal_reverses_the_planes_within_the_frames(sample_of_eight_epochs):
    for item in sample_of_eight_epochs:
        # The two spike channels of a frame are the halves of its planes. In forward time, all
        # spikes lie in the first half, so channel 1 is empty. In backward time, channel 0 is empty.
        is_backward = greens_in(item) == BACKWARD
        empty_half = 0 if is_backward else 1
        assert item["spike"][:, empty_half].max() == 0


def test_a_sample_depends_on_seed_epoch_and_index_only(clips_root):
    first = build_clips(clips_root, **ALL_TURNS)
    second = build_clips(clips_root, **ALL_TURNS)
    second[(7, 3)]  # an earlier access to another sample must have no influence

    for index in range(len(first)):
        assert equal_samples(first[(2, index)], second[(2, index)])


@pytest.mark.parametrize(
    ("seed", "epoch", "index"),
    [
        pytest.param(0, 3, 0, id="another epoch"),
        pytest.param(1, 2, 0, id="another seed"),
        # The data set has 6 + 4 = 10 samples, with the indices 0 to 9. Index 10 is sample 0 again,
        # with new draws.
        pytest.param(0, 2, 10, id="another index"),
    ],
)
def test_another_seed_epoch_or_index_gives_another_sample(clips_root, seed, epoch, index):
    dataset = build_clips(clips_root, **ALL_TURNS)
    other = build_clips(clips_root, seed=seed, **ALL_TURNS)

    assert not torch.equal(dataset[(2, 0)]["lq"], other[(epoch, index)]["lq"])


# ---- Which frames a sample has ----


def test_an_interval_skips_frames(clips_root):
    dataset = build_clips(clips_root, interval_list=[2])

    for index in range(6):
        assert greens_in(dataset[(0, index)]) in ([0, 2, 4], [1, 3, 5])


def test_a_short_clip_is_played_back_from_its_end(clips_root):
    # Sample 6 is the first sample of clip1, which has the 4 frames 47 to 50.
    item = build_clips(clips_root, num_frame=6)[(0, 6)]

    assert greens_in(item) == [47, 48, 49, 50, 49, 48]


def test_a_short_clip_is_named_in_the_log(clips_root, caplog):
    build_clips(clips_root, num_frame=6)

    assert "1 clip has fewer than 6 frames" in caplog.text
    assert "clip1" in caplog.text


def test_on_the_way_back_the_planes_of_each_frame_are_reversed(clips_root):
    item = build_clips(clips_root, num_frame=6)[(0, 6)]

    # The helper writes all spikes of a pixel into its first planes. So channel 0, the first half of
    # the planes, has spikes. If time runs backwards, channel 0 is the last half, and has no spikes.
    # The frames are 47 48 49 50, and then 49 48 on the way back.
    first_half_has_spikes = [bool(planes[0].max() > 0) for planes in item["spike"]]
    assert first_half_has_spikes == [True, True, True, True, False, False]


# ---- A clip of a test ----


def test_a_test_item_is_the_whole_clip(clips_root):
    dataset = build_clips(clips_root, "test")

    item = dataset[0]

    assert len(dataset) == 1
    assert item["key"] == "clip9"
    assert item["frames"] == ["000000", "000001", "000002", "000003", "000004"]
    assert item["lq"].shape == (5, 3, 16, 24)
    assert item["spike"].shape == (5, 2, 16, 24)


def test_a_test_item_can_be_read_in_parts(clips_root):
    dataset = build_clips(clips_root, "test")

    part = dataset.read_frames(0, first=1, count=2)

    assert part["frames"] == ["000001", "000002"]
    for key in ("lq", "gt", "spike"):
        assert torch.equal(part[key], dataset[0][key][1:3])


def test_a_test_may_take_only_the_first_frames(clips_root):
    item = build_clips(clips_root, "test", num_frame=2)[0]

    assert item["lq"].shape[0] == 2


def test_a_test_may_have_no_sharp_frames(clips_root):
    item = build_clips(clips_root, "test", dataroot_gt=None)[0]

    assert "gt" not in item


# ---- Pictures kept in memory, and a resume ----


def test_pictures_kept_in_memory_outlive_the_loader_processes_that_decoded_them(tmp_path):
    write_clips(tmp_path, "clip0", frames=6)
    plain = build_clips(tmp_path)
    # The expected samples are the samples of epoch 1, read from the files.
    expected = [plain[(1, index)] for index in range(len(plain))]
    kept = build_clips(tmp_path, cache_data=True)
    options = LoaderOptions(dataloader_shuffle=False)
    loader = TrainLoader(kept, options, accumulation_steps=1, seed=0)

    # Epoch 0 decodes the pictures in loader processes, which then end. Then the files are removed.
    # So epoch 1 can only take the pictures from memory.
    batches_of_epoch_0 = list(loader.start(epoch=0, batch=0))
    for path in (tmp_path / "GOPRO_Large").rglob("*.png"):
        path.unlink()
    batches_of_epoch_1 = list(loader.start(epoch=1, batch=0))

    assert len(batches_of_epoch_0) == 6
    # Each step has a single micro-batch.
    for (batch,), item in zip(batches_of_epoch_1, expected, strict=True):
        assert torch.equal(batch["lq"][0], item["lq"])
        assert torch.equal(batch["gt"][0], item["gt"])
    # The pictures are in shared memory, so this process sees the pictures, too.
    assert torch.equal(kept[(1, 0)]["lq"], expected[0]["lq"])


# A resumed run compares `sample_names()` of its data with the names in its checkpoint.


def test_the_same_files_have_the_same_names_of_samples(tmp_path):
    write_clips(tmp_path, "clip0")

    assert build_clips(tmp_path).sample_names() == build_clips(tmp_path).sample_names()


def test_the_names_of_samples_change_with_the_rate_of_the_spikes(tmp_path):
    write_clips(tmp_path, "clip0")
    before = build_clips(tmp_path).sample_names()

    write_info(tmp_path, rate=0.5)

    assert build_clips(tmp_path).sample_names() != before


def test_the_names_of_samples_change_with_the_planes_of_a_frame(tmp_path):
    write_clips(tmp_path, "clip0")
    before = build_clips(tmp_path).sample_names()

    write_clip(tmp_path, "clip0", planes=32)
    write_info(tmp_path, planes=32)

    assert build_clips(tmp_path).sample_names() != before


# ---- dataset.json: rate, centre, light ----

# Channels that are the mean of 5 planes: the plane of the sharp frame, and 2 planes on each side.
TFP_OF_5 = {"type": "dat", "representation": {"type": "tfp", "half_window": 2}}


def spikes_of_test(root, **spike):
    """Return the spike channels of the test clip. spike: keys of the section `spike`."""
    return build_clips(root, "test", spike={**TFP_OF_5, **spike})[0]["spike"]


def test_the_centre_of_the_data_is_the_plane_of_the_sharp_frame(clips_root):
    # A pixel of level 12, the largest level, fires in planes 0 ... 11. The window has 5 planes:
    #
    #     center          planes       spikes    rate
    #     12 (gt_plane)   10 ... 14    2         0.4
    #     5               3 ... 7      5         1
    at_12 = spikes_of_test(clips_root)
    at_5 = spikes_of_test(clips_root, center=5)

    # 0.45 lies above the rate 0.4, which is the largest rate of the first window.
    assert at_12.max() < 0.45 < at_5.max()


def test_the_centre_may_be_the_middle_of_the_file(clips_root):
    # A file has 24 planes, so its middle is plane 12. gt_plane is plane 12, too.
    assert torch.equal(spikes_of_test(clips_root, center="file"), spikes_of_test(clips_root))


def test_spikes_are_divided_by_the_rate_of_dataset_json(clips_root, tmp_path):
    # Write the test clip again with the same spikes, but with another rate in dataset.json.
    write_clip(tmp_path, "clip9", split="test", frames=5, seed=9)
    write_info(tmp_path, rate=0.5)

    # The rate of `clips_root` is 1. If the rate is 0.5, the same spikes mean twice the light.
    assert torch.allclose(spikes_of_test(tmp_path), 2 * spikes_of_test(clips_root))


# The name GOPR0372_03_00 says that a blurry frame is the mean of 3 raw frames, with 8 planes each.
# So the program knows that a frame has 24 planes, and which plane is the sharp one. The clip
# "street" has no such name.


def test_without_dataset_json_the_options_must_give_the_size(tmp_path):
    write_clip(tmp_path, "GOPR0372_03_00", planes=24)

    with pytest.raises(OptionError, match=r"spike\.h is missing"):
        build_clips(tmp_path)


def test_without_dataset_json_the_size_of_the_options_is_enough_for_a_clip_of_gopro(tmp_path):
    write_clip(tmp_path, "GOPR0372_03_00", planes=24)

    dataset = build_clips(tmp_path, spike={"type": "dat", "h": 8, "w": 12})
    item = dataset[(0, 0)]  # the first sample of the first epoch

    # The shape is frames, channels of the default representation, height and width of the crop.
    assert item["spike"].shape == (3, 4, 8, 8)


def test_without_dataset_json_the_sharp_plane_of_another_clip_is_not_known(tmp_path):
    write_clip(tmp_path, "GOPR0372_03_00", planes=24)
    write_clip(tmp_path, "street")

    with pytest.raises(DataError, match="plane of the sharp frame is not known for clip street"):
        build_clips(tmp_path, spike={"type": "dat", "h": 8, "w": 12})


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{", id="no JSON"),
        pytest.param('{"format": 2}', id="unknown format"),
        pytest.param('{"format": 1, "h": "8"}', id="text in place of a number"),
    ],
)
def test_a_damaged_dataset_json_is_named(tmp_path, content):
    # The file that write_clips wrote is replaced.
    write_clips(tmp_path, "GOPR0372_03_00")
    (tmp_path / "GOPRO_Large_spike_seq/dataset.json").write_text(content)

    with pytest.raises(DataError, match=r"dataset.json"):
        build_clips(tmp_path)


# One channel, the mean of planes around the sharp frame, with the same number on each side.
VOXEL_OF_1 = {"type": "dat", "representation": {"type": "voxel", "num_bins": 1}}
# A grey picture of 4 x 4 pixels, the display value of each pixel, and the light that a pixel shows.
GREY = np.full((4, 4, 3), 128, np.uint8)
DISPLAY_VALUE = 128 / 255
LIGHT = DISPLAY_VALUE**2.2
GREY_PLANES = 1000  # number of spike planes of this picture
RATE = 0.6  # spikes per plane of a pixel that integrates 1


def grey_spikes(integrated):
    """Return planes (GREY_PLANES, 2, 2) of a spike camera that sees the grey picture.

    integrated: the value that the camera integrates, LIGHT or DISPLAY_VALUE.

    A pixel fires RATE * integrated spikes per plane on average. All spikes are in the first planes,
    which does not change the mean over all planes.
    """
    planes = np.zeros((GREY_PLANES, 2, 2), np.uint8)
    planes[: round(GREY_PLANES * RATE * integrated)] = 1
    return planes


# light: the option spike.light. integrated: the value that the camera integrates.
@pytest.mark.parametrize(
    ("light", "integrated"),
    [
        pytest.param("linear", LIGHT, id="camera of light"),
        pytest.param("display", DISPLAY_VALUE, id="camera of display values"),
    ],
)
# gamma: the option spike.gamma. shown: the value of the channels with this option.
@pytest.mark.parametrize(
    ("gamma", "shown"),
    [
        pytest.param(1.0, LIGHT, id="light asked for"),
        pytest.param(2.2, DISPLAY_VALUE, id="display values asked for"),
    ],
)
def test_light_decides_what_match_or_gamma_do(tmp_path, light, integrated, gamma, shown):
    write_clip(tmp_path, "clip0", split="test", frames=1)
    write_info(tmp_path, rate=None, light=None)
    spike = {**VOXEL_OF_1, "rate": "match", "center": "file", "light": light}
    spikes = build_clips(tmp_path, "test", spike=spike).clips[0].spikes
    # The rate "match" is measured: the program compares the whole picture with its spikes. So
    # `whole_picture` must have the spike pixels of the whole picture.
    grid = ScaledGrid(SpikeGeometry(2, 2), size=(4, 4), interpolation=cv2.INTER_NEAREST)
    whole_picture = grid.window(Augment.whole((4, 4)))
    planes = grey_spikes(integrated)
    # A voxel has equally many planes on both sides of its center. If the center is the middle of
    # the stream, the voxel has all planes.
    middle = (GREY_PLANES - 1) / 2

    rate = rate_of(spikes, planes, GREY, whole_picture)
    channels = spikes.changed(gamma=gamma).represent(planes, center=middle, rate=rate)

    # A pixel fires a whole number of times in 1000 planes, e.g. 600 x 0.5020 = 301.2 -> 301. So the
    # error of a rate is about 0.001, and the tolerance is twice as much.
    assert rate == pytest.approx(RATE, abs=0.002)
    assert channels.mean() == pytest.approx(shown, abs=0.002)


def test_a_light_that_contradicts_the_data_is_refused(tmp_path):
    write_clip(tmp_path, "clip0", split="test", frames=1)
    write_info(tmp_path, light="display")

    with pytest.raises(OptionError, match=r"spike\.light is linear, dataset.json has display"):
        build_clips(tmp_path, "test", spike={**VOXEL_OF_1, "rate": "match", "light": "linear"})


def log_of_check(folder, caplog, **info):
    """Check the data, and return the text of the log. info: keys of dataset.json.

    The spikes of the clip are proportional to the display values of its pictures.
    """
    write_clip(folder, "clip0", split="test", frames=2)
    datasets = DatasetsOptions(test=resolve_section(data_section(folder, "test")))
    write_info(folder, **info)
    preflight(datasets, folder / "runs")
    return caplog.text


def test_the_check_of_the_data_tells_light_with_rate_if_nobody_states_them(tmp_path, caplog):
    message = log_of_check(tmp_path, caplog, light=None, rate=None)

    # For a pixel of level 1, `write_clip` writes 1 spike in 24 planes, and a red value of 20 of
    # 255. The check compares the spikes with the grey value. The grey value is 0.299 of red,
    # because only red has the level. So the display value 1 has (1 / 24) / (0.299 * 20 / 255) =
    # 1.78 spikes per plane. The grey values are rounded, so the check finds 1.77.
    assert "look like display light of rate 1.77" in message
    assert "firing rate at full light" in message


def test_the_check_of_the_data_believes_a_stated_light(tmp_path, caplog):
    message = log_of_check(tmp_path, caplog, light="linear", rate=1.0)

    assert "WARNING" not in message


# ---- Another camera, and the rate that fits the frame ----


def threshold_camera(factor, **changes):
    """Return a section `camera` that always changes the threshold by this factor."""
    return {
        "type": "perturb",
        "threshold_prob": 1.0,  # in every sample
        "threshold_range": [factor, factor],
        **changes,
    }


def mean_spikes(item):
    """Return the mean of the spike channels of an item."""
    return float(item["spike"].mean())


# The index of a sample is (epoch, number). The samples below are of this epoch. Any epoch would do.
# With the options ALL_TURNS, a sample is flipped, turned and reversed at random.
EPOCH = 1
# These samples have 11 to 17 % more spikes than expected. A pixel has 6.5 spikes on average, and
# the planes after its last spike have the light of almost one more spike. If a camera ignored its
# threshold, the difference would be 100 %.
TOLERANCE = 0.2


def test_another_spike_camera_does_not_change_the_frames(clips_root):
    plain = build_clips(clips_root, **ALL_TURNS)
    other = build_clips(clips_root, camera=threshold_camera(2.0), **ALL_TURNS)

    for index in range(4):
        a = plain[(EPOCH, index)]
        b = other[(EPOCH, index)]
        assert torch.equal(a["lq"], b["lq"])
        assert torch.equal(a["gt"], b["gt"])
        assert a["key"] == b["key"]


def test_twice_the_threshold_gives_half_the_spikes(clips_root):
    plain = build_clips(clips_root, **ALL_TURNS)
    other = build_clips(clips_root, camera=threshold_camera(2.0), **ALL_TURNS)

    for index in range(4):
        expected = mean_spikes(plain[(EPOCH, index)]) / 2
        assert mean_spikes(other[(EPOCH, index)]) == pytest.approx(expected, rel=TOLERANCE)


def test_another_camera_is_the_same_each_time(clips_root):
    other = build_clips(clips_root, camera=threshold_camera(2.0), **ALL_TURNS)

    # Each access computes the sample anew, so both sides are two results for one index.
    for index in range(4):
        assert torch.equal(other[(EPOCH, index)]["spike"], other[(EPOCH, index)]["spike"])


def test_a_known_rate_undoes_the_threshold(clips_root):
    plain = build_clips(clips_root, **ALL_TURNS)
    known = build_clips(clips_root, camera=threshold_camera(2.0, known_rate=True), **ALL_TURNS)

    for index in range(4):
        expected = mean_spikes(plain[(EPOCH, index)])
        assert mean_spikes(known[(EPOCH, index)]) == pytest.approx(expected, rel=TOLERANCE)


@pytest.fixture(scope="module")
def sample_set(tmp_path_factory):
    """Give the root of a sample set with one test clip of one frame."""
    folder = tmp_path_factory.mktemp("sample") / "set"
    make_sample(folder, replace(SAMPLE, clips={"test": 1}, frames=1))
    return folder


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_a_matched_rate_gives_the_brightness_of_the_frame_whatever_the_threshold(
    sample_set, factor
):
    spike = {**VOXEL_OF_1, "rate": "match"}
    item = build_clips(sample_set, "test", spike=spike, camera=threshold_camera(factor))[0]

    light = item["lq"] ** 2.2  # the frame has the gamma 2.2
    # The weights of R, G and B in the brightness (luma of BT.601).
    luma = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    brightness = float((light * luma).sum(1).mean())
    # A rate that ignored the threshold would be off by the factor 2 or 4.
    assert mean_spikes(item) / brightness == pytest.approx(1.0, rel=0.01)


# ---- Options that are refused ----


def test_options_that_repeat_dataset_json_are_accepted(clips_root):
    build_clips(clips_root, spike={"type": "dat", "h": 8, "w": 12, "flip": True, "rate": 1.0})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param({"gt_size": 7}, OptionError, "gt_size is 7", id="odd crop"),
        pytest.param(
            {"gt_size": 32},
            DataError,
            "crops of 32 do not fit into clip clip0",
            id="crop larger than the frames",
        ),
        pytest.param(
            {"spike": {"type": "dat", "h": 16, "w": 12}},
            OptionError,
            "spike.h is 16, dataset.json has 8",
            id="another size than dataset.json",
        ),
        pytest.param(
            {"spike": {"type": "dat", "heigth": 8}},
            OptionError,
            "unknown option .*spike.heigth",
            id="unknown key",
        ),
        pytest.param(
            {"spike": {"representation": {"type": "raw", "window": 4}, "type": "dat"}},
            OptionError,
            "raw cannot be made",
            id="representation that cannot be made",
        ),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(clips_root, changes, error, message):
    with pytest.raises(error, match=message):
        build_clips(clips_root, **changes)


def test_a_training_section_is_no_section_for_testing(clips_root):
    # The section is of a training, and the second argument asks for a data set to test with.
    with pytest.raises(OptionError, match="a dataset for testing"):
        build_dataset(data_section(clips_root, "train"), "test", seed=0)


# Representations that ignore some keys of the section `spike`: "raw" gives unchanged planes.
# SPREAD_ENCODING and SPREAD_TFP spread their windows over the file.
RAW = {"type": "raw", "window": 3}
SPREAD_ENCODING = {"type": "encoding25", "num_windows": 3, "pad": "edge"}
SPREAD_TFP = {"type": "tfp", "half_window": 2, "num_bins": 3}


@pytest.mark.parametrize(
    ("key", "value", "representation"),
    [
        # Raw planes are 0 and 1 in any light. So these keys would have no effect.
        pytest.param("gamma", 2.2, RAW, id="gamma of raw planes"),
        pytest.param("rate", "match", RAW, id="rate of raw planes"),
        pytest.param("light", "linear", RAW, id="light of raw planes"),
        # Windows that are spread over the file have no centre, so `center` would have no effect.
        pytest.param("center", 5, SPREAD_ENCODING, id="centre of spread windows"),
        pytest.param("center", 5, SPREAD_TFP, id="centre of spread bins"),
        pytest.param("context", 8, "voxel", id="context of voxels"),
    ],
)
def test_keys_without_effect_are_refused(clips_root, key, value, representation):
    spike = {"type": "dat", key: value, "representation": representation}

    with pytest.raises(OptionError, match=rf"spike\.{key} has no effect"):
        build_clips(clips_root, "test", spike=spike)


@pytest.mark.parametrize(
    "spike",
    [
        pytest.param({"type": "dat", "rate": "match"}, id="rate matched"),
        pytest.param({"type": "dat", "representation": RAW}, id="raw planes"),
    ],
)
def test_a_known_rate_is_refused_if_no_rate_is_divided_out(clips_root, spike):
    camera = {"type": "perturb", "threshold_prob": 1.0, "known_rate": True}

    with pytest.raises(OptionError, match=r"camera\.known_rate has no effect"):
        build_clips(clips_root, "test", spike=spike, camera=camera)


# ---- The order of an epoch ----


def sampler(rank=0, world_size=1, batch_size=2, length=23, seed=0, epoch=0, **how):
    """Return the sampler of a rank at the start of an epoch. A sampler gives pairs (epoch, index).

    world_size: number of ranks. batch_size: samples of a rank in a step. length: samples of the
    data set. how: more arguments of the sampler, e.g. shuffle=False.
    """
    made = ResumableDistributedSampler(
        length, world_size=world_size, rank=rank, samples_per_step=batch_size, seed=seed, **how
    )
    made.seek(epoch)
    return made


def indices(some_sampler):
    """Return the indices of an epoch in their order."""
    return [index for _, index in some_sampler]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_incomplete_last_batch_is_left_out_on_every_rank(rank):
    of_rank = sampler(rank, world_size=2, batch_size=3, length=23)

    # Three batches of 3 samples on each of 2 ranks are 18 of the 23 samples. The other 5 samples
    # are left out, because they do not fill a batch on both ranks.
    assert len(list(of_rank)) == 9
    assert len(of_rank) == 9
    assert of_rank.batches_per_epoch == 3


@pytest.mark.parametrize("world_size", range(1, 9))
def test_the_ranks_have_equally_many_samples_whatever_the_size(world_size):
    for length in range(world_size, 51):
        for rank in range(world_size):
            shard = indices(sampler(rank, world_size, batch_size=1, length=length))
            assert len(shard) == length // world_size


@pytest.mark.parametrize("world_size", range(1, 9))
def test_no_two_ranks_have_the_same_sample(world_size):
    for length in range(world_size, 51):
        together = []
        for rank in range(world_size):
            together += indices(sampler(rank, world_size, batch_size=1, length=length))
        assert len(set(together)) == len(together)
        assert set(together) <= set(range(length))


def test_the_order_follows_from_seed_with_epoch():
    assert list(sampler(epoch=3)) == list(sampler(epoch=3))


def test_each_index_comes_with_its_epoch():
    assert {epoch for epoch, _ in sampler(epoch=3)} == {3}


def test_another_epoch_has_another_order():
    assert indices(sampler(epoch=3)) != indices(sampler(epoch=4))


def test_another_seed_has_another_order():
    assert indices(sampler(seed=1)) != indices(sampler(seed=2))


def test_without_shuffling_the_samples_follow_the_order_of_the_clips():
    assert indices(sampler(length=6, shuffle=False)) == [0, 1, 2, 3, 4, 5]
