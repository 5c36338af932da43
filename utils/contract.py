"""The interfaces between data, networks and programs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
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
    """Gives the frames of a clip one by one. stems: the names of the frames."""

    @property
    def name(self) -> str: ...

    @property
    def stems(self) -> Sequence[str]: ...

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return lq (3, H, W) float32 in [0, 1] and, if there are any, spike (S, H, W), gt
        (3, sH, sW) and gt_instants (3 K, sH, sW), of which gt is the middle one.

        reverse: whether the spikes are those of reversed time.
        """
        ...


class ClipReader(FrameReader, Protocol):
    """A clip to test on.

    origin: "input", "gt", "spike" -> path, for the protocol.
    fps, times: frame rate of a film and seconds of each frame, or None for frames.
    pixel_aspect: width over height of a pixel, 1 for frames.
    """

    @property
    def fps(self) -> float | Fraction | None: ...

    @property
    def times(self) -> Sequence[Fraction] | None: ...

    @property
    def pixel_aspect(self) -> Fraction: ...

    @property
    def origin(self) -> dict[str, str]: ...

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        """Return display values (H, W) >= 0 that spikes (S, H, W) of a frame show of its sharp
        instant.
        """
        ...

    def digest(self) -> str:
        """Return 16 hex digits that change with the name, size or modification time of any file of
        the clip.
        """
        ...


class JointEquations(Protocol):
    """The equations of one exposure, on which a network takes steps.

    `data.motion.joint.Equations` says what they return. blurry: (3, H, W).
    """

    @property
    def blurry(self) -> Tensor: ...

    def proposal(self, z_0: Tensor) -> Tensor: ...

    def evidence(self) -> Tensor: ...

    def pulls(self, z: Tensor) -> Tensor: ...


class MotionCurves(Protocol):
    """A motion that a network found, as `models.fusion.motion_net.Curves` describes it."""

    @property
    def coefficients(self) -> Tensor: ...

    @property
    def log_error(self) -> Tensor: ...


class MotionNetwork(Protocol):
    """A network that finds the motion within an exposure from spikes in windows of time.

    `models.fusion.motion_net.MotionNet` says what it takes and returns. edges: edges of the
    windows, in elevenths of an exposure after its middle. inside: the windows of the exposure.
    """

    @property
    def edges(self) -> Sequence[float]: ...

    @property
    def inside(self) -> slice: ...

    def __call__(self, pictures: Tensor, scene: Tensor) -> Sequence[MotionCurves]: ...


# Takes the work done since the last call, in frames where nothing else is said; a tile is a part of
# several.
Tick = Callable[[float], object]


class FrameRestorer(Protocol):
    """Restores frames on a device."""

    def describe(self) -> str:
        """Return the tiles in words."""
        ...

    def frames(self, reader: Any, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield the frames `wanted` of a clip in order, each (K C, sH, sW) float32 on the CPU.

        reader: a FrameReader. There are K instants for each frame.
        """
        ...


class Method(Protocol):
    """How a test restores its frames: a network, a formula, or the joint solution.

    is_grey: whether the frames have no colour, so that only luma can be scored.
    can_cut: whether a frame does not depend on which other frames of its clip are restored with it.
    instants: number of sharp frames for each frame, one after the other in the channels.
    center_frame_only: see `wanted_frames`.
    """

    @property
    def is_grey(self) -> bool: ...

    @property
    def can_cut(self) -> bool: ...

    @property
    def instants(self) -> int: ...

    @property
    def center_frame_only(self) -> bool: ...

    def settings(self) -> dict[str, Any]:
        """Return everything of the method that the frames depend on, as plain JSON."""
        ...

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the report."""
        ...

    def restorer(self, device: torch.device) -> FrameRestorer: ...
