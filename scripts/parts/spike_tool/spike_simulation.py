"""Simulate the spikes of a clip: `simulate` of spike_tool.py.

Between two frames, the light of the first frame changes into the light of the second frame
(data/making/light_path.py). A sensor that integrates this light fires the spikes
(data/spike/simulate.py).

What must stay: the mean of simulated spikes is the image
(test_simulated_spikes_give_the_picture_back), and one plane is in memory at a time
(test_a_long_stream_is_never_whole_in_memory).
Free to add: options of the sensor, with defaults that change nothing.

Tests: tests/parts/scripts/test_spike_tool.py
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.clips.user_frames import FrameSource
from data.making.frame_light import grey_light
from data.making.light_path import LightPath
from data.spike import simulate
from scripts.parts.exit_codes import with_progress
from utils.arguments import seed
from utils.errors import DataError, OptionError


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Add the options of `simulate`: the files, the time and size of planes, and the sensor."""
    parser.add_argument("input", type=Path, help="a video, or a folder of images")
    parser.add_argument("out", type=Path, help="spike file that is written")
    parser.add_argument(
        "--planes-per-frame",
        type=int,
        default=8,
        help="planes from one frame of the input to the next (default: %(default)s)",
    )
    parser.add_argument(
        "--ratio",
        type=int,
        default=1,
        help="width of a spike pixel in pixels of the input (default: %(default)s)",
    )
    parser.add_argument(
        "--method",
        choices=("flow", "linear"),
        default="flow",
        help="how the light between two frames is interpolated (default: %(default)s)",
    )
    parser.add_argument(
        "--gamma",
        type=float,
        default=2.2,
        help="gamma of the input; 1: the sensor integrates display values (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=seed,
        default=0,
        help="seed of the random numbers of the sensor (default: %(default)s)",
    )
    # The sensor, simulate.IntegrateAndFire.
    parser.add_argument(
        "--rate",
        type=float,
        default=0.5,
        help="spikes per plane at full light (default: %(default)s)",
    )
    parser.add_argument(
        "--shot-noise",
        type=float,
        default=0.0,
        help="standard deviation of the charge that a pixel collects in a plane at full light; "
        "1 is the charge at which a pixel fires (default: %(default)s)",
    )
    parser.add_argument(
        "--dark-rate",
        type=float,
        default=0.0,
        help="spikes per plane without light (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold-mismatch",
        type=float,
        default=0.0,
        help="by how much the pixels differ in the charge at which they fire: standard deviation "
        "over mean (default: %(default)s)",
    )


class Simulation:
    """The spikes that a simulated sensor fires while it sees the frames of a clip.

    Times are in frames: frame 0 is at time 0, and frame 1 at time 1. E.g. with 8 planes per frame,
    plane 12 sees the light of the time 12 / 8 = 1.5, between frame 1 and frame 2. The planes after
    the last frame see the light of the last frame. In each plane, a pixel of the sensor adds
    rate * light to its charge, and fires if the charge reaches its threshold.

    height, width: size of a plane.
    count: number of planes.
    """

    def __init__(self, command: argparse.Namespace) -> None:
        """Open the clip. Raises OptionError or DataError if the planes cannot be made.

        command: has the options of `add_simulation`.
        """
        refuse_options(command)
        frames = FrameSource(command.input)
        frame_height, frame_width = frames.size
        self.height = frame_height // command.ratio
        self.width = frame_width // command.ratio
        refuse_part_of_a_byte(self.height, self.width, command.input)

        # A function from the number of a frame to its light on the spike pixels, (h, w).
        light_of_frame = grey_light(frames, (self.height, self.width), command.gamma)
        # `self.light.at(time)` is the light at a time in frames, between two frames, too.
        self.light = LightPath(light_of_frame, len(frames), command.method)
        self.sensor = simulate.IntegrateAndFire(
            self.height,
            self.width,
            rate=command.rate,
            rng=np.random.default_rng(command.seed),
            shot_noise=command.shot_noise,
            dark_rate=command.dark_rate,
            threshold_mismatch=command.threshold_mismatch,
        )
        self.planes_per_frame = command.planes_per_frame
        self.count = len(frames) * self.planes_per_frame

    def planes(self) -> Iterator[np.ndarray]:
        """Yield each plane as (1, h, w), so that only one plane is in memory."""
        for n in with_progress(range(self.count), self.count, "simulating", "planes"):
            time = n / self.planes_per_frame  # in frames
            plane = self.sensor.step(self.light.at(time))  # (h, w)
            yield plane[None]


# ---- What is refused --------------------------------------------------------------------------


def refuse_options(command: argparse.Namespace) -> None:
    """Raise OptionError if an option of `simulate` is out of range."""
    # A pixel fires at most once in a plane.
    if not 0 < command.rate <= 1:
        raise OptionError(
            what=f"--rate is {command.rate}",
            where="--rate",
            expected="above 0, at most 1 spike a plane",
            do="correct it",
        )
    if command.planes_per_frame < 1 or command.ratio < 1:
        raise OptionError(
            what=f"--planes-per-frame is {command.planes_per_frame}, --ratio is {command.ratio}",
            where="the command line",
            expected="at least 1 each",
            do="correct them",
        )


def refuse_part_of_a_byte(height: int, width: int, source: Path) -> None:
    """Raise DataError if the pixels of a packed plane do not fill whole bytes, of 8 pixels each."""
    if height * width % 8:
        raise DataError(
            what=f"spike planes of {height} x {width} do not fill whole bytes",
            where=str(source),
            expected="pixels divisible by 8",
            do="choose another --ratio, or crop the input",
        )
