"""The interfaces between data, networks and programs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class InputSpec:
    """What a network needs of its input clips; a network offers it as `net.input_spec`.

    stride: height and width must be multiples of it. window_size: [frames, height, width] of an
    attention window; training crops and tiles are multiples of it too, so that no window is padded.
    least_size: smallest (height, width); least_frames: fewest frames. scale: size of the output
    over size of the input.
    image_channels: 1 (gray) or 3 (RGB) or more, without the noise map that `noise_map` asks for as
    a further channel.
    spike_channels: S of the spikes that go in; 0: none are needed.
    interpolates: the output frames lie between the input frames, of which there are exactly
    least_frames.
    out_instants: K sharp frames for each blurry one, one after the other in the channels; the
    middle one is that of gt.
    """

    stride: int = 1
    window_size: tuple[int, int, int] = (1, 1, 1)
    least_size: tuple[int, int] = (1, 1)
    least_frames: int = 1
    scale: int = 1
    image_channels: int = 3
    noise_map: bool = False
    spike_channels: int = 0
    interpolates: bool = False
    out_instants: int = 1

    @property
    def multiple(self) -> int:
        """What the sides of a training crop or a tile are multiples of."""
        return math.lcm(self.stride, *self.window_size[1:])


def input_spec(net: Any) -> InputSpec:
    """The spec of a network (not wrapped); without one, clips of any size fit."""
    return getattr(net, "input_spec", InputSpec())


def wanted_frames(count: int, only_middle: bool) -> range:
    """The frames to restore of a clip of `count` frames: all, or the middle one."""
    return range(count // 2, count // 2 + 1) if only_middle else range(count)


def middle_instant(frame: Tensor, instants: int) -> Tensor:
    """(..., K C, H, W) of K = `instants` sharp frames -> the middle one, (..., C, H, W)."""
    return frame.unflatten(-3, (instants, -1))[..., instants // 2, :, :, :]


class FrameReader(Protocol):
    """Gives the frames of a clip one by one. stems: their names.

    frame(index, reverse=False): lq (3, H, W) float32 in [0, 1] and, where there are any, spike (S,
    H, W), gt (3, sH, sW) and gt_instants (3 K, sH, sW), of which gt is the middle one. reverse: the
    spikes of reversed time. spike_light(index, spike): display values (H, W) >= 0 that spikes (S,
    H, W) of a frame show of its sharp instant.
    """

    name: str
    stems: Sequence[str]
    frame: Callable[..., dict[str, Tensor]]
    spike_light: Callable[[int, Tensor], np.ndarray]


class ClipReader(FrameReader, Protocol):
    """A clip to test on. origin: "input", "gt", "spike" -> path, for the protocol.

    Of a video: fps, and times: seconds of each frame. None for frames.
    pixel_aspect: width over height of a pixel, 1 for frames.
    digest: 16 hex digits that change with the name, size or modification time of any file of the
    clip.
    """

    fps: float | None
    times: Sequence[Fraction] | None
    pixel_aspect: Fraction
    origin: dict[str, str]
    digest: Callable[[], str]


# Takes the work done since the last call, in frames where nothing else is said; a tile is a part of
# several.
Tick = Callable[[float], object]


class Method(Protocol):
    """How a test restores its frames: a network, or a formula.

    is_grey: its frames have no colour, so that only luma can be scored. can_cut: a frame does not
    depend on which other frames of its clip are restored with it. instants: sharp frames for each
    frame, one after the other in the channels.
    center_frame_only: see `wanted_frames`.
    settings: everything of the method that the frames depend on, as plain JSON. protocol: the
    method in words, for the report. restorer: what restores on a device; it has frames(reader,
    wanted, tick), which gives the frames `wanted` of a clip in order, each (K C, sH, sW) float32 on
    the CPU, K instants, and describe(), the tiles in words.
    """

    is_grey: bool
    can_cut: bool
    instants: int
    center_frame_only: bool
    settings: Callable[[], dict[str, Any]]
    protocol: Callable[[], dict[str, str]]
    restorer: Callable[[Any], Any]  # of a torch.device
