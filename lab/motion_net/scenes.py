"""Draw random scenes whose motion is known exactly.

A scene is a background and some things in front of the background. Each of them is a layer
(layers.py). The motion of the camera moves all layers, and each thing adds its own motion. The
sharp instant is nearly the middle of the exposure. Motions are functions of tau, the time after the
sharp instant in halves of an exposure (instants.py). N is the number of INSTANTS, the times at
which a scene is drawn.

What must stay: each draw, and the order of the draws. With other draws or another order, the same
seed gives other scenes than in the shipped training. No test notices this. Free to change, for the
next training: the ranges of the draws. The ranges were chosen by hand, so that they contain the
motions that users film. No measurement of other ranges is recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np

from data.spike.pictures import DISPLAY_GAMMA
from lab.motion_net.instants import HALF, INSTANTS, MARGIN, MIDDLES, PLANES, SIDE
from lab.motion_net.layers import Layer
from models.fusion.motion_windows import WINDOWS


@dataclass(frozen=True)
class Scene:
    """A scene whose motion is known exactly."""

    light: np.ndarray  # (N, SIDE, SIDE) at INSTANTS, linear light in [0, 1]
    # (15, SIDE, SIDE, 2): x and y of the shift of each pixel, in spike pixels, from the sharp
    # instant to the middle of each window.
    shifts: np.ndarray


@dataclass(frozen=True)
class CameraMotion:
    """How the camera moves. All layers of a scene move with it."""

    trajectory: np.ndarray  # (N, 2) x and y of the shift at INSTANTS, in pixels
    turn: np.ndarray  # (2,) angle in radians: turn[0] * tau + turn[1] * tau^2
    zoom: np.ndarray  # (2,) logarithm of the size: zoom[0] * tau + zoom[1] * tau^2


def random_scene(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> Scene:
    """Draw a scene: a background and up to five things in front of it.

    textures: grey pictures (h, w) uint8 from which surfaces are cut.
    """
    # In a quarter of the scenes the camera stands still.
    stands_still = rng.random() < 0.25
    camera = random_camera_motion(rng, stands_still)

    # 0 to 5 things. A still camera sees at least one thing, because without things nothing would
    # move.
    least_things = 1 if stands_still else 0
    number_of_things = int(rng.integers(least_things, 6))
    # The background has depth 0, and the things have the depths 1, 2, ... from the farthest to the
    # nearest. Parallax: if the camera moves, a thing at depth d moves 1 + parallax * d times as far
    # as the background. E.g. with parallax 0.5, the nearest of five things, at depth 5, moves
    # 1 + 0.5 * 5 = 3.5 times as far.
    parallax = rng.uniform(0, 0.5)

    # Draw from the back to the front, because each layer covers the layers behind it, in the light
    # and in the shifts.
    light = np.zeros((len(INSTANTS), SIDE, SIDE), np.float32)
    shifts = np.zeros((WINDOWS, SIDE, SIDE, 2), np.float32)
    for depth in range(number_of_things + 1):
        if depth == 0:
            layer = random_background(rng, textures, camera)
        else:
            trajectory_at_depth = camera.trajectory * (1 + parallax * depth)
            layer = random_thing(rng, textures, replace(camera, trajectory=trajectory_at_depth))
        draw_over(light, layer)
        set_shifts(shifts, layer)
    return Scene(light, shifts)


def draw_over(light: np.ndarray, layer: Layer) -> None:
    """Draw a layer over the layers behind it. Changes `light`, (N, SIDE, SIDE).

    If the layer covers a share of a pixel, the rest of the pixel shows the layers behind.
    """
    for instant_index in range(len(INSTANTS)):
        covered_light, cover = layer.picture_at(instant_index)
        behind = light[instant_index]
        light[instant_index] = behind * (1 - cover) + covered_light


def set_shifts(shifts: np.ndarray, layer: Layer) -> None:
    """Set the shifts of the pixels that show a layer. Changes `shifts`, (WINDOWS, SIDE, SIDE, 2).

    A pixel shows the layer if the layer covers more than half of the pixel at the sharp instant.
    """
    inner = slice(MARGIN, MARGIN + SIDE)  # the scene within the larger picture of the layer
    is_seen = layer.cover[inner, inner] > 0.5
    for window, middle in enumerate(MIDDLES):
        shifts[window][is_seen] = layer.shifts(middle)[is_seen]


def random_background(
    rng: np.random.Generator, textures: Sequence[np.ndarray], camera: CameraMotion
) -> Layer:
    """Draw the background, which covers the whole scene. It moves as the camera does."""
    # The background has no shear. A shear is drawn, and multiplied by 0 below. Without this draw,
    # all later draws would give other numbers than in the shipped training.
    drawn_shear = rng.normal(0, 0.03, size=2)
    light = random_surface(rng, textures)
    return Layer(
        light=light,
        cover=np.ones_like(light),
        center=np.array([SIDE / 2, SIDE / 2]),
        trajectory=camera.trajectory,
        turn=camera.turn,
        zoom=camera.zoom,
        shear=0 * drawn_shear,
    )


def random_thing(
    rng: np.random.Generator, textures: Sequence[np.ndarray], camera: CameraMotion
) -> Layer:
    """Draw a thing in front of the background, with its own motion, surface and outline.

    camera: the motion of the camera, with the trajectory at the depth of the thing. If the camera
        moves, near things are shifted more than far things (parallax).
    """
    center = rng.uniform(0, SIDE, size=2)
    # Each thing is shifted with the camera. 80 % of the things are also shifted by themselves, by
    # 0.3 to 10 pixels within the exposure. (rng.random() is uniform in 0 ... 1.)
    trajectory = camera.trajectory
    if rng.random() >= 0.2:
        own_length = log_uniform(rng, 0.3, 10)
        trajectory = trajectory + random_trajectory(rng, own_length)
    # Each thing turns, grows and is sheared by itself. tau is time: 0 at the sharp instant, and 1
    # half an exposure later. `turn` and `zoom` have two coefficients, as in `CameraMotion`. E.g.
    # turn = (0.06, 0.02):
    #
    #     angle = 0.06 * tau + 0.02 * tau^2    radians
    #     at the end of the exposure           tau = 1: 0.08 radians, i.e. 4.6 degrees
    #
    # The numbers below are standard deviations of the coefficients.
    turn = camera.turn + rng.normal(0, 0.06, size=2)  # radians
    zoom = camera.zoom + rng.normal(0, 0.05, size=2)  # logarithm of a factor: about 5 %
    # E.g. with a shear of 0.03, a point 100 pixels above or below the center is shifted along x by
    # 3 pixels at tau = 1. The second number shifts along y in the same way.
    shear = rng.normal(0, 0.03, size=2)
    light = random_surface(rng, textures)
    cover = random_polygon(rng, center)

    # Three in ten things have nearly the same light everywhere, so that only their edges show the
    # motion. Their light, 0 to 1, keeps 15 % of its contrast, and a light of 0.01 to 0.7 is added
    # everywhere. The sum is at most 0.85.
    if rng.random() < 0.3:
        light = light * 0.15 + rng.uniform(0.01, 0.7)
    return Layer(
        light=light,
        cover=cover,
        center=center,
        trajectory=trajectory,
        turn=turn,
        zoom=zoom,
        shear=shear,
    )


# ---- How the camera and a layer move --------------------------------------------------------


def random_camera_motion(rng: np.random.Generator, stands_still: bool) -> CameraMotion:
    """Draw the motion of the camera. If the camera stands still, all numbers are 0."""
    # The largest shift within the exposure, in pixels.
    length = 0.0 if stands_still else log_uniform(rng, 0.15, 12)
    trajectory = random_trajectory(rng, length)
    # Draw turn and zoom also for a camera that stands still, and set them to 0 afterwards. Without
    # the draws, all later draws of the scene would give other numbers. The two numbers of each draw
    # are the coefficients of tau and tau^2, see `CameraMotion`.
    turn = rng.normal(0, 0.03, size=2)  # radians
    zoom = rng.normal(0, 0.03, size=2)  # logarithm of a factor: about 3 %
    if stands_still:
        turn = 0 * turn
        zoom = 0 * zoom
    return CameraMotion(trajectory, turn, zoom)


def random_trajectory(rng: np.random.Generator, length: float) -> np.ndarray:
    """Draw a smooth trajectory (N, 2), x and y at INSTANTS. It is 0 at the sharp instant.

    The sharp instant is time 0 of INSTANTS, nearly the middle of the exposure.

    length: largest distance in pixels from the sharp instant within the exposure.
    """
    trajectory = random_waves(rng)
    # Move the trajectory to 0 at the sharp instant.
    x_of_sharp = np.interp(0, INSTANTS, trajectory[:, 0])
    y_of_sharp = np.interp(0, INSTANTS, trajectory[:, 1])
    trajectory -= np.stack([x_of_sharp, y_of_sharp])
    # Scale the trajectory, so that its largest distance from 0 within the exposure is `length`.
    is_exposed = np.abs(INSTANTS) <= HALF  # (N,)
    exposed = trajectory[is_exposed]  # (instants of the exposure, 2)
    distances = np.hypot(exposed[:, 0], exposed[:, 1])
    farthest = max(distances.max(), 1e-6)  # at least 1e-6, to avoid 0 / 0 if all waves are 0
    return trajectory / farthest * length


def random_waves(rng: np.random.Generator) -> np.ndarray:
    """Draw a sum of waves and of a constant speed, (N, 2): x and y at INSTANTS.

    The result has no unit, because `random_trajectory` scales the result.
    """
    # Add three waves. Their periods are 1.5 to 9 exposures, so that the speed changes only slowly
    # within an exposure. x and y have different waves, so each draw is (2,). The weights of the
    # waves and the standard deviations below were chosen by hand.
    #
    # `planes` is a time, in planes after the sharp instant. PLANES = 88 is the length of an
    # exposure, and HALF = 44 is half of this length.
    planes = INSTANTS[:, None]  # (N, 1)
    waves = np.zeros((len(INSTANTS), 2))
    log_shortest = np.log(1.5 * PLANES)
    log_longest = np.log(9 * PLANES)
    for weight in (0.5, 0.3, 0.2):  # one strong wave and two weaker waves
        # The period in planes, log-uniform as in `log_uniform`, but a pair: for x and for y.
        period = np.exp(rng.uniform(log_shortest, log_longest, size=2))
        phase = rng.uniform(0, 1, size=2)  # in periods
        wave = np.sin(2 * np.pi * (planes / period + phase))  # (N, 2)
        amplitude = np.exp(rng.normal(0, 0.7, size=2))
        waves += weight * wave * amplitude
    # Add a constant speed: the shift of x and y during half an exposure (HALF planes).
    speed = rng.normal(0, 0.4, size=2)
    waves += speed * planes / HALF
    return waves


def log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    """Draw a number between two limits. Its logarithm is uniformly distributed.

    E.g. between 0.1 and 10, a number below 1 is as likely as a number above 1.
    """
    return np.exp(rng.uniform(np.log(least), np.log(most)))


# ---- What a layer looks like -----------------------------------------------------------------


def random_polygon(rng: np.random.Generator, center: np.ndarray) -> np.ndarray:
    """Draw a polygon of 4 to 8 random corners. Returns (n, n), 1 in the polygon and 0 elsewhere.

    n = SIDE + 2 * MARGIN, because the picture of a layer is larger than the scene by MARGIN pixels
    on each side. Seven in ten polygons are made convex.

    center: x and y of the middle of the polygon, in pixels of the scene.
    """
    radius = log_uniform(rng, 3, 18)  # largest distance of a corner from the middle along x or y
    number_of_corners = int(rng.integers(4, 9))
    from_center = radius * rng.uniform(-1, 1, (number_of_corners, 2))
    # The scene begins at the pixel (MARGIN, MARGIN) of the picture of the layer.
    corners = center + MARGIN + from_center  # (corners, 2)
    is_convex = rng.random() < 0.7
    if is_convex:
        outline = cv2.convexHull(corners.astype(np.float32))
    else:
        outline = corners[:, None]  # (corners, 1, 2), the shape that convexHull returns
    n = SIDE + 2 * MARGIN
    cover = np.zeros((n, n), np.float32)
    cv2.fillPoly(cover, [outline.astype(np.int32)], 1.0, cv2.LINE_AA)
    # A Gaussian of sigma 0.5 pixels makes the edges soft, as a lens does. With the size (0, 0),
    # OpenCV chooses the size of the kernel.
    return cv2.GaussianBlur(cover, (0, 0), 0.5)


def random_surface(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> np.ndarray:
    """Cut a piece out of a texture. Returns its linear light (n, n) in [0, 1].

    n = SIDE + 2 * MARGIN. Size, place, mirroring, contrast and sharpness are random.
    """
    value = random_square(rng, textures)  # display values
    # Half of the surfaces are mirrored. Three in ten are turned into negatives.
    if rng.random() < 0.5:
        value = value[:, ::-1]
    if rng.random() < 0.3:
        value = 1 - value
    # Change contrast and brightness. The values are at least 0.01, because nothing real is
    # perfectly black.
    contrast = rng.uniform(0.5, 1.4)
    brightness = rng.uniform(0.3, 0.6)
    value = np.clip((value - 0.5) * contrast + brightness, 0.01, 1)
    # Blur slightly, so that no edge is sharper than a lens draws it.
    sigma = rng.uniform(0.35, 0.7)  # pixels
    value = cv2.GaussianBlur(np.ascontiguousarray(value), (0, 0), sigma)
    return np.power(value, DISPLAY_GAMMA)  # display values -> linear light


def random_square(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> np.ndarray:
    """Cut a square out of a texture, and scale it to (n, n) float32, display values in [0, 1].

    n = SIDE + 2 * MARGIN. The side of the square is 0.5 n to 1.6 n, so the square is enlarged or
    reduced. The square cannot be larger than the texture.
    """
    n = SIDE + 2 * MARGIN
    texture = textures[int(rng.integers(len(textures)))]
    height, width = texture.shape
    wanted_side = rng.uniform(0.5, 1.6) * n
    side = int(min(height, width, wanted_side))
    y = rng.integers(0, height - side + 1)
    x = rng.integers(0, width - side + 1)
    square = texture[y : y + side, x : x + side]
    interpolation = cv2.INTER_AREA if side > n else cv2.INTER_CUBIC
    return cv2.resize(square, (n, n), interpolation=interpolation).astype(np.float32) / 255
