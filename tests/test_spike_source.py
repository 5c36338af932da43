import numpy as np
import pytest
import torch

from data.augment import Augment
from data.clip import Exposure, Piece
from data.clip_reader import dataset_clips
from data.preflight import preflight
from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import IntegrateAndFire, to_linear
from data.spike_grid import ScaledGrid
from data.spike_info import DatasetInfo
from data.spike_source import DatSpikes
from tests.clip_files import build, resolved, section, write_clip, write_info
from utils.errors import OptionError
from utils.options.models import DatasetsOptions


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    root = tmp_path_factory.mktemp("clips")
    write_clip(root, "clip9", split="test", frames=2, seed=9)
    write_info(root)
    return root


REVERSIBLE = [
    {"type": "voxel", "num_bins": 3}, {"type": "tfp", "half_window": 2, "offsets": [-3, 1]},
    {"type": "tfi", "half_window": 6, "offsets": [0, 4]}, {"type": "raw", "window": 5},
    {"type": "encoding25", "num_windows": 2, "spacing": 3, "pad": "edge"},
]  # fmt: skip


@pytest.mark.parametrize("representation", REVERSIBLE, ids=lambda r: r["type"])
def test_frames_in_reversed_time_are_those_of_files_played_backwards(tmp_path, representation):
    # The same clip twice: as recorded, and as a camera that saw the scene backwards would have stored it.
    geometry = SpikeGeometry(8, 12)
    for root in (tmp_path / "a", tmp_path / "b"):
        write_clip(root, "clip0", split="test", frames=3)
    # Where the time of a representation is not that of its plane, the reversed plane is the one before or after.
    shift = {"tfi": -1, "encoding25": 1}.get(representation["type"], 0)
    write_info(tmp_path / "a", gt_plane=9)
    write_info(tmp_path / "b", gt_plane=24 - 1 - 9 + shift)
    for number in range(3):
        path = f"GOPRO_Large_spike_seq/test/clip0/spike/{number:06d}.dat"
        stream = (np.random.default_rng(number).random((24, 8, 12)) < 0.3).astype(np.uint8)
        write_spikes(tmp_path / "a" / path, stream, geometry)
        write_spikes(tmp_path / "b" / path, stream[::-1], geometry)
    spike = {"type": "dat", "representation": representation}
    recorded, backwards = (build(tmp_path / name, "test", spike=spike) for name in ("a", "b"))

    assert torch.equal(recorded.read_frames(0, 0, 3, reverse=True)["spike"], backwards[0]["spike"])
    one = dataset_clips(recorded)[0].frame(1, reverse=True)
    assert torch.equal(one["spike"], backwards[0]["spike"][1]) and torch.equal(one["lq"], recorded[0]["lq"][1])


def test_voxel_bins_follow_the_centre_and_keys_without_effect_are_refused(clips):
    spike = {"type": "dat", "representation": {"type": "voxel", "num_bins": 2}}
    at_file, at_6 = (build(clips, "test", spike={**spike, "center": c})[0]["spike"] for c in ("file", 6))
    assert at_file[:, 1].max() == 0 < at_6[:, 1].max()  # all ones lie in the first half of the file
    raw, spread = {"type": "raw", "window": 3}, {"type": "encoding25", "num_windows": 3, "pad": "edge"}
    for key, value, representation in (
        ("gamma", 2.2, raw), ("rate", "match", raw), ("light", "linear", raw), ("center", 5, spread),
        ("center", 5, {"type": "tfp", "half_window": 2, "num_bins": 3}), ("context", 8, "voxel"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=rf"spike\.{key} has no effect"):
            build(clips, "test", spike={"type": "dat", key: value, "representation": representation})


@pytest.mark.parametrize("light", ["linear", "display"])
@pytest.mark.parametrize(
    "representation", [{"type": "relative", "half_windows": [60]}, {"type": "voxel", "num_bins": 1}]
)
def test_the_picture_of_the_sharp_instant_has_the_display_values_of_the_scene(light, representation):
    scene = np.linspace(0.2, 1.0, 64, dtype=np.float32).reshape(8, 8)
    seen = scene if light == "display" else to_linear(scene)
    stream = IntegrateAndFire(8, 8, rate=0.6, rng=np.random.default_rng(0)).run([seen] * 201)
    options = {"light": light, "gamma": 1.6, "center": "file", "representation": representation}
    spikes = DatSpikes(DatasetInfo(), h=8, w=8, **options)
    channels = spikes.represent(stream, 100, rate=0.6)
    picture = spikes.sharp_image(channels, Exposure(Piece("", 0, 201), (), 0, 0, 100, 0))
    assert np.abs(picture / picture.max() - scene).max() < 0.05


def test_light_decides_what_match_and_gamma_do(tmp_path):
    write_clip(tmp_path, "clip0", split="test", frames=1)
    write_info(tmp_path, rate=None, light=None)
    spike = {"type": "dat", "rate": "match", "representation": {"type": "voxel", "num_bins": 1}, "center": "file"}
    source = {light: build(tmp_path, "test", spike={**spike, "light": light}).spikes for light in ("linear", "display")}
    # A camera of rate 0.6 that looks at an even grey, as light and as display value.
    grey = np.full((4, 4, 3), 128, np.uint8)
    for light, seen in (("linear", (128 / 255) ** 2.2), ("display", 128 / 255)):
        stream = np.zeros((1000, 2, 2), np.uint8)
        stream[: round(600 * seen)] = 1
        window = ScaledGrid(SpikeGeometry(2, 2), (4, 4), 0).window(Augment.whole((4, 4)))
        rate = source[light].rate_of(stream, grey, window)
        assert rate == pytest.approx(0.6, abs=0.002)
        # gamma 1: linear light, whatever the sensor integrated; gamma 2.2: the picture's own values.
        for gamma, value in ((1.0, (128 / 255) ** 2.2), (2.2, 128 / 255)):
            source[light].gamma = gamma
            assert source[light].represent(stream, 499.5, rate).mean() == pytest.approx(value, abs=0.002)
    write_info(tmp_path, light="display")
    with pytest.raises(OptionError, match=r"spike\.light is linear, dataset.json has display"):
        build(tmp_path, "test", spike={**spike, "light": "linear"})


def test_the_check_of_the_data_tells_light_and_rates_that_nobody_states(tmp_path, caplog):
    # The test clips' spikes are proportional to the values of their pictures.
    write_clip(tmp_path, "clip0", split="test", frames=2)
    datasets = DatasetsOptions(test=resolved(section(tmp_path, "test")))
    for stated, words in ((None, ["look like display light of rate 1.7", "firing rate at full light"]), ("linear", [])):
        write_info(tmp_path, light=stated, rate=1.0 if stated else None, made_for=str(stated))
        caplog.clear()
        preflight(datasets, tmp_path / f"runs {stated}")
        assert all(word in caplog.text for word in words) and (words or "WARNING" not in caplog.text), caplog.text


def test_a_camera_whose_rate_is_known_is_refused_where_no_rate_is_divided_out(clips):
    camera = {"type": "perturb", "threshold_prob": 1.0, "known_rate": True}
    for spike in ({"type": "dat", "rate": "match"}, {"type": "dat", "representation": {"type": "raw", "window": 3}}):
        with pytest.raises(OptionError, match=r"camera\.known_rate has no effect"):
            build(clips, "test", spike=spike, camera=camera)
