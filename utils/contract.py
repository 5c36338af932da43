"""Define the interfaces between data, networks and programs.

data/ and models/ do not import one another (test_imports_between_folders_run_down_only). They use
the protocols of this file. Any class with the members of a protocol fulfils it, without a common
base class:

    InputSpec       what a network needs of its input clips; the network offers it
    FrameReader     reads the frames of one clip one by one
    ClipReader      a FrameReader of a clip to test on; data/clips has them
    Method          how a test restores frames: a network, a formula, or the joint solution, which
                    solves equations of the blurry frame and its spikes
    FrameRestorer   a method on one device; it yields restored frames
    ShowsPictures   a FrameRestorer that also has pictures of how it restored a frame
    JointEquations, MotionNetwork, MotionCurves
                    what the fusion "motion" and data/motion know of each other

What must stay: the names of the members, because researchers write their own classes with these
members (docs/extending.md, tests/stories/test_extending.py). Free to change: a member may be added.
Classes of researchers lack the new member, so read it with `getattr` and a default.

A "test" in this file is a run of main_test_vrt.py, which restores and scores clips.

Sizes: H and W are height and width of a frame, h and w of a spike plane (one binary picture of the
spike camera). C is the number of colours, S the number of spike channels, and s the scale. K is the
number of sharp frames for each blurry frame: each of them shows another instant, i.e. a moment of
the exposure. "..." stands for any other dimensions.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class InputSpec:
    """The requirements of a network on its input clips, as `net.input_spec`.

    All sizes and numbers of frames are of the input, and not of the output. The defaults describe a
    network that takes RGB clips of any size.
    """

    # Height and width must be multiples of the stride. E.g. a network that halves height and width
    # three times has the stride 8.
    stride: int = 1
    # (frames, height, width) of an attention window. Training crops and tiles are multiples of the
    # window, too, so that no window is padded.
    window_size: tuple[int, int, int] = (1, 1, 1)
    # Smallest (height, width), and the smallest number of frames.
    least_size: tuple[int, int] = (1, 1)
    least_frames: int = 1
    # Whether each frame is restored without its neighbours. Then the frames of a clip are restored
    # one by one, because this takes least memory.
    each_frame_alone: bool = False
    # Size of the output divided by size of the input, e.g. 4 for super-resolution.
    scale: int = 1
    # Number of channels of an input frame: 1 (grey), 3 (RGB) or more. The noise map is not counted.
    image_channels: int = 3
    # Whether a map of the noise level goes in as an additional channel.
    noise_map: bool = False
    # S, the number of spike channels that go in. 0 if the network needs no spikes.
    spike_channels: int = 0
    # Whether the output frames lie between the input frames. Then the network takes exactly
    # `least_frames` frames.
    interpolates: bool = False
    # K, the number of sharp frames for each blurry frame. These K frames follow one another in the
    # channels, in the order of time. The middle one is compared with the sharp frame of the data
    # set (gt), so K is odd.
    out_instants: int = 1

    @property
    def multiple(self) -> int:
        """Return the number of which each side of a training crop or a tile must be a multiple.

        It is the least common multiple of the stride and the sides of a window, e.g. 12 for stride
        4 and windows of 6 x 6 pixels.
        """
        _, height, width = self.window_size
        return math.lcm(self.stride, height, width)


def input_spec(net: Any) -> InputSpec:
    """Return the spec of a network. If it has none, return the default spec, for any RGB clip.

    net: the network itself, not wrapped in DistributedDataParallel.
    """
    return getattr(net, "input_spec", InputSpec())


def wanted_frames(count: int, only_middle: bool) -> range:
    """Return the indices of the frames to restore: all frames of a clip, or the middle frame.

    E.g. a clip of 5 frames has range(0, 5), or range(2, 3) if only the middle frame is wanted.

    count: number of frames of the clip.
    """
    if not only_middle:
        return range(count)
    middle = count // 2
    return range(middle, middle + 1)


def middle_instant(frame: Tensor, instants: int) -> Tensor:
    """Return the middle one of K sharp frames, (..., C, H, W).

    E.g. of K = 3 RGB frames, 9 channels in all, these are the channels 3, 4 and 5.

    frame: (..., K C, H, W), the K frames one after the other in the channels.
    instants: K, an odd number.
    """
    frames = frame.unflatten(-3, (instants, -1))  # (..., K, C, H, W)
    return frames[..., instants // 2, :, :, :]  # (..., C, H, W), e.g. frame 1 of 0, 1, 2


class FrameReader(Protocol):
    """Reads the frames of a clip one by one."""

    # The name of the clip. Its results have the same name.
    @property
    def name(self) -> str: ...

    # The names of the frames without endings, in the order of time, e.g. ["000000", "000001"].
    @property
    def stems(self) -> Sequence[str]: ...

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return one frame, as float32 tensors by these keys:

            lq            (3, H, W) in [0, 1]: the blurry frame ("low quality")
            spike         (S, H, W): its spikes, if the clip has spikes
            gt            (3, sH, sW) in [0, 1]: the sharp frame ("ground truth"), if there is one
            gt_instants   (3 K, sH, sW): K sharp frames, of which gt is the middle one. Only if
                          there are sharp frames of several instants

        s is the scale: height and width of gt, divided by height and width of lq.

        index: index of the frame, from 0.
        reverse: whether the spikes are reversed in time, for a clip that is restored from its end
            to its beginning.
        """
        ...


class ClipReader(FrameReader, Protocol):
    """A clip to test on."""

    # Frames per second of a film. None for a folder of frames.
    @property
    def fps(self) -> float | Fraction | None: ...

    # The time of each frame of a film, in seconds. None for a folder of frames.
    @property
    def times(self) -> Sequence[Fraction] | None: ...

    # Width over height of a pixel. It is 1 for a folder of frames.
    @property
    def pixel_aspect(self) -> Fraction: ...

    # The paths of the clip, for the report: "input", "gt" or "spike" -> its path.
    @property
    def origin(self) -> dict[str, str]: ...

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        """Return a grey picture (H, W) of the sharp instant of a frame, made only from its spikes.

        0 is black, and a larger value is brighter. There is no fixed value for white:
        `utils.image.comparison` chooses it.

        index: number of the frame.
        spike: the spikes of the frame, (S, H, W), as `frame` returned them.
        """
        ...

    def digest(self) -> str:
        """Return 16 hex digits by which a caller sees whether the files of the clip have changed.

        The digits change with the name, the size or the modification time of any file.
        """
        ...


class JointEquations(Protocol):
    """The equations of one exposure. They relate its blurry frame and spikes to a sharp frame z.

    z is (3, H, W) in [0, 1]. A network improves z in several steps, so that z agrees better with
    the blurry frame and the spikes. `data.motion.joint.equations.Equations` fulfils this protocol,
    and data/motion/joint/network_channels.py lists the channels of `evidence` and `pulls`. The
    number and the order of these channels must stay, because the weights were trained with them.
    """

    # The blurry frame, (3, H, W) in [0, 1].
    @property
    def blurry(self) -> Tensor: ...

    def proposal(self, z_0: Tensor) -> Tensor:
        """Return a solution of the equations, (3, H, W). It is proposed as the sharp frame.

        z_0: a first estimate of the sharp frame, (3, H, W).
        """
        ...

    def evidence(self) -> Tensor:
        """Return what is known of each pixel before any step, (6, H, W).

            0    precision (1 / variance) of the grey value that the spikes give, as a logarithm
            1    how far the pixel moves, as a square root
            2    expected error of this motion, as a square root
            3    how many spikes there are per plane, as a logarithm
            4    noise of the blurry frame, as a logarithm
            5    share of the pixels that move

        Channels 3 to 5 are the same in all pixels.
        """
        ...

    def pulls(self, z: Tensor) -> Tensor:
        """Return the errors of the equations for a frame, and how to change it, (7, H, W).

            0 to 2    change of R, G and B that reduces the errors of the blurry frame's equations
            3         change of the grey value of z that reduces the errors of the spikes' equations
            4         present error of the equations of the blurry frame
            5         present error of the equations of the spikes
            6         grey value that the spikes show at the sharp instant, minus that of z

        z: the present frame, (3, H, W).
        """
        ...


class MotionCurves(Protocol):
    """A motion that a network found, as `models.fusion.motion_net.Curves` describes it.

    h and w are height and width of a spike plane, filled up to multiples of 8. B is the number of
    exposures.
    """

    # (B, 6, h, w): the curve along which each spike pixel moves. At the time tau, the pixel is
    # shifted by c_1 tau + c_2 tau^2 + c_3 tau^3, where each c has an x and a y. The six channels
    # are x of c_1, y of c_1, x of c_2, y of c_2, x of c_3, y of c_3.
    @property
    def coefficients(self) -> Tensor: ...

    # (B, 1, h, w): logarithm of the expected error of the motion, in spike pixels.
    @property
    def log_error(self) -> Tensor: ...


class MotionNetwork(Protocol):
    """A network that finds the motion within an exposure from spikes in windows of time.

    `models.fusion.motion_net.MotionNet` fulfils it, and says what it takes and returns.
    """

    # Edges of the N windows, ascending: N + 1 numbers. The unit is an eleventh of the exposure,
    # because the network cuts the exposure into 11 windows. 0 is the middle of the exposure, so the
    # exposure lasts from -5.5 to 5.5.
    @property
    def edges(self) -> Sequence[float]: ...

    # The windows that lie within the exposure, as a slice of the N windows. The other windows lie
    # before or after the exposure.
    @property
    def inside(self) -> slice: ...

    def __call__(self, pictures: Tensor, scene: Tensor) -> Sequence[MotionCurves]:
        """Return the motion at each level of resolution, the finest last.

        pictures: brightness and number of spikes of each window, (B, N, 2, h, w).
        scene: channels that are the same for all windows, (B, 3, h, w): brightness around each
            pixel, mean brightness, contrast of the blurry frame (SCENE_CHANNELS in motion_net.py).
        """
        ...


# A function that shows progress. Its argument is the work that was done since its last call, in
# frames unless a docstring says otherwise. E.g. 0.5 after one of two tiles that cover a frame.
Tick = Callable[[float], object]


class FrameRestorer(Protocol):
    """Restores the frames of clips on one device. `Method.restorer` makes such an object."""

    def describe(self) -> str:
        """Return how a clip is cut into tiles, in words for the log."""
        ...

    def frames(self, reader: Any, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield restored frames of a clip, each (K C, sH, sW) float32 on the CPU.

        Each blurry frame, of H x W pixels, gives K sharp frames of C channels (e.g. 3), enlarged
        by the factor s. The frames come in the order of `wanted`, and none is left out, because the
        caller pairs them with the names of the frames.

        reader: a FrameReader.
        wanted: indices of the frames to restore, from 0.
        tick: function that is called after each piece of work, to show progress.
        """
        ...


class FramePicture(NamedTuple):
    """A picture of how a frame was restored, for the report. E.g. the motion that was used."""

    name: str  # one of the names of `picture_names`
    image: np.ndarray  # (H, W, 3) uint8, R, G, B
    caption: str  # what the picture shows, and the meaning of its colours


@runtime_checkable
class ShowsPictures(Protocol):
    """A FrameRestorer that also has pictures of how it restored a frame.

    The method `pictures` is optional. A FrameRestorer without it adds no pictures to the report.
    """

    def pictures(self) -> Sequence[FramePicture]:
        """Return the pictures of the frame that `frames` has yielded last."""
        ...


def picture_names(method: Any) -> tuple[str, ...]:
    """Return the names of the pictures that the restorers of a Method have, e.g. ("motion",).

    The attribute `picture_names` of a method is optional. Returns () if the method lacks it. The
    files of the pictures have these names, so a test knows all files that it will write before it
    begins.
    """
    return getattr(method, "picture_names", ())


class Method(Protocol):
    """How a test restores its frames: a network, a formula, or the joint solution."""

    # Whether the restored frames have no colour, so that only their luma can be scored.
    @property
    def is_grey(self) -> bool: ...

    # Whether the result of a frame is the same if only some frames of the clip are restored. If so,
    # several ranks (processes) can share the frames of a clip.
    @property
    def can_cut(self) -> bool: ...

    # K, the number of sharp frames for each blurry frame. They follow one another in the channels.
    @property
    def instants(self) -> int: ...

    # Whether only the middle frame of a clip is restored, and not all its frames.
    @property
    def center_frame_only(self) -> bool: ...

    def settings(self) -> dict[str, Any]:
        """Return all settings of the method that change the restored frames, as plain JSON.

        They are saved with the results. A test continues earlier results only if the settings are
        equal. If a setting were missing here, a test could continue results that were made with
        another value of this setting.
        """
        ...

    def protocol(self) -> dict[str, str]:
        """Return the lines of the report that describe the method: name of a line -> its text."""
        ...

    def restorer(self, device: torch.device) -> FrameRestorer:
        """Return an object that restores frames on a device, e.g. with the network loaded there."""
        ...
