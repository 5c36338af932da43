"""models/restore/tiles/: clips are restored in tiles of few frames and few pixels.

Neighbouring tiles overlap, and are blended. The option `blend` has two values. "kair" blends like
the published code, KAIR: it cuts the borders of tiles off. "smooth" blends with weights that fall
towards the borders of a tile.

The networks here are simple functions whose results are known, and a small convolution. Each
network gets a clip in the form in which a VRT gets it (tests/helpers/tensor_clip.py): at least 2
frames of at least 64 x 64 pixels, with sides that are multiples of 8 pixels. The files
tests/data/golden/tile_*.npz have recordings: inputs of the published code with the function
`RampNet`, and its results.

Options of tiles:

    num_frame_testing         number of frames of a tile, or 0 for the whole clip
    num_frame_overlapping     number of frames that two neighbouring tiles share
    size_patch_testing        side of a tile in pixels, or 0 for the whole frame
    size_patch_overlapping    number of rows or columns that two neighbouring tiles share
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from models.restore.tiles.plan import smaller_tiling
from models.restore.tiles.restorer import Restorer
from models.restore.tiles.stream import stream_clip
from tests.helpers.tensor_clip import make_reader, make_tiling, restore_clip
from utils.errors import DataError, OptionError

BLENDS = ("kair", "smooth")
GOLDEN = sorted((Path(__file__).resolve().parents[2] / "data" / "golden").glob("tile_*.npz"))

# ---- Networks and clips ----


class RampNet(nn.Module):
    """The function with which the published tiling code was recorded.

    The function adds a ramp along the rows, the columns and the frames of a tile. So a wrong place
    or a wrong weight of a tile changes the result. `shapes` has the shape of each input, in order.
    """

    def __init__(self, scale=1):
        super().__init__()
        self.scale = scale
        self.shapes = []

    def forward(self, lq, spike=None):
        self.shapes.append(tuple(lq.shape))
        y = enlarge(lq[:, :, :3], self.scale)  # (B, T, 3, H, W)
        # Numbers from 0, in shapes that fit y.
        frame = torch.arange(y.shape[1], dtype=y.dtype)[:, None, None, None]
        row = torch.arange(y.shape[3], dtype=y.dtype)[:, None]
        column = torch.arange(y.shape[4], dtype=y.dtype)
        return y * (1 + 0.01 * frame) + 0.01 * row + 0.003 * column + 0.05 * frame


class LocalNet(nn.Module):
    """A small convolution: an output pixel depends on 5 x 5 pixels of 3 frames."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv3d(3, 4, (3, 3, 3), padding=1)
        self.last = nn.Conv3d(4, 3, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, lq):
        features = torch.tanh(self.first(lq.transpose(1, 2)))
        return lq + self.last(features).transpose(1, 2)


class FunctionNet(nn.Module):
    """A network that calls a function."""

    def __init__(self, forward):
        super().__init__()
        self.forward = forward


def enlarge(x, scale):
    """Repeat each pixel of x (B, T, C, H, W) `scale` times along both axes."""
    return x.repeat_interleave(scale, 3).repeat_interleave(scale, 4)


def random_clip(*shape):
    """Return random values of this shape, e.g. (B, T, C, H, W)."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


# ---- The same as the published code, and as no tiling ----


def test_all_recordings_of_the_published_code_are_there():
    # If there were no files, the next test would be skipped without a message.
    assert len(GOLDEN) == 11


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_published_tiling_is_reproduced(path):
    recording = np.load(path)
    config = json.loads(str(recording["config"]))
    # The published option has three numbers: frames, height and width.
    frames, size, _ = config["tile"]
    frames_overlap, size_overlap, _ = config["tile_overlap"]

    out = restore_clip(
        RampNet(config["scale"]),
        torch.from_numpy(recording["input"]),
        num_frame_testing=frames,
        num_frame_overlapping=frames_overlap,
        size_patch_testing=size,
        size_patch_overlapping=size_overlap,
        window_size=tuple(config["window_size"]),
        scale=config["scale"],
        **config["train_options"],
    )

    # With center_frame_only, the published code returns a frame without an axis of frames.
    if config["train_options"].get("center_frame_only"):
        out = out[:, 0]
    expected = torch.from_numpy(recording["output"])
    # The recordings are in float32. Its rounding errors are about 1e-7 of a value. A blended pixel
    # is a sum over several tiles, each with such an error. So the tolerance is 1e-6, and not 1e-7.
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("blend", BLENDS)
def test_a_tile_that_covers_the_clip_equals_no_tiling(blend):
    lq = random_clip(1, 6, 3, 64, 72).double()
    net = LocalNet().double()

    whole = restore_clip(net, lq, blend=blend, num_frame_overlapping=2)
    tiled = restore_clip(net, lq, blend=blend, num_frame_testing=6, size_patch_testing=72)

    assert whole.dtype is torch.float64
    torch.testing.assert_close(tiled, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("size", [(17, 23), (70, 65)], ids=["small", "larger than a tile"])
@pytest.mark.parametrize(
    ("tile_frames", "tile_size"),
    [
        pytest.param(0, 0, id="no tiles"),
        pytest.param(2, 64, id="tiles in time and space"),
        pytest.param(4, 0, id="tiles in time"),
    ],
)
def test_any_frame_count_with_any_size_comes_back_as_it_went_in(
    frames, size, tile_frames, tile_size
):
    net = RampNet()

    out = restore_clip(
        net,
        random_clip(2, frames, 3, *size),
        num_frame_testing=tile_frames,
        size_patch_testing=tile_size,
        num_frame_overlapping=1,
        window_size=(6, 8, 8),
        blend="smooth",
    )

    assert out.shape == (2, frames, 3, *size)
    assert torch.isfinite(out).all()
    # The network sees at least 2 frames of at least 64 x 64 pixels, and both sides are multiples of
    # 8.
    for _, n, _, h, w in net.shapes:
        assert n >= 2
        assert h % 8 == 0
        assert w % 8 == 0
        assert h >= 64
        assert w >= 64


def test_a_short_clip_is_continued_by_reflection_as_often_as_needed():
    seen = []

    def note_frames(x):
        seen.append(x[0, :, 0, 0, 0].tolist())
        return x

    # The value of each of the three frames is its number. The network has windows of 10 frames, so
    # 7 frames must be added.
    lq = torch.arange(3.0)[None, :, None, None, None].expand(1, 3, 3, 64, 64)

    out = restore_clip(FunctionNet(note_frames), lq, window_size=(10, 8, 8))

    assert seen == [[0, 1, 2, 2, 1, 0, 0, 1, 2, 2]]
    torch.testing.assert_close(out, lq)


# ---- Tiles that run together ----


def restore_in_tiles(net, batch_tiles, blend):
    """Restore 2 clips of 100 x 150 pixels, each in 2 x 3 tiles of 64 x 64 pixels.

    Neighbouring tiles overlap by 20 pixels (the default), and the last tile ends at the edge:

        rows where tiles begin       0, 36        36 = 100 - 64
        columns where tiles begin    0, 44, 86    44 = 64 - 20, and 86 = 150 - 64
    """
    lq = random_clip(2, 3, 3, 100, 150)
    return restore_clip(net, lq, size_patch_testing=64, blend=blend, batch_tiles=batch_tiles)


@pytest.mark.parametrize("blend", BLENDS)
def test_tiles_that_run_together_give_what_they_give_alone(blend):
    alone = restore_in_tiles(RampNet(), batch_tiles=1, blend=blend)
    together = restore_in_tiles(RampNet(), batch_tiles=4, blend=blend)

    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.parametrize(
    ("batch_tiles", "batch_sizes"),
    [
        # `batch_sizes` has the size of the batch in each pass of the network. There are six tiles.
        # Each is cut out of both clips. So k tiles make a batch of 2 k.
        pytest.param(1, [2, 2, 2, 2, 2, 2], id="one by one"),
        pytest.param(4, [4 * 2, 2 * 2], id="four together, then the last two"),
    ],
)
def test_as_many_tiles_run_together_as_asked(blend, batch_tiles, batch_sizes):
    net = RampNet()

    restore_in_tiles(net, batch_tiles, blend)

    assert [shape[0] for shape in net.shapes] == batch_sizes


# ---- Blending ----


@pytest.mark.parametrize("scale", [1, 4])
@pytest.mark.parametrize("overlap", [0, 1, 6, 15])
@pytest.mark.parametrize("blend", BLENDS)
def test_the_blend_of_agreeing_tiles_is_exact(scale, overlap, blend):
    lq = random_clip(1, 5, 3, 21, 26)

    out = restore_clip(
        FunctionNet(lambda x: enlarge(x, scale)),
        lq,
        num_frame_testing=3,
        num_frame_overlapping=min(overlap, 2),  # must be less than the 3 frames of a tile
        size_patch_testing=16,
        size_patch_overlapping=overlap,
        scale=scale,
        blend=blend,
    )

    torch.testing.assert_close(out, enlarge(lq, scale))


def test_smooth_seams_are_smaller_than_hard_ones():
    lq = random_clip(1, 2, 3, 96, 96)

    def brighten(x):
        """Return 20 times the mean of the tile, plus a weak ramp along x.

        The result depends on the whole tile, as it does in a network with attention. So
        neighbouring tiles differ in brightness, and a seam is between them.
        """
        ramp = 0.01 * torch.arange(x.shape[-1])
        return torch.full_like(x, 20 * x.mean()) + ramp

    def largest_step(blend):
        """Return the largest difference of neighbouring pixels."""
        out = restore_clip(
            FunctionNet(brighten), lq, size_patch_testing=32, size_patch_overlapping=16, blend=blend
        )
        return out.diff(dim=-1).abs().max()

    # The measured ratio is 0.07.
    assert largest_step("smooth") < 0.5 * largest_step("kair")


# ---- Spikes, and both directions of time ----


def test_spikes_are_cut_with_the_same_tile():
    lq = random_clip(1, 6, 3, 50, 61)
    # The first three of the six spike channels are the frame plus 1. So if spikes and frame are cut
    # at the same place, their difference is 1.
    spike = torch.cat((lq + 1, lq), dim=2)

    out = restore_clip(
        FunctionNet(lambda x, spike: spike[:, :, :3] - x),
        lq,
        spike,
        spike,
        num_frame_testing=4,
        size_patch_testing=16,
        size_patch_overlapping=4,
        flip_seq=True,
        pad_seq=True,
    )

    torch.testing.assert_close(out, torch.ones_like(lq))


class FlippedClip:
    """A clip of 4 frames that was restored with flip_seq.

    With this option, the network sees the 4 frames, and after them the same frames in reverse.
    """

    def __init__(self):
        self.lq = random_clip(1, 4, 3, 64, 64)
        forward_spikes = torch.zeros(1, 4, 2, 64, 64)
        backward_spikes = torch.ones(1, 4, 2, 64, 64)
        self.restored = restore_clip(
            FunctionNet(self.add_number),
            self.lq,
            forward_spikes,
            backward_spikes,
            flip_seq=True,
            window_size=(4, 8, 8),
        )

    def add_number(self, x, spike):
        """Add to each frame its number."""
        self.seen_frames = x
        self.seen_spikes = spike[0, :, 0, 0, 0].tolist()
        return x + torch.arange(8)[:, None, None, None]


def test_flip_seq_shows_the_frames_in_both_directions():
    seen = FlippedClip().seen_frames

    assert torch.equal(seen[:, 4:], seen[:, :4].flip(1))


def test_flip_seq_shows_the_spikes_of_reversed_time():
    assert FlippedClip().seen_spikes == [0, 0, 0, 0, 1, 1, 1, 1]


def test_flip_seq_averages_both_directions_of_time():
    flipped = FlippedClip()

    # The network sees 8 frames, and adds to each its number. So frame i gets i in the first half,
    # and 7 - i in the second half. The mean of both is 7 / 2.
    torch.testing.assert_close(flipped.restored, flipped.lq + 3.5)


# ---- A stream: it reads and gives frames one after another ----


class NumberedFrames:
    """A stream of nine frames whose values are their numbers, in tiles of four frames."""

    def __init__(self):
        self.reads = []  # the numbers of the frames of each read
        tiling = make_tiling(num_frame_testing=4, num_frame_overlapping=2, blend="smooth")
        self.stream = stream_clip(
            nn.Identity(), self.read, num_frames=9, tiling=tiling, wanted=range(9)
        )

    def read(self, moments):
        """Return the frames as a tuple of one tensor. moments: pairs (number, whether reversed)."""
        numbers = [index for index, _ in moments]
        self.reads.append(numbers)
        frames = [torch.full((1, 3, 16, 16), float(number)) for number in numbers]
        return (torch.stack(frames, dim=1),)


def test_a_stream_reads_one_tile_for_its_first_frame():
    frames = NumberedFrames()

    first = next(frames.stream)

    assert frames.reads == [[0, 1, 2, 3]]
    assert first[0, 0, 0, 0] == 0


def test_a_stream_gives_all_frames_in_their_order():
    values = [frame[0, 0, 0, 0].item() for frame in NumberedFrames().stream]

    assert values == pytest.approx([0, 1, 2, 3, 4, 5, 6, 7, 8])


def test_a_stream_reads_no_more_than_one_tile_at_a_time():
    frames = NumberedFrames()

    for _ in frames.stream:
        pass

    # Each tile overlaps the tile before by two frames. The last tile overlaps by three frames,
    # because it must have four frames, too, and frame 8 is the last frame.
    assert frames.reads == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [5, 6, 7, 8]]


@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.parametrize(
    ("first", "end"),
    [
        pytest.param(0, 5, id="beginning"),
        pytest.param(5, 6, id="one frame"),
        pytest.param(6, 13, id="end"),
        pytest.param(12, 13, id="last frame"),
    ],
)
def test_a_part_of_a_clip_equals_that_part_of_the_whole(blend, first, end):
    lq = random_clip(1, 13, 3, 24, 24)
    net = LocalNet()
    tiling = make_tiling(num_frame_testing=4, num_frame_overlapping=2, blend=blend)

    def restored(wanted):
        """Return the restored frames `wanted`, a range of indices."""
        return list(stream_clip(net, make_reader(lq), num_frames=13, tiling=tiling, wanted=wanted))

    whole = restored(range(13))

    # E.g. first = 5 and end = 6: only frame 5 is wanted. So only tiles with frame 5 are computed.
    part = restored(range(first, end))

    for found, expected in zip(part, whole[first:end], strict=True):
        assert torch.equal(found, expected)


# ---- Too little memory ----


def network_with_limit(most_pixels):
    """Return a network that runs out of memory, as a GPU does, if a tile has too many pixels.

    most_pixels: how many pixels a tile may have, in all its frames.
    """

    def forward(x):
        _, frames, _, height, width = x.shape
        if frames * height * width > most_pixels:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return x

    return FunctionNet(forward)


class ClipInMemory:
    """A clip of frames (T, C, H, W), as `Restorer` reads it."""

    name = "clip"

    def __init__(self, lq: torch.Tensor) -> None:
        self.lq = lq
        self.stems = [str(index) for index in range(len(lq))]

    def frame(self, index: int, reverse: bool = False) -> dict[str, torch.Tensor]:
        return {"lq": self.lq[index]}

    def spike_light(self, index: int, spike: torch.Tensor) -> np.ndarray:
        raise AssertionError("a clip without spikes")


LARGE = random_clip(9, 3, 200, 260)  # (T, C, H, W)
# Pixels of a tile of 6 frames of 64 x 64 pixels. A network with this limit takes no larger tile.
PIXELS_OF_6_FRAMES_64 = 6 * 64 * 64


def restore_large(net, **tiling):
    """Restore nine frames of 200 x 260 in tiles of 6 frames.

    By default (size_patch_testing = 0), a tile has whole frames, without a cut in space.
    """
    cut = make_tiling(num_frame_testing=6, size_patch_overlapping=16, **tiling)
    restorer = Restorer(net, cut, torch.device("cpu"))
    return torch.stack(list(restorer.frames(ClipInMemory(LARGE), range(9))))


def test_tiles_are_halved_until_memory_suffices(caplog):
    out = restore_large(network_with_limit(PIXELS_OF_6_FRAMES_64), may_halve=True)

    torch.testing.assert_close(out, LARGE)
    # The side of a tile in pixels. The side is halved, and rounded down to a multiple of 8.
    #
    #     260    the longer side of the frame: too large
    #     128    260 / 2 = 130, rounded down: first message, too large
    #     64     128 / 2: second message, fits
    first, second = caplog.messages
    assert "x 128 px" in first
    assert "x 64 px" in second


def test_too_little_memory_for_the_smallest_tile_is_an_error():
    with pytest.raises(DataError, match="out of memory"):
        # Every tile has more than 100 pixels, so halving the tiles does not help.
        restore_large(network_with_limit(100), may_halve=True)


def test_too_little_memory_is_an_error_if_tiles_are_not_halved():
    with pytest.raises(DataError, match=r"out of memory(.|\n)*--tile auto"):
        restore_large(network_with_limit(PIXELS_OF_6_FRAMES_64))


def test_another_error_of_the_network_is_passed_on():
    # A tile has 64 or more columns, and a 3 x 3 matrix has 3 rows. So torch cannot multiply the
    # two. This error is not about memory.
    wrong_shapes = FunctionNet(lambda x: x @ torch.ones(3, 3))

    with pytest.raises(RuntimeError, match="shapes"):
        restore_large(wrong_shapes, may_halve=True)


def test_memory_is_saved_by_fewer_tiles_at_once_then_smaller_sides_then_fewer_frames():
    tiling = make_tiling(
        num_frame_testing=12, size_patch_testing=0, size_patch_overlapping=20, batch_tiles=4
    )

    sizes = []  # frames, pixels (0: the whole frame), tiles at a time
    while tiling is not None:
        sizes.append((tiling.num_frame_testing, tiling.size_patch_testing, tiling.batch_tiles))
        tiling = smaller_tiling(tiling, height=720, width=1280)

    assert sizes == [
        (12, 0, 4),
        (12, 0, 2),
        (12, 0, 1),
        (12, 640, 1),  # half of 1280, the longer side
        (12, 320, 1),
        (12, 160, 1),
        (12, 80, 1),
        (12, 64, 1),  # the least side
        (6, 64, 1),
        # This is the end. The next tile would have 2 frames, but a tile needs more frames than the
        # overlap, 2.
        (3, 64, 1),
    ]


# ---- What is refused, and what the protocol says ----


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(
            {"num_frame_testing": 2, "num_frame_overlapping": 2}, id="overlap of all frames"
        ),
        pytest.param(
            {"size_patch_testing": 16, "size_patch_overlapping": 20}, id="overlap above the tile"
        ),
        pytest.param(
            {"size_patch_testing": 60, "size_patch_overlapping": 4}, id="no multiple of 8"
        ),
    ],
)
def test_a_tiling_that_cannot_work_is_refused_with_its_key(wrong):
    with pytest.raises(OptionError, match=r"val\."):
        make_tiling(**wrong)


def test_the_side_that_a_refusal_proposes_is_taken():
    # With these windows, the side of a tile must be a multiple of 6 and of 8, so of 24. The side
    # 100 is refused, and the next multiple, 120, is proposed.
    windows = (2, 6, 8)
    tile = {"size_patch_overlapping": 4, "window_size": windows}

    with pytest.raises(OptionError) as refused:
        make_tiling(size_patch_testing=100, **tile)
    proposed = int(refused.value.do.removeprefix("use "))

    make_tiling(size_patch_testing=proposed, **tile)


@pytest.mark.parametrize(
    ("sizes", "description"),
    [
        pytest.param({}, "tiles of the whole clip x the whole frame, kair blend", id="no tiles"),
        pytest.param(
            {"num_frame_testing": 6, "num_frame_overlapping": 2},
            "tiles of 6 frames x the whole frame, overlap 2 frames, 20 px, kair blend",
            id="in time",
        ),
        pytest.param(
            {"size_patch_testing": 64, "size_patch_overlapping": 16},
            "tiles of the whole clip x 64 px, overlap 2 frames, 16 px, kair blend",
            id="in space",
        ),
    ],
)
def test_the_protocol_names_the_tiles_and_both_overlaps(sizes, description):
    # Both overlaps are named, even if there are tiles in time only, or in space only.
    assert make_tiling(**sizes).describe() == description
