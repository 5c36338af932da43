import numpy as np
import pytest

from data.augment import Augment
from data.preflight import preflight
from data.spike.formats import SpikeGeometry
from data.spike_grid import ScaledGrid
from tests.clip_files import build, resolved, section, write_clip, write_clips, write_info
from utils.errors import OptionError
from utils.options.models import DatasetsOptions


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return write_clips(tmp_path_factory.mktemp("clips"), "clip9", split="test", frames=2, seed=9)


def test_keys_without_effect_are_refused(clips):
    raw, spread = {"type": "raw", "window": 3}, {"type": "encoding25", "num_windows": 3, "pad": "edge"}
    for key, value, representation in (
        ("gamma", 2.2, raw), ("rate", "match", raw), ("light", "linear", raw), ("center", 5, spread),
        ("center", 5, {"type": "tfp", "half_window": 2, "num_bins": 3}), ("context", 8, "voxel"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=rf"spike\.{key} has no effect"):
            build(clips, "test", spike={"type": "dat", key: value, "representation": representation})
    camera = {"type": "perturb", "threshold_prob": 1.0, "known_rate": True}  # where no rate is divided out
    for spike in ({"type": "dat", "rate": "match"}, {"type": "dat", "representation": raw}):
        with pytest.raises(OptionError, match=r"camera\.known_rate has no effect"):
            build(clips, "test", spike=spike, camera=camera)


def test_light_decides_what_match_and_gamma_do(tmp_path):
    write_clip(tmp_path, "clip0", split="test", frames=1)
    write_info(tmp_path, rate=None, light=None)
    spike = {"type": "dat", "rate": "match", "representation": {"type": "voxel", "num_bins": 1}, "center": "file"}
    source = {
        light: build(tmp_path, "test", spike={**spike, "light": light}).clips[0].spikes
        for light in ("linear", "display")
    }
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
