"""Which planes a frame gets: spike.first, spike.count, spike.exposure, the time offset of a
calibration.
"""

import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch

from data.cameras.spike_info import DatasetInfo, read_exposures
from data.cameras.spike_source import DatSpikes
from data.clips.clip_reader import user_clips
from data.select_dataset import build_dataset
from data.spike.formats import SpikeGeometry, read_spikes, write_spikes
from data.spike.represent import represent
from tests.helpers.clip_files import (
    PLANES,
    cached,
    check,
    doctor_of_data,
    section,
    write_clip,
    write_dat,
    write_info,
)
from utils.errors import DataError, OptionError

PLANE = SpikeGeometry(8, 12)
FRAMES = 4
REPRESENTATIONS = (
    {"type": "voxel", "num_bins": 3},
    {"type": "tfp", "half_window": 2},
    {"type": "raw", "window": 5},
)


def build(root, split="test", **spike):
    values = {
        "type": "dat",
        "resize": "nearest",
        "center": "file",
        "representation": "voxel",
    } | spike
    return build_dataset(section(root, split, spike=values), split, 0)


def noise(number, planes=PLANES):
    return (np.random.default_rng(number).random((planes, 8, 12)) < 0.3).astype(np.uint8)


def spike_folder(root, clip):
    return root / "GOPRO_Large_spike_seq" / "test" / clip / "spike"


def write_noise(root, part=slice(None), **info):
    """Two nested clips with random spikes, of which each file holds the planes `part`."""
    for clip in ("a/0", "a/1"):
        write_clip(root, clip, split="test", frames=FRAMES)
        for frame in range(FRAMES):
            write_spikes(spike_folder(root, clip) / f"{frame:06d}.dat", noise(frame)[part], PLANE)
    write_info(root, **info)
    return root


def same(a, b, reverse=False):
    frames = (
        [d.read_frames(i, 0, FRAMES, reverse=reverse)["spike"] for i in range(len(a.clips))]
        for d in (a, b)
    )
    return all(map(torch.equal, *frames))


@pytest.mark.parametrize("representation", REPRESENTATIONS, ids=lambda r: r["type"])
@pytest.mark.parametrize("center", ["file", "gt", 12])
def test_a_window_gives_what_files_of_these_planes_give_in_both_directions(
    tmp_path, representation, center
):
    whole = write_noise(tmp_path / "whole")  # gt_plane 12
    cut = write_noise(tmp_path / "cut", slice(5, 20), planes=15, gt_plane=7)
    window = build(whole, first=5, count=15, center=center, representation=representation)
    expected = build(cut, center=7 if center == 12 else center, representation=representation)
    assert same(window, expected) and same(window, expected, reverse=True)
    # symmetric: the bins in the opposite order
    if representation["type"] == "voxel" and center == "file":
        forward, backward = (
            window.read_frames(0, 1, 1, reverse=r)["spike"][0] for r in (False, True)
        )
        assert torch.equal(backward, forward.flip(0))


def test_a_window_reaches_to_the_last_plane_and_no_further(tmp_path):
    root = write_noise(tmp_path)
    for first, count in ((0, 24), (23, 1), (0, 1)):
        built = build(
            root, first=first, count=count, representation={"type": "voxel", "num_bins": 1}
        )
        expected = noise(2)[first : first + count].mean(axis=0)
        assert np.allclose(built.read_frames(0, 2, 1)["spike"][0, 0, ::2, ::2], expected)
    assert build(root, first=20).clips[0].exposures[0].own.count == 4  # to the end
    for first, count, words in (
        (1, 24, "needs planes 1 to 24"),
        (24, None, "needs planes 24 to 23"),
    ):
        with pytest.raises(
            DataError, match=f"frame 0 of clip a/0 {words}.*the file has 24 planes"
        ) as error:
            build(root, first=first, count=count)
        assert "a/1" in str(error.value) and "000000.dat" in str(error.value)
    with pytest.raises(DataError, match="12 is outside of 13 to 22"):
        build(root, first=13, count=10, center="gt")
    # The last file of a clip may be shorter.
    write_spikes(spike_folder(root, "a/1") / f"{FRAMES - 1:06d}.dat", noise(9)[:20], PLANE)
    build(root, first=2, count=18)
    with pytest.raises(DataError, match=r"needs planes 3 to 20.*has 20 planes"):
        build(root, first=3, count=18)


START, PERIOD = 7, 31.4
FIRSTS = [7, 38, 70, 101]  # 7 + i 31.4, rounded
EXPOSURE = {"start": START, "length": PLANES, "period": PERIOD}
EVEN = {"start": 0, "length": PLANES, "period": PLANES}


def join(root, place, firsts=FIRSTS, planes=None):
    """One file per clip, with ones between the exposures, which begin at planes `firsts`."""
    for clip in ("a/0", "a/1"):
        files = sorted(spike_folder(root, clip).iterdir())
        stream = np.ones((planes or firsts[-1] + PLANES, 8, 12), np.uint8)
        for first, path in zip(firsts, files, strict=True):
            stream[first : first + PLANES] = read_spikes(path, PLANE)
            path.unlink()
        write_spikes(root / "GOPRO_Large_spike_seq/test" / place.format(clip=clip), stream, PLANE)
        if not list(spike_folder(root, clip).iterdir()):
            spike_folder(root, clip).rmdir()


@pytest.mark.parametrize("place", ["{clip}/spike/long.dat", "{clip}/capture.npz"])
def test_one_file_of_a_clip_gives_what_a_file_per_frame_gives(tmp_path, place):
    parts = write_noise(tmp_path / "parts")
    joined = write_noise(tmp_path / "joined")
    join(joined, place)
    for center in ("gt", "file", 3):
        expected, found = (
            build(parts, center=center),
            build(joined, center=center, exposure=EXPOSURE),
        )
        assert same(expected, found) and same(expected, found, reverse=True)
    warned = check(section(joined, "test", spike={"type": "dat", "exposure": EXPOSURE})).warnings
    assert sum("from the start" in warning.what for warning in warned) == place.endswith(".npz")
    rows = {"a/1": [[first, PLANES] for first in FIRSTS], "a/0": EXPOSURE}
    (tmp_path / "table.json").write_text(json.dumps(rows))
    assert same(expected, build(joined, center=3, exposure=str(tmp_path / "table.json")))
    assert same(expected, build(joined, center=3, exposure=rows))


def test_a_cache_of_one_file_per_clip_gives_the_same_and_knows_its_kind(tmp_path):
    expected, root = build(write_noise(tmp_path / "parts"), center=3), write_noise(tmp_path)
    join(root, "{clip}/spike/long.npy")
    spike = {"type": "dat", "resize": "nearest", "center": 3, "representation": "voxel"}
    values = cached(section(root, "test", spike=spike | {"exposure": EXPOSURE}), tmp_path / "cache")
    cache, built = {"io_backend": values["io_backend"]}, build_dataset(values, "test", 0)
    assert (tmp_path / "cache/a/0/spike.u8").stat().st_size == (FIRSTS[-1] + PLANES) * 12
    assert same(built, expected)
    with pytest.raises(DataError, match=r"one spike file of clip a/0 \(spike.exposure\)"):
        build_dataset(section(root, "test", spike=spike) | cache, "test", 0)
    late = EXPOSURE | {"start": START + 1}
    with pytest.raises(DataError, match="frame 3 of clip a/0 needs planes 102 to 125"):
        build_dataset(section(root, "test", spike=spike | {"exposure": late}) | cache, "test", 0)


RELATIVE = {"type": "relative", "half_windows": [2], "num_bins": 3}


def expected_with_context(stream, first, context, reverse):
    """Channels of the exposure that begins at plane `first` of the whole stream, around its plane
    11.
    """
    start, stop = max(first - context, 0), min(first + PLANES + context, len(stream))
    return represent(
        "relative",
        stream[start:stop],
        first - start + 11,
        reverse=reverse,
        half_windows=[2],
        num_bins=3,
        half_exposure=10,
    )


@pytest.mark.parametrize("context", [5, 40])
def test_context_completes_the_intervals_at_the_ends_of_an_exposure(tmp_path, context):
    files = write_noise(tmp_path / "files")
    joined = write_noise(tmp_path / "joined")
    join(joined, "{clip}/spike/long.npy", range(0, FRAMES * PLANES, PLANES))
    spike = {"center": 11, "representation": RELATIVE}
    stream = np.concatenate([noise(i) for i in range(FRAMES)])
    near = min(context, PLANES)  # one file beside on each side
    for reverse in (False, True):
        found = build(files, context=context, **spike).read_frames(0, 0, FRAMES, reverse=reverse)[
            "spike"
        ]
        long = build(joined, context=context, exposure=EVEN, **spike)
        one_file = long.read_frames(0, 0, FRAMES, reverse=reverse)["spike"]
        for frame in range(FRAMES):
            for read, reach in ((found, near), (one_file, context)):
                expected = expected_with_context(stream, frame * PLANES, reach, reverse)
                assert np.array_equal(read[frame, :, ::2, ::2], expected)
    assert not torch.equal(
        found, build(files, **spike).read_frames(0, 0, FRAMES, reverse=True)["spike"]
    )


def test_context_is_the_same_from_a_cache_for_a_user_and_in_training(tmp_path):
    root = write_noise(tmp_path)
    spike = {
        "type": "dat",
        "resize": "nearest",
        "center": 11,
        "representation": RELATIVE,
        "context": 30,
    }
    values = section(root, "test", spike=spike)
    expected = build_dataset(values, "test", 0)[0]["spike"]
    assert torch.equal(
        build_dataset(cached(values, tmp_path / "cache"), "test", 0)[0]["spike"], expected
    )
    clip = user_clips(
        root / "GOPRO_Large/test/a/0/blur", spike_folder(root, "a/0"), spike_options=spike
    )[0]
    assert all(torch.equal(clip.frame(i)["spike"], expected[i]) for i in range(FRAMES))
    perturbed = {"type": "perturb", "threshold_prob": 1.0, "threshold_range": [1.0, 1.0]}
    frames, spikes = (
        str(root / name / "test") for name in ("GOPRO_Large", "GOPRO_Large_spike_seq")
    )
    train = section(root, "train", spike=spike, num_frame=FRAMES, camera=perturbed, gt_size=8)
    train |= {"dataroot_gt": frames, "dataroot_lq": frames, "dataroot_spike": spikes}
    assert build_dataset(train, "train", 0)[(0, 0)]["spike"].isfinite().all()


def test_files_beside_the_folders_are_the_spikes_of_the_clips_of_these_names(tmp_path):
    for clip in ("one", "two"):
        write_clip(tmp_path, clip, split="test", frames=2)
        shutil.rmtree(spike_folder(tmp_path, clip).parent)
        write_dat(
            spike_folder(tmp_path, clip).parents[1] / f"{clip}.dat",
            np.concatenate((noise(1), noise(2))),
        )
    write_info(tmp_path)
    found = build(tmp_path, exposure=EVEN, representation={"type": "raw", "window": 1})
    values = found.read_frames(1, 1, 1)["spike"][0, 0, ::2, ::2]
    assert np.array_equal(values, noise(2)[12])
    assert (
        doctor_of_data(
            tmp_path, test=section(tmp_path, "test", spike={"type": "dat", "exposure": EVEN})
        )
        == 0
    )


def test_exposures_outside_of_the_file_and_missing_ones_name_clip_frame_and_planes(tmp_path):
    root = write_noise(tmp_path)
    join(root, "{clip}/spike/long.dat")
    for exposure, words in (
        (
            EXPOSURE | {"start": START + 1},
            "frame 3 of clip a/1 needs planes 102 to 125 .*the file has 125 planes",
        ),
        (EXPOSURE | {"period": 31.6}, "frame 3 of clip a/0 needs planes 102 to 125"),
        (
            {"a/0": EXPOSURE, "a/1": [[0, 24], [30, 24], [101, 24]]},
            "lists 3 frames of clip a/1, which has a frame 3",
        ),
        ({"a/0": EXPOSURE}, "does not list clip a/1"),
    ):
        with pytest.raises(DataError, match=words):
            build(root, exposure=exposure)
    with pytest.raises(DataError, match=r"one spike file for 4 frames: spike\.exposure would say"):
        build(root)
    write_spikes(spike_folder(root, "a/0") / "second.dat", noise(0), PLANE)
    with pytest.raises(DataError, match=r"2 spike files: .*with spike\.exposure a clip has one"):
        build(root, exposure=EXPOSURE)


def test_an_exposure_of_a_wrong_form_is_refused_and_excludes_a_window_and_needs_its_file():
    wrong: tuple[Any, ...] = (
        {"start": 0, "length": 5}, {"start": -1, "length": 5, "period": 9}, [], {}, 5.5,
        {"start": 0, "length": 0.4, "period": 9}, {"start": 0, "length": "5", "period": 9},
        {"a/0": [[0, 5], [3]]}, {"a/0": []},
    )  # fmt: skip
    for exposure in wrong:
        with pytest.raises(OptionError, match=r"spike\.exposure is"):
            read_exposures(exposure)
    with pytest.raises(OptionError, match="exclude one another"):
        DatSpikes(DatasetInfo(), h=8, w=12, exposure=EXPOSURE, first=3)
    with pytest.raises(DataError, match="cannot read the exposures: No such file"):
        read_exposures("none.json")


def test_a_users_file_is_divided_by_exposures_or_evenly_within_the_window(tmp_path):
    root = write_noise(tmp_path)
    frames = root / "GOPRO_Large/test/a/0/blur"
    own = {"type": "dat", "center": "file", "rate": 1.0, "representation": "voxel"}
    known = own | {"h": 8, "w": 12}
    files = user_clips(frames, spike_folder(root, "a/0"), spike_options=known)[0]
    expected = [files.frame(i, r)["spike"] for i in range(FRAMES) for r in (False, True)]
    together = np.concatenate([noise(9)[:5], *(noise(i) for i in range(FRAMES)), noise(9)[:3]])
    for name in ("even.npy", "even.npz"):
        write_spikes(tmp_path / name, together, PLANE)
    join(root, "{clip}/spike/long.dat")
    evenly = own | {"first": 5, "count": FRAMES * PLANES}  # arrays need no size
    for path, options in (
        (spike_folder(root, "a/0") / "long.dat", known | {"exposure": EXPOSURE}),
        (spike_folder(root, "a/0"), known | {"exposure": EXPOSURE}),
        (tmp_path / "even.npy", evenly), (tmp_path / "even.npz", evenly),
    ):  # fmt: skip
        clip = user_clips(frames, path, spike_options=options)[0]
        found = [clip.frame(i, r)["spike"] for i in range(FRAMES) for r in (False, True)]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    write_noise(tmp_path / "files")
    window = {
        "type": "dat",
        "h": 8,
        "w": 12,
        "resize": "nearest",
        "first": 3,
        "count": 9,
        "center": 7,
    }
    window["representation"] = {"type": "raw", "window": 3}
    clip = user_clips(frames, spike_folder(tmp_path / "files", "a/0"), spike_options=window)[0]
    assert np.array_equal(clip.frame(2)["spike"][:, ::2, ::2], noise(2)[6:9])
    late = known | {"exposure": EXPOSURE | {"start": START + 1}}
    with pytest.raises(DataError, match="frame 3 of clip 0 needs planes 102 to 125 "):
        user_clips(frames, spike_folder(root, "a/0"), spike_options=late)


def calibration(path, offset):
    values = {
        "format": 1,
        "matrix": [[2, 0, 0.5], [0, 2, 0.5]],
        "spike_size": [8, 12],
        "rgb_size": [16, 24],
    }
    path.write_text(json.dumps(values | {"time_offset_planes": offset}))
    return str(path)


def test_the_time_offset_of_a_calibration_moves_the_planes(tmp_path):
    found = []
    for number, offset in enumerate((0.0, 2.8, -3.0)):
        root = write_noise(tmp_path / str(number))
        join(root, "{clip}/spike/long.dat", [first + round(offset) for first in FIRSTS], planes=160)
        path = calibration(root / "calibration.json", offset)
        built = build(root, exposure=EXPOSURE, calibration=path, resize="bilinear", center="gt")
        found.append(built.read_frames(0, 0, FRAMES)["spike"])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_the_time_offset_moves_the_middle_of_whole_files_and_of_even_parts(tmp_path):
    root, raw = write_noise(tmp_path), {"type": "raw", "window": 3}
    paths = {offset: calibration(root / f"{offset}.json", offset) for offset in (0, 5, -5, 14)}
    # Planes 1 to 23, of which plane 12 is the middle; the file lacks those after 23 and before 0.
    for offset, center in ((0, 12), (5, 17), (-5, 7)):
        expected = build(root, first=1, calibration=paths[0], center=center, representation=raw)
        assert same(
            build(root, first=1, calibration=paths[offset], representation=raw), expected
        ), offset
    with pytest.raises(DataError, match=r"plane of the sharp frame 11\.5 is outside of 0 to 9"):
        build(root, calibration=paths[14], representation=raw)
    with pytest.raises(
        DataError, match=r"needs planes 14 to 37 \(spike\.first, spike\.count, time offset 14\)"
    ):
        build(root, calibration=paths[14], count=24, representation=raw)
    write_spikes(tmp_path / "even.npy", np.concatenate([noise(i) for i in range(FRAMES)]), PLANE)
    known = {"type": "dat", "h": 8, "w": 12, "representation": raw}
    frames = root / "GOPRO_Large/test/a/0/blur"
    for offset in (5, -5):
        moved, number = (
            user_clips(
                frames,
                tmp_path / "even.npy",
                spike_options=known | {"calibration": path, "center": center},
            )[0]
            for path, center in ((paths[offset], "file"), (paths[0], 12 + offset))
        )
        for frame in range(FRAMES):
            assert torch.equal(moved.frame(frame)["spike"], number.frame(frame)["spike"]), (
                offset,
                frame,
            )
