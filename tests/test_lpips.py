import numpy as np
import pytest
import torch

from models.restore.lpips import TAPS, Lpips
from utils.errors import CheckpointError


def save_weights(folder):
    """Seeded stand-ins for the two published files, under their names of tensors."""
    generator = torch.Generator().manual_seed(0)
    shapes = {k: v.shape for k, v in Lpips().features.state_dict().items()}
    backbone = {f"features.{k}": 0.05 * torch.randn(shape, generator=generator) for k, shape in shapes.items()}
    lin = {f"lin{i}.model.1.weight": torch.rand(1, c, 1, 1, generator=generator) for i, c in enumerate(TAPS.values())}
    torch.save({**backbone, "classifier.1.bias": torch.zeros(3)}, folder / "alexnet.pth")
    torch.save(lin, folder / "alex.pth")
    return [folder / "alexnet.pth", folder / "alex.pth"]


def test_the_distance_is_that_of_the_published_code(tmp_path):
    net = Lpips.load(save_weights(tmp_path)[::-1])
    rows, cols = torch.meshgrid(torch.arange(72.0), torch.arange(80.0), indexing="ij")
    a = torch.stack((rows / 72, cols / 80, (rows + cols) % 16 / 16))[None]
    b = (a + 0.2 * torch.sin(rows / 3)).clamp(0, 1)

    # Computed by the package lpips 0.1.4 with these weights.
    assert net(a, b).item() == pytest.approx(0.218428, rel=1e-4)
    assert net(b, a).item() == pytest.approx(0.218428, rel=1e-4)
    assert net(a, a).item() == 0


def test_uint8_images_and_missing_weights(tmp_path):
    files = save_weights(tmp_path)
    image = np.zeros((64, 64, 3), np.uint8)
    assert Lpips.load(files).score(image, image) == {"lpips": 0.0}
    assert Lpips.load(files).score(image, image + 90)["lpips"] > 0
    with pytest.raises(CheckpointError, match=r"lack lin0\.model\.1\.weight"):
        Lpips.load(files[:1])
