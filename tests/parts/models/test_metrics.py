import math

import numpy as np
import pytest
import torch

from models.metrics import OF_TESTS, add_scores, chosen_metrics, psnr, rgb_to_y, ssim
from models.restore.lpips import TAPS, Lpips
from models.restore.scores import collect, score_table
from utils.errors import CheckpointError, DataError
from utils.image import tensor_to_uint8


def pair(height=61, width=48, noise=12, seed=0):
    rng = np.random.default_rng(seed)
    smooth = np.cumsum(rng.normal(0, 4, (height, width, 3)), axis=1) + 120
    noisy = smooth + rng.normal(0, noise, smooth.shape)
    return tuple(np.clip(np.round(x), 0, 255).astype(np.uint8) for x in (smooth, noisy))


@pytest.mark.parametrize("noise", [1, 80])
def test_psnr_and_ssim_agree_with_scikit_image(noise):
    # Every worker reads every file of tests, and scipy takes two seconds to import.
    from skimage.color import rgb2ycbcr
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    a, b = pair(noise=noise)
    same_window = {
        "gaussian_weights": True,
        "sigma": 1.5,
        "use_sample_covariance": False,
        "data_range": 255,
    }
    assert psnr(a, b) == pytest.approx(peak_signal_noise_ratio(a, b, data_range=255), abs=1e-9)
    assert ssim(a, b) == pytest.approx(
        structural_similarity(a, b, channel_axis=2, **same_window), abs=1e-9
    )
    a_y, b_y = rgb2ycbcr(a)[..., 0], rgb2ycbcr(b)[..., 0]
    scores: dict = {}
    add_scores(scores, "restored", a, b, chosen_metrics(OF_TESTS, ()))
    assert rgb_to_y(a) == pytest.approx(a_y, abs=1e-9)
    assert scores["restored"]["psnr_y"][0] == pytest.approx(
        peak_signal_noise_ratio(a_y, b_y, data_range=255), abs=1e-9
    )
    assert scores["restored"]["ssim_y"][0] == pytest.approx(
        structural_similarity(a_y, b_y, **same_window), abs=1e-9
    )


def test_known_scores_and_different_sizes_are_refused():
    a = np.zeros((16, 16, 3), np.uint8)
    assert psnr(a, a + 1) == pytest.approx(20 * math.log10(255), abs=1e-12)
    assert psnr(a, a) == math.inf
    assert ssim(a, a) == 1.0
    a, b = pair()
    with pytest.raises(DataError, match="different sizes"):
        psnr(a, b[1:])
    with pytest.raises(DataError, match="11x11"):
        ssim(a[:10], b[:10])


def test_uint8_is_clamped_and_rounded():
    image = (
        torch.tensor([-0.2, 0.0, 0.4 / 255, 0.6 / 255, 1.0, 1.7]).reshape(1, 2, 3).expand(3, 2, 3)
    )
    assert tensor_to_uint8(image)[..., 0].tolist() == [[0, 0, 0], [1, 255, 255]]
    assert tensor_to_uint8(torch.zeros(2, 5, 3, 8, 9)).shape == (2, 5, 8, 9, 3)


def test_a_frame_that_is_not_finite_scores_nan():
    a, b = pair()
    scores = {}
    for image in (a, None):
        add_scores(scores, "restored", image, b, chosen_metrics(("psnr", "ssim"), ()))
    assert scores["restored"]["psnr"][0] == psnr(a, b) and math.isnan(scores["restored"]["psnr"][1])
    assert list(scores["restored"]) == ["psnr", "ssim"]


def save_weights(folder):
    """Seeded stand-ins for the two published files, under their names of tensors."""
    import torchvision  # imports torch's compiler, and every worker reads every file of tests

    generator = torch.Generator().manual_seed(0)
    features = torchvision.models.alexnet(weights=None).features[:12]
    shapes = {k: v.shape for k, v in features.state_dict().items()}
    backbone = {
        f"features.{k}": 0.05 * torch.randn(shape, generator=generator)
        for k, shape in shapes.items()
    }
    lin = {
        f"lin{i}.model.1.weight": torch.rand(1, c, 1, 1, generator=generator)
        for i, c in enumerate(TAPS.values())
    }
    torch.save({**backbone, "classifier.1.bias": torch.zeros(3)}, folder / "alexnet.pth")
    torch.save(lin, folder / "alex.pth")
    return [folder / "alexnet.pth", folder / "alex.pth"]


def test_the_distance_is_that_of_the_published_code(tmp_path):
    files = save_weights(tmp_path)
    net = Lpips(files[::-1])
    rows, cols = torch.meshgrid(torch.arange(72.0), torch.arange(80.0), indexing="ij")
    a = torch.stack((rows / 72, cols / 80, (rows + cols) % 16 / 16))
    b = (a + 0.2 * torch.sin(rows / 3)).clamp(0, 1)
    a, b = ((255 * image).permute(1, 2, 0).numpy() for image in (a, b))
    # Computed by the package lpips 0.1.4 with these weights.
    assert net.score(a, b)["lpips"] == pytest.approx(0.218428, rel=1e-4)
    assert net.score(b, a)["lpips"] == pytest.approx(0.218428, rel=1e-4)
    image = np.zeros((64, 64, 3), np.uint8)
    assert (
        net.score(image, image) == {"lpips": 0.0}
        and Lpips(files).score(image, image + 90)["lpips"] > 0
    )
    with pytest.raises(CheckpointError, match=r"lack lin0\.model\.1\.weight"):
        Lpips(files[:1])


@pytest.mark.parametrize(
    ("restored", "given", "gain"),
    [(0, 0, "+0.00"), (0, 1, "+inf"), (1, 0, "-inf"), (1, 1, "+0.00")],
)
def test_the_gain_of_frames_without_error_is_a_number(restored, given, gain):
    sharp = np.full((16, 16, 3), 100, np.uint8)
    scores: dict = {}
    metrics = chosen_metrics(OF_TESTS, ())
    add_scores(scores, "restored", sharp + np.uint8(restored), sharp, metrics)
    add_scores(scores, "input", sharp + np.uint8(given), sharp, metrics)
    results = collect([{"name": "a", "frames": 1, "per_frame": scores}], 1)
    header, rows = score_table(results)
    assert {row[header.index("gain dB")] for row in rows} == {gain}
