"""Make samples: what the network sees of a scene, through random cameras in random light.

What must stay: the order of the draws, because with another order the same seed gives other
samples. `data.motion.network_inputs.pictures_of` must make the pictures, because it makes the
pictures for the clips of users as well. Free to change, for the next training: the ranges.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from data.motion.network_inputs import USUAL_PLANES, pictures_of
from data.motion.spike_windows import spike_windows
from lab.motion_net.instants import BEFORE, HALF, INSTANTS, SHARP, SIDE
from lab.motion_net.scenes import Scene, log_uniform, random_scene
from lab.motion_net.sensor import WARM_UP, Sensor, spikes_of
from models.fusion.motion_windows import EDGES, INSIDE


@dataclass(frozen=True)
class Sample:
    """What the network sees of a scene, and what it should find.

    All arrays are float16, because up to 1600 samples are kept in memory.
    """

    pictures: np.ndarray  # (15, 2, SIDE, SIDE): light and number of spikes of each window
    # (3, SIDE, SIDE): brightness around each pixel, mean brightness, and contrast of the blurry
    # frame.
    scene: np.ndarray
    # (15, SIDE, SIDE, 2): the true shifts from the sharp instant to the middle of each window.
    shifts: np.ndarray


def samples_of(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> list[Sample]:
    """Draw a scene, and record it twice, by different cameras in different light.

    Returns the two samples. Drawing a scene takes time, so each scene is used twice.
    """
    scene = random_scene(rng, textures)
    return [record_sample(rng, scene) for _ in range(2)]


def record_sample(rng: np.random.Generator, scene: Scene, rate: float | None = None) -> Sample:
    """Record a scene by a spike camera and an RGB camera, with their usual flaws.

    Everything that a user does not know is drawn: light, lens, noise, exposure, the shift between
    the cameras, and the curve from light to display values.

    rate: `Sensor.rate` of the spike camera. None: draw the rate. lab/vrt_curve.py gives a rate,
        because it compares networks in one light.
    """
    light, stream = record_stream(rng, scene, rate)
    blurry = blurry_frame(rng, light)

    # The edges of the windows of the network, in planes of the stream. EDGES has the same edges in
    # elevenths of the exposure, counted from its middle. An eleventh has USUAL_PLANES = 8 planes.
    # E.g. the exposure begins at the edge -5.5. The middle of the exposure is plane 108, so this
    # edge is plane 108 - 5.5 * 8 = 64. The planes of the stream:
    #
    #     0 ...  23    WARM_UP = 24 planes, in which nothing moves
    #     24 ... 63    BEFORE = 40 planes of the scene before the exposure
    #     64 ... 151   the exposure. Half of it has HALF = 44 planes
    middle_plane = WARM_UP + BEFORE + HALF  # 24 + 40 + 44 = 108: the middle of the exposure
    edges = np.array([round(middle_plane + edge * USUAL_PLANES) for edge in EDGES])
    windows = spike_windows(stream, edges)  # light and number of spikes of each window
    # The windows are 0 ... 14, and INSIDE has the windows of the exposure itself, 2 ... 12. The
    # first frame of a clip has no planes before it, and the last frame has no planes after it. So
    # 20 % of the samples lose the windows before the exposure, 0 and 1. Of the other samples, 20 %
    # lose the windows after the exposure, 13 and 14.
    if rng.random() < 0.2:
        windows.are_recorded[: INSIDE.start] = False
    elif rng.random() < 0.2:
        windows.are_recorded[INSIDE.stop :] = False

    # Turn the light of the frame into display values. The network does not get gamma, because users
    # do not know gamma.
    gamma = rng.uniform(2, 2.4)
    shown = np.power(np.clip(blurry, 0, 1), 1 / gamma)
    # The inputs of the network: (15, 2, SIDE, SIDE) and (3, SIDE, SIDE).
    pictures, about_scene = pictures_of(windows, shown, INSIDE, USUAL_PLANES)
    return Sample(
        pictures=pictures.astype(np.float16),
        scene=about_scene.astype(np.float16),
        shifts=scene.shifts.astype(np.float16),
    )


def record_stream(
    rng: np.random.Generator, scene: Scene, rate: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Record a scene by a random spike camera in random light.

    Returns the light (N, SIDE, SIDE), and the spikes (T, SIDE, SIDE). The RGB camera sees the same
    light.

    rate: `Sensor.rate` of the camera. None: draw the rate.
    """
    # A plane is one binary picture of the spike camera. With the lowest rate, full light gives
    # about 2 spikes in the 88 planes of an exposure. The highest rate gives a spike in nearly every
    # plane. Draw the rate even if `rate` is given, because all later draws depend on this draw.
    drawn_rate = log_uniform(rng, 0.02, 0.95)
    if rate is None:
        rate = drawn_rate
    # A quarter of the cameras integrate display values instead of light.
    is_display = rng.random() < 0.25
    # The light of both cameras. A factor of 0.6 makes dark frames. With 1.6, bright places are cut
    # off at full light.
    light = np.clip(scene.light * rng.uniform(0.6, 1.6), 0, 1)
    blur = rng.uniform(0, 0.6)  # blur of the lens: sigma in spike pixels
    # The flaws of the camera. The class `Sensor` explains its fields.
    jitter = rng.uniform(0, 0.05)
    pattern = rng.uniform(0, 0.05)
    # A camera of display values has larger charges in dim light, because e.g. 0.002 of full light
    # has a display value of about 0.06. So its dark charge is larger, too: up to 0.02 in place of
    # 0.002. Both limits are chosen by hand.
    dark = rng.uniform(0, 0.02 if is_display else 0.002)
    sensor = Sensor(rate=rate, is_display=is_display, jitter=jitter, pattern=pattern, dark=dark)
    on_sensor = light
    if blur > 0.25:  # a smaller sigma changes almost nothing
        on_sensor = np.stack([cv2.GaussianBlur(picture, (0, 0), blur) for picture in light])
    return light, spikes_of(rng, on_sensor, sensor)


def blurry_frame(rng: np.random.Generator, light: np.ndarray) -> np.ndarray:
    """Record light (N, SIDE, SIDE) by a random RGB camera. Returns linear light (SIDE, SIDE).

    The frame is the mean light over the exposed part of the planes, plus noise.
    """
    # The RGB camera is exposed for a share of the planes. A third of the frames see all planes, a
    # third see 80 %, and a third see 50 to 100 %.
    random_share = rng.uniform(0.5, 1)
    share = rng.choice([1.0, 0.8, random_share])
    # INSTANTS are in planes after the sharp instant. `from_middle` says how many planes each
    # instant lies after the middle of the exposure. The sharp instant lies 0.5 planes after this
    # middle. Each line of the table counts planes from another time:
    #
    #                           middle of the exposure    sharp instant
    #     after the start       HALF = 44                 SHARP = 44.5
    #     in INSTANTS           -0.5                      0
    #     in from_middle        0                         0.5
    from_middle = INSTANTS + SHARP - HALF  # SHARP - HALF = 44.5 - 44 = 0.5 planes
    is_exposed = np.abs(from_middle) < HALF * share
    # Noise of the RGB camera, with the standard deviation 0.004 in linear light, where 1 is full
    # light.
    noise = 0.004 * rng.standard_normal((SIDE, SIDE))
    blurry = light[is_exposed].mean(0) + noise
    # After an imperfect calibration, the frame is shifted against the spikes by some tenths of a
    # pixel.
    shift_x = rng.normal(0, 0.2)
    shift_y = rng.normal(0, 0.2)
    shift = np.array([[1, 0, shift_x], [0, 1, shift_y]])
    return cv2.warpAffine(
        blurry.astype(np.float32), shift, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT_101
    )
