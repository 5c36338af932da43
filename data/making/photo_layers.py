"""Draw the motion of a camera over a photograph, and of pieces of the photograph.

A layer is the whole photograph, or a piece of the photograph that is nearer to the camera. A plane
is one read-out of the spike camera. There are three kinds of images:

    sheet        image of a layer, (H, W): as large as the photograph, and transparent outside of
                 the piece
    view         image of the camera, which shows the sheets: FINE * crop pixels along each side
    made frame   the view, scaled down by FINE: crop x crop pixels

P is the number of planes of the whole clip. A frame interval is the time from one frame of the made
clip to the next.

What must stay: the order and the ranges of the draws, because they decide which scene a seed gives
(test_a_seed_gives_its_scene). E.g. with wider ranges the motion would be faster. If a scene must
change, raise VERSION in data/making/recipe.py.

Tests: tests/parts/data/test_seeds.py, tests/parts/scripts/test_prepare_gopro_spike.py
"""

from dataclasses import dataclass

import cv2
import numpy as np

from data.making.smooth_walk import smooth_walk

# A pixel of the made frame is the mean of FINE x FINE pixels of the view. With 1, the pixels of the
# photograph would be visible when the photograph moves.
FINE = 2
# Number of pieces of a photograph that are nearer than the rest. More pieces would hide the rest.
NEAR_LAYERS = 2


@dataclass(frozen=True)
class Layer:
    """A layer of the scene. It moves on its own, like a sheet of paper in front of other sheets."""

    # (H, W, 4): the light of R, G, B, and the opacity (0 to 1). The light is already multiplied by
    # the opacity.
    sheet: np.ndarray
    # (P, 2): for each plane, the point (x, y) of the sheet that is in the middle of the view.
    centers: np.ndarray
    border: int  # a constant of OpenCV: how the sheet continues outside of its edges


@dataclass(frozen=True)
class Camera:
    """The motion of the camera over a photograph, for each of the P planes of the clip."""

    shake: np.ndarray  # (P, 2), x and y in pixels of the view
    angles: np.ndarray  # (P,), in radians
    zooms: np.ndarray  # (P,), factors; above 1, objects look larger
    # (P, 2), how fast the scale changes along x and y (`camera_homography` has the formula)
    tilts: np.ndarray


def draw_camera(
    number_of_planes: int, planes_of_interval: int, crop: int, rng: np.random.Generator
) -> Camera:
    """Draw the motion of the camera. The ranges of the draws were chosen by hand.

    The view is the image of the camera. It has FINE x FINE pixels for each pixel of a made frame.

    number_of_planes: number of planes P of the whole clip.
    planes_of_interval: number of planes in a frame interval. crop: side of a made frame in pixels.
    rng: generator of the motion. The order of its draws must stay, because it decides which scene a
    seed gives.
    """
    view_side = FINE * crop  # in pixels of the view
    periods = (2.0 * planes_of_interval, 8.0 * planes_of_interval)  # 2 to 8 frame intervals

    def walk(amplitude: float) -> np.ndarray:
        """Draw a random motion (P,) between -amplitude and amplitude."""
        return smooth_walk(rng, number_of_planes, amplitude, periods)

    # The amplitude of a shake is at least 2 pixels, and at most crop / 6, a sixth of a made frame.
    # The amplitude is drawn before its walk.
    shake_x = walk(rng.uniform(2, crop / 6))  # in pixels of the made frame
    shake_y = walk(rng.uniform(2, crop / 6))
    shake = FINE * np.stack([shake_x, shake_y], axis=1)  # in pixels of the view
    angles = walk(0.1)  # up to 0.1 radians, 6 degrees
    # The zoom is a constant factor of 1 to 1.3, times a factor that varies by up to 8 %, because a
    # person who films hardly changes the zoom.
    zoom_of_clip = rng.uniform(1.0, 1.3)
    zooms = zoom_of_clip * np.exp(walk(0.08))
    # A tilt is at most 0.1 / view_side in x and y. An edge is view_side / 2 away from the middle of
    # the view. So the tilt changes the scale at the edge by at most 0.1 / 2 = 5 %.
    tilt_x = walk(0.1)
    tilt_y = walk(0.1)
    tilts = np.stack([tilt_x, tilt_y], axis=1) / view_side
    return Camera(shake, angles, zooms, tilts)


def whole_photograph(light: np.ndarray, shake: np.ndarray) -> Layer:
    """Return the farthest layer, the whole photograph.

    Outside of its edges the photograph is mirrored, so that it always fills the view.

    light: light of the photograph, (H, W, 3).
    shake: (P, 2), motion of the camera in pixels of the view.
    """
    height, width = light.shape[:2]
    opaque = np.ones((height, width, 1), np.float32)
    sheet = np.concatenate((light, opaque), axis=2)
    middle = np.array((width, height)) / 2  # All points here have x before y.
    return Layer(sheet, middle + shake, cv2.BORDER_REFLECT_101)


def draw_piece(
    light: np.ndarray,
    depth: int,
    shake: np.ndarray,
    time: np.ndarray,
    view_side: int,
    rng: np.random.Generator,
) -> Layer:
    """Draw a piece of the photograph that is nearer than the rest.

    The piece is a random polygon of the photograph. Its motion is the shake of the camera plus a
    constant speed. The ranges of the draws were chosen by hand. Outside of the piece, the layer is
    transparent.

    light: light of the photograph, (H, W, 3). depth: 1 for the farther piece, 2 for the nearer
    piece.
    shake: (P, 2), motion of the camera in pixels of the view.
    time: (P, 1), time of each plane in frame intervals. view_side: side of the view in pixels.
    rng: generator of the piece. The order of its draws must stay, because it decides which scene a
    seed gives.
    """
    height, width = light.shape[:2]
    size = np.array((width, height))
    # All points are (x, y) in pixels of the photograph. The piece is cut out around `middle`.
    middle = rng.uniform(0.3, 0.7, 2) * size
    speed = view_side * rng.uniform(-0.05, 0.05, 2)  # pixels per frame interval
    # The point that lies in the middle of the view at the time 0, without the shake. This point is
    # not the middle of the piece, so the piece is seen at any place of the view.
    center_at_time_0 = middle + view_side * rng.uniform(-0.3, 0.3, 2)
    # The shape of the piece is the convex hull of eight random points. Its edge is blurred (sigma
    # 0.8 pixels), so that no steps of whole pixels are visible.
    corners = middle + view_side * rng.uniform(-0.2, 0.2, (8, 2))  # (8, 2), x and y
    hull = cv2.convexHull(corners.astype(np.int32))
    transparent = np.zeros((height, width, 1), np.float32)
    # 1 within the hull, (H, W, 1). `fillPoly` paints into `transparent`, and returns it.
    mask = cv2.fillPoly(transparent, [hull], 1.0, cv2.LINE_AA)
    opacity = cv2.GaussianBlur(mask, (0, 0), 0.8)[..., None]  # (H, W, 1)
    sheet = np.concatenate((light * opacity, opacity), axis=2)
    # A nearer layer moves more with the camera: depth 1 moves 1.35 times as much as the whole
    # photograph, and depth 2 moves 1.7 times as much.
    parallax = 1 + 0.35 * depth
    centers = center_at_time_0 + parallax * shake + speed * time  # (P, 2)
    return Layer(sheet, centers, cv2.BORDER_CONSTANT)


def camera_homography(angle: float, zoom: float, tilt: np.ndarray) -> np.ndarray:
    """Return the homography (3, 3) of a camera that is turned, zoomed and tilted.

        [cos / zoom, -sin / zoom, 0]
        [sin / zoom,  cos / zoom, 0]
        [tilt[0],     tilt[1],    1]

    The homography maps a point of the view to a point of the sheet. The point of the view is
    relative to the middle of the view, and the point of the sheet is relative to the center of the
    layer. A homography divides x and y by the third number,
    tilt[0] x + tilt[1] y + 1. So the scale changes along x and y.

    angle: in radians. zoom: above 1, objects look larger. tilt: (2,).
    """
    cos = np.cos(angle)
    sin = np.sin(angle)
    homography = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    homography[:2] /= zoom
    homography[2, :2] = tilt
    return homography


def translation(x: float, y: float) -> np.ndarray:
    """Return the matrix (3, 3) that moves a point by x, y."""
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])


def opacity_at(layer: Layer, points: np.ndarray) -> np.ndarray:
    """Return the opacity (h, w) of a layer at points of its sheet, (h, w, 2)."""
    x = points[..., 0].astype(np.float32)
    y = points[..., 1].astype(np.float32)
    opacity = np.ascontiguousarray(layer.sheet[..., 3])
    return cv2.remap(opacity, x, y, cv2.INTER_LINEAR, borderMode=layer.border)
