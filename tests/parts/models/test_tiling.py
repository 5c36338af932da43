import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from models.restore.tiling import Restorer, smaller, stream_clip
from tests.helpers.tensor_clip import reader, restore_clip, tiles
from utils.errors import DataError, OptionError

BLENDS = ("kair", "smooth")
GOLDEN = sorted((Path(__file__).resolve().parents[2] / "data" / "golden").glob("tile_*.npz"))


class StandIn(nn.Module):
    """The position-dependent function around which the published tiling code was recorded."""

    def __init__(self, scale=1):
        super().__init__()
        self.scale = scale
        self.sizes = []

    def forward(self, lq, spike=None):
        self.sizes.append(tuple(lq.shape))
        y = lq[:, :, :3].repeat_interleave(self.scale, 3).repeat_interleave(self.scale, 4)
        k = torch.arange(y.shape[1], dtype=y.dtype)[:, None, None, None]
        rows = torch.arange(y.shape[3], dtype=y.dtype)[:, None]
        cols = torch.arange(y.shape[4], dtype=y.dtype)
        return y * (1 + 0.01 * k) + 0.01 * rows + 0.003 * cols + 0.05 * k


class LocalNet(nn.Module):
    """A small real network: an output pixel depends on a 5x5x3 neighbourhood of RGB and spikes."""

    def __init__(self, channels=3):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv3d(channels, 4, (3, 3, 3), padding=1)
        self.last = nn.Conv3d(4, 3, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, lq, spike=None):
        x = lq if spike is None else torch.cat((lq, spike), dim=2)
        return lq + self.last(torch.tanh(self.first(x.transpose(1, 2)))).transpose(1, 2)


class Net(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.forward = forward


def clip(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_published_tiling_is_reproduced(path):
    assert len(GOLDEN) == 11
    data = np.load(path)
    config = json.loads(str(data["config"]))
    (frames, size, *_), (frames_overlap, size_overlap, *_) = config["tile"], config["tile_overlap"]
    out = restore_clip(
        StandIn(config["scale"]), torch.from_numpy(data["input"]), num_frame_testing=frames,
        num_frame_overlapping=frames_overlap, size_patch_testing=size,
        size_patch_overlapping=size_overlap, window_size=tuple(config["window_size"]),
        scale=config["scale"], **config["train_options"],
    )  # fmt: skip
    if config["train_options"].get("center_frame_only"):
        out = out[:, 0]
    expected = torch.from_numpy(data["output"])
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("blend", BLENDS)
def test_a_tile_that_covers_the_clip_equals_no_tiling(blend):
    lq, net = clip(1, 6, 3, 64, 72).double(), LocalNet().double()
    whole = restore_clip(net, lq, blend=blend, num_frame_overlapping=2)
    tiled = restore_clip(net, lq, blend=blend, num_frame_testing=6, size_patch_testing=72)
    assert whole.dtype is torch.float64
    torch.testing.assert_close(tiled, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("size", [(17, 23), (70, 65)])
@pytest.mark.parametrize("tile", [(0, 0), (2, 64), (4, 0)])
def test_any_frame_count_and_any_size_come_back_as_they_went_in(frames, size, tile):
    net = StandIn()
    out = restore_clip(
        net, clip(2, frames, 3, *size), num_frame_testing=tile[0], size_patch_testing=tile[1],
        num_frame_overlapping=1, window_size=(6, 8, 8), blend="smooth",
    )  # fmt: skip
    assert out.shape == (2, frames, 3, *size)
    assert torch.isfinite(out).all()
    for _, n, _, h, w in net.sizes:
        assert n >= 2 and h % 8 == 0 and w % 8 == 0 and h >= 64 and w >= 64


@pytest.mark.parametrize("blend", BLENDS)
def test_tiles_that_run_together_give_what_they_give_alone(blend):
    # 2 clips of 2 x 3 tiles: batches of 4 and 2 tiles, hence of 8 and 4 clips.
    lq = clip(2, 3, 3, 100, 150)
    net = StandIn()
    alone, together = (
        restore_clip(net, lq, size_patch_testing=64, blend=blend, batch_tiles=n) for n in (1, 4)
    )
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert [size[0] for size in net.sizes] == [2] * 6 + [8, 4]


@pytest.mark.parametrize("scale", [1, 4])
@pytest.mark.parametrize("overlap", [0, 1, 6, 15])
@pytest.mark.parametrize("blend", BLENDS)
def test_the_blend_of_agreeing_tiles_is_exact(scale, overlap, blend):
    lq = clip(1, 5, 3, 21, 26)

    def enlarge(x):
        return x.repeat_interleave(scale, 3).repeat_interleave(scale, 4)

    out = restore_clip(
        Net(enlarge), lq, num_frame_testing=3, num_frame_overlapping=min(overlap, 2),
        size_patch_testing=16, size_patch_overlapping=overlap, scale=scale, blend=blend,
    )  # fmt: skip
    torch.testing.assert_close(out, enlarge(lq))


def test_spikes_are_cut_with_the_same_tile():
    lq = clip(1, 6, 3, 50, 61)
    spike = torch.cat((lq + 1, lq), dim=2)
    out = restore_clip(
        Net(lambda x, spike: spike[:, :, :3] - x), lq, spike, spike, num_frame_testing=4,
        size_patch_testing=16, size_patch_overlapping=4, flip_seq=True, pad_seq=True,
    )  # fmt: skip
    torch.testing.assert_close(out, torch.ones_like(lq))


def test_smooth_seams_are_smaller_than_hard_ones():
    lq = clip(1, 2, 3, 96, 96)

    def brighten(x):
        """Depends on the whole tile, as attention does: each tile gets its own brightness."""
        return x * 0 + x.mean() * 20 + torch.arange(x.shape[-1]) * 0.01

    tiles = {"size_patch_testing": 32, "size_patch_overlapping": 16}
    hard, smooth = (
        restore_clip(Net(brighten), lq, **tiles, blend=b).diff(dim=-1).abs().max() for b in BLENDS
    )
    assert smooth < 0.5 * hard


def test_flip_seq_averages_both_directions_of_time_and_shows_reversed_spikes():
    lq, spike, back = (
        clip(1, 4, 3, 64, 64),
        torch.zeros(1, 4, 2, 64, 64),
        torch.ones(1, 4, 2, 64, 64),
    )

    def number(x, spike):
        assert torch.equal(x[:, 4:], x[:, :4].flip(1)) and spike[0, :, 0, 0, 0].tolist() == [
            0,
            0,
            0,
            0,
            1,
            1,
            1,
            1,
        ]
        return x + torch.arange(8)[:, None, None, None]

    restored = restore_clip(Net(number), lq, spike, back, flip_seq=True, window_size=(4, 8, 8))
    torch.testing.assert_close(restored, lq + 3.5)


def test_a_stream_reads_no_more_than_one_tile_at_a_time():
    reads = []

    def read(moments):
        reads.append([index for index, _ in moments])
        return (torch.stack([torch.full((1, 3, 16, 16), float(i)) for i in reads[-1]], dim=1),)

    tiling = tiles(num_frame_testing=4, num_frame_overlapping=2, blend="smooth")
    stream = stream_clip(nn.Identity(), read, 9, tiling, range(9))
    first = next(stream)
    assert reads == [[0, 1, 2, 3]] and first[0, 0, 0, 0] == 0
    assert [round(f[0, 0, 0, 0].item(), 5) for f in stream] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert reads == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [5, 6, 7, 8]]


@pytest.mark.parametrize("blend", BLENDS)
def test_a_part_of_a_clip_equals_that_part_of_the_whole(blend):
    lq = clip(1, 13, 3, 24, 24)
    net, tiling = LocalNet(), tiles(num_frame_testing=4, num_frame_overlapping=2, blend=blend)
    whole = list(stream_clip(net, reader(lq), 13, tiling, range(13)))
    for first, last in ((0, 5), (5, 6), (6, 13), (12, 13)):
        part = list(stream_clip(net, reader(lq), 13, tiling, range(first, last)))
        assert len(part) == last - first
        assert all(torch.equal(a, b) for a, b in zip(part, whole[first:last], strict=True))


def greedy(most):
    """A network that runs out of memory above so many pixels x frames, as a device does."""

    def forward(x):
        if x.shape[1] * x.shape[3] * x.shape[4] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return x

    return Net(forward)


class Clip:
    name = "clip"

    def __init__(self, lq: torch.Tensor) -> None:
        self.lq = lq
        self.stems = [str(index) for index in range(len(lq))]

    def frame(self, index: int, reverse: bool = False) -> dict[str, torch.Tensor]:
        return {"lq": self.lq[index]}

    def spike_light(self, index: int, spike: torch.Tensor) -> np.ndarray:
        raise AssertionError("a clip without spikes")


def restored(net, lq, **tiling):
    cut = tiles(num_frame_testing=6, size_patch_overlapping=16, **tiling)
    restorer = Restorer(net, cut, torch.device("cpu"))
    return torch.stack(list(restorer.frames(Clip(lq), range(9))))


def test_tiles_are_halved_until_memory_suffices(caplog):
    lq = clip(9, 3, 200, 260)
    torch.testing.assert_close(restored(greedy(6 * 64 * 64), lq, is_halved=True), lq)
    assert all(
        f"x {side} px" in text for side, text in zip((128, 64), caplog.messages, strict=True)
    )
    with pytest.raises(DataError, match="out of memory"):
        restored(greedy(100), lq, is_halved=True)
    with pytest.raises(DataError, match=r"out of memory(.|\n)*--tile auto"):
        restored(greedy(6 * 64 * 64), lq)
    with pytest.raises(RuntimeError, match="shapes"):
        restored(Net(lambda x: x @ torch.ones(3, 3)), lq, is_halved=True)


def test_a_short_clip_is_continued_by_reflection_as_often_as_needed():
    seen = []

    def see(x):
        seen.append(x[0, :, 0, 0, 0].tolist())
        return x

    lq = torch.arange(3.0)[None, :, None, None, None].expand(1, 3, 3, 64, 64)
    torch.testing.assert_close(restore_clip(Net(see), lq, window_size=(10, 8, 8)), lq)
    assert seen == [[0, 1, 2, 2, 1, 0, 0, 1, 2, 2]]


@pytest.mark.parametrize("wrong", [
    {"num_frame_testing": 2, "num_frame_overlapping": 2},
    {"size_patch_testing": 16, "size_patch_overlapping": 20},
    {"size_patch_testing": 60, "size_patch_overlapping": 4},
])  # fmt: skip
def test_a_tiling_that_cannot_work_is_refused_with_its_key(wrong):
    with pytest.raises(OptionError, match=r"val\."):
        tiles(**wrong)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({}, "tiles of the whole clip x the whole frame, kair blend"),
        (
            {"num_frame_testing": 6, "num_frame_overlapping": 2},
            "tiles of 6 frames x the whole frame, overlap 2 frames, 20 px, kair blend",
        ),
        (
            {"size_patch_testing": 64, "size_patch_overlapping": 16},
            "tiles of the whole clip x 64 px, overlap 2 frames, 16 px, kair blend",
        ),
    ],
)
def test_the_protocol_says_which_tiles_overlap(sizes, said):
    assert tiles(**sizes).describe() == said


def test_smaller_tiles_run_alone_first_then_halve_space_then_time():
    tiling = tiles(
        num_frame_testing=12, size_patch_testing=0, size_patch_overlapping=20, batch_tiles=4
    )
    sizes = []
    while tiling is not None:
        sizes.append((tiling.num_frame_testing, tiling.size_patch_testing, tiling.batch_tiles))
        tiling = smaller(tiling, 720, 1280)
    assert sizes[:3] == [(12, 0, 4), (12, 0, 2), (12, 0, 1)]
    assert sizes[3:] == [
        (12, 640, 1),
        (12, 320, 1),
        (12, 160, 1),
        (12, 80, 1),
        (12, 64, 1),
        (6, 64, 1),
        (3, 64, 1),
    ]
