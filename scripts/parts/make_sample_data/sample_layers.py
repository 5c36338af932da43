"""Draw the scene of a clip of make_sample_data.py: textured layers under a shaking camera.

    make_layers    draws a background and three objects, and their motion
    texture        draws what a layer shows
    render         what the camera sees at the time of a spike plane

A plane is one readout of the spike camera. Here the number of a plane also says the instant of this
readout.

What must stay: every constant, every range and the order of the random numbers, because they decide
the files of the data set. Whoever changes one raises `version` of the `SetPlan` in
scripts/make_sample_data.py, so that old files are made again. No test notices a changed constant:
test_the_same_seed_gives_the_same_bytes_and_another_seed_others compares files of one version only.

Tests: tests/parts/scripts/test_sample_data.py
"""

from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np

from data.making.smooth_walk import smooth_walk
from data.spike.pictures import to_linear, to_uint8

SIZE = 128  # side of an RGB frame, in pixels
PLANES = 88  # spike planes in one exposure, as in GoPro clips of 11 frames
# Pixels of texture beyond each side of the frame. The camera sees them when it moves. If the camera
# moves farther, it sees the mirror image of the texture (BORDER_REFLECT in `render`).
MARGIN = 96
# The characters that `_paint_shape` paints.
LETTERS = "ABCDEFGHKLMNPRSTVXYZ2345689"


@dataclass(frozen=True)
class Layer:
    """A textured sheet in front of the camera, and its motion.

    The scene is the camera's view of a background layer and of objects in front of it.
    """

    # (n, n, 4), with n = side + 2 * MARGIN. Channels 0 to 2: linear colour times opacity
    # (premultiplied alpha). Channel 3: opacity in [0, 1].
    sheet: np.ndarray
    path: np.ndarray  # (planes, 3): shift x and shift y in pixels, angle in radians
    side: int = SIZE  # side of the frame, in pixels


# ---- The layers and their motion -----------------------------------------------------------------


def make_layers(rng: np.random.Generator, planes: int, side: int = SIZE) -> list[Layer]:
    """Return a background and three objects, from the farthest to the nearest.

    A nearer layer shifts more when the camera shakes. Each object also has a motion of its own.

    rng: the generator of the clip. The order of all draws must stay.
    planes: number of planes of the clip.
    side: side of the frame, in pixels.
    """
    n = side + 2 * MARGIN
    shake, turn = _shake_of_camera(rng, planes)

    layers = []
    for depth in range(4):
        is_background = depth == 0
        # Besides the camera, each object moves along a line, in x and in y by at most 3.5 pixels in
        # an exposure. `motion` is 0 in the middle of the clip. E.g. with 3.5 pixels an exposure, it
        # is -1.75 half an exposure before the middle, and 1.75 half an exposure after the middle.
        speed = 0.0 if is_background else 3.5 / PLANES  # pixels per plane
        direction = rng.uniform(-1, 1, 2)
        times = np.arange(planes) - planes / 2  # in planes, 0 in the middle of the clip
        motion = direction * speed * times[:, None]  # (planes, 2)

        opacity = np.ones((n, n, 1), np.float32)  # the background covers everything
        if not is_background:
            opacity = _outline(rng, n)
        colour = to_linear(texture(rng, n))
        # Premultiplied alpha: the sheet stores colour * opacity. `render` adds (1 - opacity) *
        # behind, where `behind` is the picture of the layers behind this layer.
        sheet = np.concatenate((colour * opacity, opacity), axis=2)  # (n, n, 4)
        # Parallax: a nearer layer shifts more. The background shifts as far as the camera shakes,
        # and the objects 1.35, 1.7 and 2.05 times as far.
        parallax = 1.0 + 0.35 * depth
        shifts = shake * parallax + motion  # (planes, 2): x, y
        path = np.column_stack((shifts, turn))  # (planes, 3): x, y, turn
        layers.append(Layer(sheet, path, side))
    return layers


def _shake_of_camera(rng: np.random.Generator, planes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the shift of the camera (planes, 2) in pixels, and its turn (planes,) in radians.

    The shift is up to 22 pixels in x and 16 pixels in y, and the turn up to 0.05 radians (3
    degrees). Each is a sum of waves with periods of 3 to 9 exposures. So the picture moves by some
    pixels within an exposure, as in GoPro. Larger amplitudes would blur the frames more.
    """
    walk = partial(smooth_walk, rng, planes, periods=(3.0 * PLANES, 9.0 * PLANES))
    shake_x = walk(amplitude=22.0)
    shake_y = walk(amplitude=16.0)
    turn = walk(amplitude=0.05)
    return np.stack([shake_x, shake_y], axis=1), turn


def _outline(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return the opacity (n, n, 1) of one object near the middle of the sheet.

    The object is a polygon with nine corners and soft edges.

    n: side of the sheet, in pixels.
    """
    # The corners lie around a centre, at 14 to 34 pixels from it.
    angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
    radii = rng.uniform(14, 34, 9)
    centre = n / 2 + rng.uniform(-36, 36, 2)
    from_centre = np.stack((radii * np.cos(angles), radii * np.sin(angles)), axis=1)  # (9, 2)
    corners = centre + from_centre
    filled = cv2.fillPoly(
        np.zeros((n, n, 1), np.float32), [corners.astype(np.int32)], 1.0, cv2.LINE_AA
    )
    blurred = cv2.GaussianBlur(filled, ksize=(0, 0), sigmaX=0.9)  # ksize follows from sigmaX
    return blurred[..., None]  # OpenCV has dropped the last axis, because its length is 1


# ---- What the camera sees ------------------------------------------------------------------------


def render(layers: list[Layer], plane: int) -> np.ndarray:
    """Return what the camera sees at `plane`: linear light (side, side, 3) float32."""
    side = layers[0].side
    centre = side / 2
    picture = np.zeros((side, side, 3), np.float32)
    for layer in layers:
        shift_x, shift_y, angle = layer.path[plane]
        cos = np.cos(angle)
        sin = np.sin(angle)
        middle = layer.sheet.shape[0] / 2
        # The pixel p of the camera shows the pixel q of the sheet. R is the rotation by the angle:
        #     q = R (p - centre) + middle + shift
        #       = R p + (middle + shift - R centre)
        # The first two columns of the matrix are R, and its last column is the term in brackets. x
        # and y of the centre are the same number, so
        #     R centre = (cos centre - sin centre, sin centre + cos centre).
        to_sheet = np.array([
            [cos, -sin, middle + shift_x - centre * cos + centre * sin],
            [sin, cos, middle + shift_y - centre * sin - centre * cos],
        ])  # fmt: skip
        # WARP_INVERSE_MAP: the matrix maps a pixel of the result to a pixel of the source.
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        seen_layer = cv2.warpAffine(
            layer.sheet, to_sheet, (side, side), flags=flags, borderMode=cv2.BORDER_REFLECT
        )
        # The layer covers the layers behind it. Its colour is already multiplied by its opacity.
        colour = seen_layer[..., :3]
        opacity = seen_layer[..., 3:]
        picture = picture * (1.0 - opacity) + colour
    return np.clip(picture, 0.0, 1.0)


# ---- What a layer shows --------------------------------------------------------------------------


def texture(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return a random texture: (n, n, 3) display values in [0.04, 0.98].

    The texture is coloured 1/f noise with painted shapes. The edges of the shapes are as wide as
    one spike pixel. lab/benchmark.py uses this function, too.

    n: side of the texture, in pixels.
    """
    picture = to_uint8(_clouds(rng, n))
    # One shape for each 30 x 30 pixels, so that each part of a frame has edges.
    number_of_shapes = int(n * n / 900)
    for _ in range(number_of_shapes):
        _paint_shape(rng, picture)  # in place
    # A blur of 0.9 pixels makes an edge about two RGB pixels wide, as wide as one spike pixel.
    smooth = cv2.GaussianBlur(picture.astype(np.float32) / 255, (0, 0), 0.9)
    # Now no pixel is completely black or white.
    return np.clip(smooth, 0.04, 0.98)


def _clouds(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return coloured noise (n, n, 3) with the spectrum 1 / f**a, as natural images have it."""
    # The spectrum: f = sqrt(frequency_y^2 + frequency_x^2).
    frequency_y = np.fft.fftfreq(n)[:, None]  # (n, 1)
    frequency_x = np.fft.rfftfreq(n)[None]  # (1, n / 2 + 1)
    frequency = np.hypot(frequency_y, frequency_x)
    frequency[0, 0] = 1.0  # instead of 0, because 0 ** -a is infinite
    a = rng.uniform(1.2, 1.6)
    spectrum = frequency**-a
    spectrum[0, 0] = 0.0  # the mean is 0

    # Three channels of white noise, times the spectrum.
    channels = []
    for _ in range(3):
        white_noise = np.fft.rfft2(rng.standard_normal((n, n)))
        channels.append(np.fft.irfft2(spectrum * white_noise, (n, n)))
    clouds = np.stack(channels)  # (3, n, n)
    clouds /= clouds.std(axis=(1, 2), keepdims=True)  # each channel has the standard deviation 1

    # The first channel is brightness. The second moves the colour between red and blue, and the
    # third between green and purple. Tints are weak, as in natural images.
    brightness, warmth, greenness = clouds
    red = warmth
    green = greenness  # below 0, red and blue are left: purple
    blue = -warmth
    tints = np.stack((red, green, blue), axis=2)  # (n, n, 3)
    mean_colour = rng.uniform(0.35, 0.65, 3)
    brightness_of_colours = brightness[..., None]  # (n, n, 1), the same for the three colours
    # With 0.13, brightness reaches from 0.11 to 0.89 around a mean of 0.5 (three standard
    # deviations). A larger number would cut off more bright and dark places.
    return mean_colour + 0.13 * brightness_of_colours + 0.04 * tints


def _paint_shape(rng: np.random.Generator, picture: np.ndarray) -> None:
    """Paint a random disc, bar, polygon or letter into a picture (n, n, 3) uint8, in place.

    The order of the random numbers must stay, and no test notices another order.
    """
    n = len(picture)
    brightness = rng.uniform(0.05, 0.95)
    tint = 0.2 * rng.uniform(-1, 1, 3)
    colour = tuple(float(value) for value in 255 * np.clip(brightness + tint, 0, 1))
    x, y = (int(value) for value in rng.integers(0, n, 2))
    size = int(rng.integers(4, 16))  # pixels
    kind = int(rng.integers(4))

    if kind == 0:
        radius = size // 2 + 2
        cv2.circle(picture, (x, y), radius, colour, cv2.FILLED, cv2.LINE_AA)
    elif kind == 1:
        angle = rng.uniform(0, np.pi)
        length = 3 * size
        end_x = int(x + length * np.cos(angle))
        end_y = int(y + length * np.sin(angle))
        width = int(rng.integers(2, 6))
        cv2.line(picture, (x, y), (end_x, end_y), colour, width, cv2.LINE_AA)
    elif kind == 2:
        count = int(rng.integers(3, 6))
        corners = np.array([x, y]) + rng.uniform(-size, size, (count, 2))
        cv2.fillPoly(picture, [corners.astype(np.int32)], colour, cv2.LINE_AA)
    else:
        letter = LETTERS[int(rng.integers(len(LETTERS)))]
        font = cv2.FONT_HERSHEY_SIMPLEX
        font_scale = size / 14  # OpenCV's letters are about 21 pixels high at a scale of 1
        thickness = 2
        cv2.putText(picture, letter, (x, y), font, font_scale, colour, thickness, cv2.LINE_AA)
