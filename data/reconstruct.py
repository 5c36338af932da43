"""Restore frames from spikes by a formula, without weights: a baseline for networks.

main_test_vrt.py --method NAME uses this module. A method works in two steps, and each step has an
entry with the name of the method:

    spikes -> channels    a spike representation (data/spike/represent.py)
    channels -> frame     an entry in `METHODS`

E.g. --method tfp: the representation "tfp" counts the spikes of each pixel, and the frame shows the
counts.

    method_options   checks the options of a method, e.g. {"type": "tfp", "half_window": 10}
    Reconstruction   the method as the test programs call it (`utils.contract.Method`)

A plane is one read-out of the spike camera, with one bit for each pixel. How the spikes are read
for a method is in formula_spikes.py. A clip of spikes without frames is in spikes_alone.py.

What must stay:

* the frames of each method, because published scores belong to them
  (test_frames_equal_frames_that_were_made_by_hand notices a value that is off by 2 of 255),
* the interface `utils.contract.Method`, because main_test_vrt.py calls a network in the same way.

Free to add: a method, by a representation and an entry in `METHODS` (docs/extending.md).

Tests: tests/stories/test_reconstruct.py
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from data.cameras.representation_section import REPRESENTATIONS, channels_of
from data.spike.pictures import DISPLAY_GAMMA
from data.spike.ratios import exposure_estimate
from utils.contract import FrameReader, Tick
from utils.dist import watchdog
from utils.errors import OptionError

# Keys with which a representation makes several pictures of a frame. A method makes one picture, so
# a user cannot set these keys.
KEYS_OF_SEVERAL_PICTURES = ("offsets", "num_bins")


@dataclass(frozen=True)
class Formula:
    """How the channels of the representation of the same name become a frame."""

    # Function (blurry, channels) -> frame. blurry is the blurry frame (H, W, 3), display values in
    # [0, 1]. channels are (S, H, W). The frame is (H, W, 3) float32 in [0, 1].
    picture: Callable[[np.ndarray, np.ndarray], np.ndarray]
    is_grey: bool  # whether the frame has no colour. A grey frame is scored on grey values
    # The channels hold light^(1 / gamma). With gamma 1 they are linear light, with DISPLAY_GAMMA
    # (2.2) display values. The method sets the option `spike.gamma` to this value.
    gamma: float


def _first_channel(_: np.ndarray, channels: np.ndarray) -> np.ndarray:
    """Return the first channel as a grey frame. The blurry frame is not used."""
    grey = np.clip(channels[0], 0, 1)  # (H, W)
    return np.repeat(grey[..., None], 3, axis=2)


GREY = Formula(picture=_first_channel, is_grey=True, gamma=DISPLAY_GAMMA)
# `exposure_estimate` multiplies the linear light of the blurry frame by a ratio of two channels. So
# the channels must be linear light, too: gamma 1.
EXPOSURE = Formula(picture=exposure_estimate, is_grey=False, gamma=1.0)
# {name for --method: its formula}.
METHODS = {
    "tfp": GREY,  # texture from playback: spikes per plane in a window
    "tfi": GREY,  # texture from interval: planes between two spikes
    "tfstp": GREY,  # texture from short-term plasticity: a model of synapses
    "exposure": EXPOSURE,
}


def method_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the options of a method with the defaults of its representation.

    section: {"type": name of the method, ...}.
    Raises OptionError for an unknown method, and for options that make several pictures.
    """
    # The message also names `joint`, which a user can choose, too. METHODS lacks `joint`, because
    # `joint` is not a formula: `JointMethod` in data/motion/joint_method.py restores the frames.
    name = section["type"]
    if name not in METHODS:
        raise OptionError(
            what=f"method.type is {name!r}",
            where="method.type",
            expected=f"one of {', '.join(METHODS)}, or joint",
            do="choose one of these methods",
        )
    # E.g. method.num_bins=4 would make four pictures.
    refused = [f"method.{key}" for key in KEYS_OF_SEVERAL_PICTURES if key in section]
    if refused:
        raise OptionError(
            what=f"{', '.join(refused)} would make several pictures of a frame",
            where="method",
            expected="one picture of each frame",
            do="remove these keys",
        )
    options = REPRESENTATIONS.resolve(section, "method").plain()
    # The number of channels is not needed here. But `channels_of` raises an error if options
    # contradict one another.
    channels_of(options)
    # `resolve` has added the defaults of these keys. A user cannot set the keys, so the report and
    # the stored settings must not list them.
    for key in KEYS_OF_SEVERAL_PICTURES:
        options.pop(key, None)
    return options


class Reconstruction:
    """A method that needs one frame and its spikes. It has the interface `utils.contract.Method`.

    main_test_vrt.py calls a formula and a network in the same way, so the members of the interface
    must stay. The keys of `settings` must stay, too, because they are stored with results, and a
    repeated test compares them.
    """

    # A part of a clip can be restored on its own, because no frame needs another frame.
    can_cut = True
    # Number of sharp frames for each blurry frame.
    instants = 1

    def __init__(self, options: dict[str, Any], center_frame_only: bool) -> None:
        """Make the method.

        options: the result of `method_options`, e.g. {"type": "tfp", "half_window": 10}.
        center_frame_only: whether only the middle frame of a clip is restored.
        """
        self.options = options
        self.center_frame_only = center_frame_only
        self.formula = METHODS[options["type"]]
        self.is_grey = self.formula.is_grey

    def settings(self) -> dict[str, Any]:
        """Return all options that change the frames. They are stored with the results.

        E.g. {"method": {"type": "tfp", "half_window": 10, ...}, ...}. A repeated test continues
        stored results only if their settings are equal to its own.
        """
        return {"method": self.options, "center_frame_only": self.center_frame_only}

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the report, e.g. {"method": "tfp (half_window 10)"}."""
        parameters = []
        for key, value in self.options.items():
            if key != "type" and value is not None:
                parameters.append(f"{key} {value}")
        words = {"method": f"{self.options['type']} ({', '.join(parameters)})"}
        if self.is_grey:
            words["colour"] = "none: scored on the luma of the sharp frame alone (PSNR-Y, SSIM-Y)"
        if self.center_frame_only:
            words["frames"] = "the middle one"
        return words

    def restorer(self, device: torch.device) -> "Reconstruction":
        """Return the restorer: this object itself. It always works on the CPU."""
        return self

    def describe(self) -> str:
        """Return in words how a frame is divided into tiles. A formula needs no tiles."""
        return "none: each pixel by itself"

    def frames(self, reader: FrameReader, wanted: range, tick: Tick) -> Iterator[torch.Tensor]:
        """Yield the restored frames of a clip, (3, H, W) float32 in [0, 1].

        reader: reads the frames of the clip.
        wanted: numbers of the frames to restore.
        tick: called with the number of frames that are done, for the progress.
        """
        for frame in wanted:
            # Tell the watchdog that the program does not hang.
            watchdog.go_on()
            # `DatasetClip.frame` (data/clips/readers.py) calls `TestClips.read_frames`, which reads
            # the files.
            item = reader.frame(frame)
            rgb = item["lq"][:3]  # without channel 3, which is a noise map if there is one
            blurry = rgb.permute(1, 2, 0).numpy()  # (H, W, 3)
            channels = item["spike"].numpy()  # (S, H, W)
            picture = self.formula.picture(blurry, channels)  # (H, W, 3)
            yield torch.from_numpy(picture).permute(2, 0, 1)
            tick(1)
