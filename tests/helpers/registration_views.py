"""Views of a simulated scene for the tests of a fit (data/cameras/registration).

A fit finds how the spike camera lies beside the RGB camera, in space and in time. Both cameras see
the same places.

    moving_view    the picture swings, so a fit can find the times of the exposure
    pan            the picture moves at one speed, so a time offset looks like a shift of a camera

What must stay: sizes, planes and rates. The tests compare the results of fits with limits that fit
these numbers.
"""

import cv2
import numpy as np
import skimage.data

from data.cameras.registration.view import View
from data.spike.pictures import to_display, to_linear, to_uint8
from data.spike.simulate import IntegrateAndFire
from tests.helpers.two_cameras import texture

SIDE = 128  # of a frame, in pixels
SPIKE = (SIDE // 2, SIDE // 2)
RGB = (SIDE, SIDE)
PLANES = 40  # of an exposure
AROUND = 20  # planes that are recorded before and after the exposure
# Spikes per plane at full light. A camera has at most 1. With 200, spikes have hardly any noise.
RATE = 200


def moving_view() -> View:
    """Return a view of a picture that swings by 8 pixels to each side, along x and along y.

    With a steady motion, a fit could not find the times of the exposure, because a later exposure
    would look like a camera that is moved.
    """
    picture = texture(np.random.default_rng(1), (2 * SIDE, 2 * SIDE))
    plane = np.arange(PLANES + 2 * AROUND)
    # The middle of the view swings with a period of 60 planes along x, and of 42 planes along y.
    # The numbers were chosen by hand.
    x_of_planes = SIDE + 8 * np.sin(2 * np.pi * plane / 60)
    y_of_planes = SIDE + 8 * np.cos(2 * np.pi * plane / 42)
    lights = []
    planes = []
    for x, y in zip(x_of_planes.tolist(), y_of_planes.tolist(), strict=True):
        light = cv2.getRectSubPix(picture, RGB, (x, y))
        of_spike_pixels = cv2.resize(light, SPIKE, interpolation=cv2.INTER_AREA)
        lights.append(light)
        planes.append(np.rint(RATE * of_spike_pixels).astype(np.uint8))
    frame = frame_of(lights[AROUND : AROUND + PLANES])
    return View(frame, np.stack(planes), before=AROUND, count=PLANES)


def frame_of(lights: list[np.ndarray]) -> np.ndarray:
    """Return the blurry frame (H, W, 3) uint8 of the light (H, W) of the exposed planes."""
    mean_light = np.mean(lights, axis=0)
    grey = to_uint8(to_display(mean_light))
    return np.repeat(grey[..., None], 3, axis=2)


def pan(
    picture: np.ndarray, speed: tuple[float, float], frames: int, share: float = 1.0
) -> list[View]:
    """Return the views of two aligned cameras that pan over a picture at one speed.

    picture: the light of the scene, (2 SIDE, 2 SIDE).
    speed: x and y, in RGB pixels per plane.
    frames: number of frames, and so of views.
    share: the share of the planes during which a frame is exposed, in the middle of its planes.
    """
    x_speed, y_speed = speed
    planes = PLANES * frames
    lights = []
    for plane in range(planes):
        time = plane - planes / 2  # in planes, 0 in the middle
        x = SIDE + x_speed * time
        y = SIDE + y_speed * time
        lights.append(cv2.getRectSubPix(picture, RGB, (x, y)))  # the view with this middle
    # A rate of 0.6 gives 24 spikes per exposure at full light, as in a real camera. So the spikes
    # also have the noise of a real camera. With an `initial_charge` of 1, the charge of each pixel
    # begins at a random value below the threshold.
    sensor = IntegrateAndFire(*SPIKE, rate=0.6, rng=np.random.default_rng(3), initial_charge=1.0)
    spikes = sensor.run(cv2.resize(light, SPIKE, interpolation=cv2.INTER_AREA) for light in lights)
    views = []
    for begin in range(0, planes, PLANES):
        end = begin + PLANES
        unexposed = round(PLANES * (1 - share) / 2)  # planes at each end: 5 if the share is 0.75
        frame = frame_of(lights[begin + unexposed : end - unexposed])
        # The first view has no planes before its exposure, and the last has none after it, because
        # a slice ends at the end of the stream.
        before = min(AROUND, begin)
        stream = spikes[begin - before : end + AROUND]
        views.append(View(frame, stream, before, count=PLANES))
    return views


def cat() -> np.ndarray:
    """Return the light of a photograph with soft edges, (2 SIDE, 2 SIDE)."""
    light = to_linear(skimage.data.chelsea().astype(np.float32) / 255).mean(axis=2)
    # The tests use this part of the photograph. On other parts, their fits have other results.
    top = 40
    left = 180
    return np.ascontiguousarray(light[top : top + 2 * SIDE, left : left + 2 * SIDE])
