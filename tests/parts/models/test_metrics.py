"""models/metrics.py, models/restore/scores.py and lpips.py: the scores of restored frames.

PSNR and SSIM are compared with the results of scikit-image, on a smooth random picture and a noisy
copy of it. LPIPS is compared with a number that the published package gave.
"""

import math

import numpy as np
import pytest
import torch

from models.metrics import (
    COLUMNS,
    METRICS,
    METRICS_OF_TESTS,
    Metric,
    add_scores,
    choose_metrics,
    metric,
    psnr,
    rgb_to_y,
    ssim,
)
from models.restore.lpips import RELUS, Lpips
from models.restore.scores import collect, score_table
from utils.errors import CheckpointError, DataError, OptionError
from utils.image import tensor_to_uint8

# The largest accepted difference from scikit-image. Both programs compute in float64.
EXACT = 1e-9


def pair(height=61, width=48, noise=12):
    """Return a smooth random picture (H, W, 3) uint8, and the same picture with noise."""
    rng = np.random.default_rng(0)
    smooth = np.cumsum(rng.normal(0, 4, (height, width, 3)), axis=1) + 120
    noisy = smooth + rng.normal(0, noise, smooth.shape)
    return to_uint8(smooth), to_uint8(noisy)


def to_uint8(values):
    """Round values to whole numbers from 0 to 255."""
    return np.clip(np.round(values), 0, 255).astype(np.uint8)


# ---- The metrics of a user ----


def test_a_metric_with_the_name_of_lpips_is_refused(monkeypatch):
    # The metric is registered in copies of both tables. After the test, monkeypatch brings the
    # tables without this metric back.
    monkeypatch.setattr(METRICS, "_parts", dict(METRICS._parts))
    monkeypatch.setattr("models.metrics.COLUMNS", dict(COLUMNS))
    metric("lpips", title="L", digits=1)(lambda restored, sharp: 0.0)

    with pytest.raises(OptionError, match="register the metric by another name"):
        choose_metrics((), [])


# ---- PSNR and SSIM ----

# Standard deviations of the noise of the second picture: hardly any noise, and much noise.
NOISE = [1, 80]
# Arguments of scikit-image for the window that the paper on SSIM describes.
SSIM_WINDOW = {
    "gaussian_weights": True,
    "sigma": 1.5,
    "use_sample_covariance": False,
    "data_range": 255,
}


@pytest.mark.parametrize("noise", NOISE)
def test_psnr_agrees_with_scikit_image(noise):
    # This import takes two seconds. It is not at the top, because every worker of pytest imports
    # every test file.
    from skimage.metrics import peak_signal_noise_ratio

    a, b = pair(noise=noise)  # a picture, and the picture with noise

    expected = peak_signal_noise_ratio(a, b, data_range=255)
    assert psnr(a, b) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("noise", NOISE)
def test_ssim_agrees_with_scikit_image(noise):
    from skimage.metrics import structural_similarity

    a, b = pair(noise=noise)

    expected = structural_similarity(a, b, channel_axis=2, **SSIM_WINDOW)
    assert ssim(a, b) == pytest.approx(expected, abs=EXACT)


def test_luma_agrees_with_scikit_image():
    from skimage.color import rgb2ycbcr

    a, _ = pair()

    assert rgb_to_y(a) == pytest.approx(rgb2ycbcr(a)[..., 0], abs=EXACT)


@pytest.mark.parametrize("noise", NOISE)
def test_the_scores_of_luma_agree_with_scikit_image(noise):
    from skimage.color import rgb2ycbcr
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    a, b = pair(noise=noise)
    scores: dict = {}

    add_scores(scores, "restored", a, b, choose_metrics(METRICS_OF_TESTS, ()))

    a_y = rgb2ycbcr(a)[..., 0]
    b_y = rgb2ycbcr(b)[..., 0]
    expected_psnr = peak_signal_noise_ratio(a_y, b_y, data_range=255)
    expected_ssim = structural_similarity(a_y, b_y, **SSIM_WINDOW)
    found = scores["restored"]
    assert found["psnr_y"][0] == pytest.approx(expected_psnr, abs=EXACT)
    assert found["ssim_y"][0] == pytest.approx(expected_ssim, abs=EXACT)


BLACK = np.zeros((16, 16, 3), np.uint8)


def test_an_error_of_one_level_has_a_psnr_of_48_db():
    # The PSNR is 20 log10(largest value / root of the mean squared error). Here it is 48.13 dB.
    assert psnr(BLACK, BLACK + 1) == pytest.approx(20 * math.log10(255), abs=1e-12)


def test_equal_frames_have_an_infinite_psnr():
    assert psnr(BLACK, BLACK) == math.inf


def test_equal_frames_have_an_ssim_of_1():
    assert ssim(BLACK, BLACK) == 1.0


def test_frames_of_different_sizes_are_refused():
    a, b = pair()

    with pytest.raises(DataError, match="different sizes"):
        psnr(a, b[1:])


def test_frames_smaller_than_the_window_of_ssim_are_refused():
    a, b = pair()

    with pytest.raises(DataError, match="11x11"):
        ssim(a[:10], b[:10])


# ---- Frames and tables ----


def test_values_of_a_frame_are_clamped_then_rounded():
    # The values times 255 are -51, 0, 0.4, 0.6, 255 and 434.
    values = torch.tensor([-0.2, 0.0, 0.4 / 255, 0.6 / 255, 1.0, 1.7])
    image = values.reshape(1, 2, 3).expand(3, 2, 3)  # (C, H, W), three equal channels

    assert tensor_to_uint8(image)[..., 0].tolist() == [[0, 0, 0], [1, 255, 255]]


def test_the_channels_of_a_uint8_frame_come_last():
    # (B, T, C, H, W) becomes (B, T, H, W, C).
    assert tensor_to_uint8(torch.zeros(2, 5, 3, 8, 9)).shape == (2, 5, 8, 9, 3)


def test_a_frame_that_is_not_finite_scores_nan():
    a, b = pair()
    metrics = choose_metrics(("psnr", "ssim"), ())
    scores = {}

    add_scores(scores, "restored", a, b, metrics)
    add_scores(scores, "restored", None, b, metrics)  # None: the frame is not finite

    of_first, of_second = scores["restored"]["psnr"]
    assert of_first == psnr(a, b)
    assert math.isnan(of_second)


def test_a_metric_that_computes_in_place_changes_no_frame():
    def difference(restored, sharp):
        restored -= sharp
        return restored.mean()

    a, b = pair()
    before = a.copy()

    add_scores({}, "restored", a, b, [Metric("own", difference, on_luma=False)])

    assert np.array_equal(a, before)


@pytest.mark.parametrize("score", [None, np.zeros((2, 2)), "good"], ids=["None", "array", "text"])
def test_a_metric_that_returns_no_number_is_refused(score):
    a, b = pair()
    own = Metric("own", lambda restored, sharp: score, on_luma=False)

    with pytest.raises(OptionError, match='the metric "own" returns'):
        add_scores({}, "restored", a, b, [own])


def test_only_the_chosen_metrics_are_computed():
    a, b = pair()
    scores = {}

    add_scores(scores, "restored", a, b, choose_metrics(("psnr", "ssim"), ()))

    assert list(scores["restored"]) == ["psnr", "ssim"]


@pytest.mark.parametrize(
    ("restored_error", "input_error", "gain"),
    [
        pytest.param(0, 0, "+0.00", id="both without error"),
        pytest.param(0, 1, "+inf", id="restored without error"),
        pytest.param(1, 0, "-inf", id="input without error"),
        pytest.param(1, 1, "+0.00", id="equal errors"),
    ],
)
def test_the_gain_of_frames_without_error_is_a_number(restored_error, input_error, gain):
    # The gain is the PSNR of the restored frame minus the PSNR of the input frame. A frame without
    # error has an infinite PSNR, and infinity minus infinity would be NaN.
    sharp = np.full((16, 16, 3), 100, np.uint8)
    metrics = choose_metrics(METRICS_OF_TESTS, ())
    scores: dict = {}
    add_scores(scores, "restored", sharp + np.uint8(restored_error), sharp, metrics)
    add_scores(scores, "input", sharp + np.uint8(input_error), sharp, metrics)

    results = collect([{"name": "a", "frames": 1, "per_frame": scores}], expected=1)
    header, rows = score_table(results)

    column = header.index("gain dB")
    assert {row[column] for row in rows} == {gain}


# ---- LPIPS ----


@pytest.fixture(scope="module")
def lpips_files(tmp_path_factory):
    """Give two files that stand in for the published weights: AlexNet, and the linear layers.

    The tensors in these files have the published names, and random values.
    """
    # This import loads torch's compiler. It is not at the top, because every worker of pytest
    # imports every test file.
    import torchvision

    folder = tmp_path_factory.mktemp("lpips")
    generator = torch.Generator().manual_seed(0)
    # LPIPS uses only the convolutions of AlexNet. They are in the first 12 layers.
    features = torchvision.models.alexnet(weights=None).features[:12]
    backbone = {}
    for name, tensor in features.state_dict().items():
        backbone[f"features.{name}"] = 0.05 * torch.randn(tensor.shape, generator=generator)
    backbone["classifier.1.bias"] = torch.zeros(3)  # a tensor that LPIPS does not use
    # RELUS has the layers of AlexNet whose output is compared, each with its number of channels.
    linear = {}
    for number, channels in enumerate(RELUS.values()):
        weight = torch.rand(1, channels, 1, 1, generator=generator)
        linear[f"lin{number}.model.1.weight"] = weight

    torch.save(backbone, folder / "alexnet.pth")
    torch.save(linear, folder / "alex.pth")
    return [folder / "alexnet.pth", folder / "alex.pth"]


@pytest.fixture
def wave_pair():
    """Give a picture (72, 80, 3) of ramps in [0, 255], and the same picture with waves on it."""
    rows, columns = torch.meshgrid(torch.arange(72.0), torch.arange(80.0), indexing="ij")
    a = torch.stack((rows / 72, columns / 80, (rows + columns) % 16 / 16))
    b = (a + 0.2 * torch.sin(rows / 3)).clamp(0, 1)
    return (255 * a).permute(1, 2, 0).numpy(), (255 * b).permute(1, 2, 0).numpy()


# The distance of the pictures of `wave_pair`. The package lpips 0.1.4 computed it with the weights
# of `lpips_files`. The tests accept a difference of 1e-4, because both programs compute in float32.
PUBLISHED = 0.218428


@pytest.mark.parametrize("is_swapped", [False, True])
def test_the_distance_equals_the_published_code(lpips_files, wave_pair, is_swapped):
    a, b = wave_pair
    net = Lpips(lpips_files)

    found = net.score(b, a) if is_swapped else net.score(a, b)

    assert found["lpips"] == pytest.approx(PUBLISHED, rel=1e-4)


def test_the_two_files_may_be_given_in_any_order(lpips_files, wave_pair):
    net = Lpips(lpips_files[::-1])

    assert net.score(*wave_pair)["lpips"] == pytest.approx(PUBLISHED, rel=1e-4)


def test_equal_frames_have_no_distance(lpips_files):
    image = np.zeros((64, 64, 3), np.uint8)

    assert Lpips(lpips_files).score(image, image) == {"lpips": 0.0}


def test_frames_of_other_brightness_have_a_distance(lpips_files):
    image = np.zeros((64, 64, 3), np.uint8)

    assert Lpips(lpips_files).score(image, image + 90)["lpips"] > 0


def test_a_missing_file_is_named_by_its_first_tensor(lpips_files):
    with pytest.raises(CheckpointError, match=r"lack lin0\.model\.1\.weight"):
        Lpips(lpips_files[:1])


def test_a_tensor_of_another_shape_is_named_with_both_shapes(lpips_files, tmp_path):
    weights = torch.load(lpips_files[1])
    weights["lin0.model.1.weight"] = torch.zeros(1, 96, 1, 1)  # as in LPIPS with another network
    torch.save(weights, tmp_path / "other.pth")

    with pytest.raises(CheckpointError, match=r"lin0\.model\.1\.weight") as refused:
        Lpips([lpips_files[0], tmp_path / "other.pth"])

    assert "(1, 96, 1, 1)" in refused.value.what
    assert "(1, 64, 1, 1)" in refused.value.expected
    assert refused.value.do
