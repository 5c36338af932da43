"""Learning without sharp frames: what the loss says of a known scene, and the runs that it makes possible."""

import pytest
import torch
import torch.nn.functional as F

from models.losses import ReblurLoss, to_display
from tests.train_files import history, train, write_options

K = 5
LOSS = {"G_reblur_spike_pixel": 2}


def scene():
    """A bright bar that moves by 2 pixels from instant to instant, as linear light: instants, blurry frame, rates."""
    light = torch.full((1, 1, K, 3, 16, 32), 0.1)
    for k in range(K):
        light[:, :, k, :, :, 8 + 2 * k : 12 + 2 * k] = torch.tensor([0.5, 0.6, 0.4])[:, None, None]
    luma = (light * ReblurLoss(**LOSS).luma).sum(-3).flatten(0, 1)
    rates = F.interpolate(F.avg_pool2d(luma, 2), luma.shape[-2:], mode="bilinear").unflatten(0, (1, 1))
    return to_display(light).flatten(2, 3), to_display(light.mean(2)), rates


def total(restored, lq, rates, **weights):
    return sum(ReblurLoss(**LOSS, **weights)(restored, lq, rates).values())


def test_the_true_instants_have_no_loss_and_neither_threshold_nor_gain_counts():
    instants, blurry, rates = scene()
    terms = ReblurLoss(**LOSS)(instants, blurry, rates)
    assert float(terms["reblur"]) < 1e-3 and float(terms["spikes"]) < 1e-3
    still = blurry.repeat(1, 1, K, 1, 1)
    assert float(ReblurLoss(**LOSS)(still, blurry, rates)["spikes"]) > 0.05
    assert total(still, blurry, 0.25 * rates) == pytest.approx(float(total(still, blurry, rates)), rel=1e-4)


def test_the_loss_leads_from_the_blurry_frame_to_the_sharp_instants():
    instants, blurry, rates = scene()
    start = blurry.repeat(1, 1, K, 1, 1)
    restored = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([restored], lr=0.03)
    for _ in range(60):
        optimizer.zero_grad()
        total(restored, blurry, rates).backward()
        optimizer.step()
    before, after = ((x - instants).square().mean().sqrt() for x in (start, restored))
    assert after < 0.5 * before


def test_the_blurry_frame_may_be_a_mean_of_display_values():
    instants, _, rates = scene()
    blurry = instants.unflatten(2, (K, 3)).mean(2)
    terms = {light: ReblurLoss(G_reblur_light=light)(instants, blurry, rates) for light in ("display", "linear")}
    assert float(terms["display"]["reblur"]) < 1e-3 < 0.01 < float(terms["linear"]["reblur"])


WITHOUT_GT = ("datasets.train.dataroot_gt=null", "train.G_lossfn_type=reblur", "netG.out_instants=3",
              "datasets.train.rate_windows=3")  # fmt: skip


def test_a_run_without_sharp_frames_trains_and_is_validated(tmp_path):
    options = write_options(tmp_path)
    result = train(options, *WITHOUT_GT, "train.total_iter=2")
    assert result.exit_codes == [0], result.text
    found = history(options)
    terms = {name for name in found if name.startswith("train/loss_")}
    assert terms == {"train/loss_reblur", "train/loss_spikes", "train/loss_colour"} and found["val/psnr"]
