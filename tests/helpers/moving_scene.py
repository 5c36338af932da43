"""A coloured scene that moves along a known path in front of an RGB camera and a spike camera.

Tests of motion compare an estimated motion with the true motion, which `Scene.shifts` gives.
`Scene.write` renders the scene and writes a clip of a user: the folders blur/, sharp/ and spike/.
`reader_of` opens this clip as main_test_vrt.py does.

Times are in exposures. An exposure is the time of one frame, and time 0 is the middle of the clip.
A plane is one reading of the spike camera; an exposure has `planes` of them.

What must stay: the picture and the spikes of a scene, and therefore the order of its random draws.
Another picture would give other errors of the estimated motion, and the tests compare these errors
with limits. Free to add: a field whose default changes nothing.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.clips.clip_reader import user_clips
from data.clips.readers import DatasetClip
from data.clips.user_folders import files_in
from data.spike.formats import read_spikes, write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import bin_pixels, to_display, to_grey, to_linear, to_uint8
from data.spike.simulate import IntegrateAndFire
from tests.helpers.two_cameras import texture
from utils.image import imread_rgb, imwrite_rgb

# Pixels of the scene on each side of the frame. They come into view when the scene moves.
MARGIN = 40


@dataclass(frozen=True)
class Scene:
    """A scene with an affine motion at constant speed, and the two cameras that see it.

    The cameras may also shake.
    """

    # Shift along x and along y, in pixels per exposure.
    velocity: tuple[float, float] = (0.0, 0.0)
    # Rotation about the middle of the frame, from x towards y, in degrees per exposure.
    turn_deg: float = 0.0
    # Largest shift along x by a shake of the camera, in pixels. The camera shakes back and forth
    # twice per exposure.
    shake: float = 0.0
    # Height and width of the RGB frames.
    size: tuple[int, int] = (96, 96)
    # Spike planes of a frame.
    planes: int = 60
    # Frames of the clip.
    frames: int = 3
    # Spikes per plane at full light.
    rate: float = 0.6
    # Plane of a frame at which its sharp picture is taken, from 0. 30 is the middle of 60.
    sharp_plane: int = 30
    # Seed of the texture and of the spike camera.
    seed: int = 3
    # What the spike camera integrates:
    #     "linear"    linear light, as real cameras do
    #     "display"   display values, as in the public data set Spk-GoPro, which is synthetic
    light: str = "linear"
    # The RGB camera exposes the frame during this share of its planes, e.g. 0.8. Before and after
    # the exposure, equally many planes of the frame are left.
    exposure: float = 1.0
    # The last row is exposed later than the first row, by this share of the exposure (a rolling
    # shutter).
    rolling: float = 0.0
    # What is averaged to a blurry frame:
    #     "light"     linear light, as in a real camera
    #     "display"   display values, which are gamma-corrected. No real camera averages them
    averaged: str = "light"
    # Side in pixels of a square in the middle that moves on its own. 0 if there is no square.
    spot: int = 0
    # Shift of this square along x and y, in pixels per exposure.
    spot_velocity: tuple[float, float] = (0.0, 0.0)

    # ---- The true motion ----

    def matrix(self, time: float) -> np.ndarray:
        """Return the motion (3, 3) from the middle of the clip (time 0) to another time.

        The matrix maps the position (x, y, 1) of a point at time 0 to its position at `time`.

        time: in exposures from the middle of the clip.
        """
        height, width = self.size
        center = ((width - 1) / 2, (height - 1) / 2)
        # OpenCV and `turn_deg` count angles in opposite directions: for positive angles, OpenCV
        # turns from y towards x, and `turn_deg` from x towards y. So the sign changes.
        motion = cv2.getRotationMatrix2D(center, -self.turn_deg * time, 1.0)
        motion[:, 2] += np.array(self.velocity) * time
        motion[0, 2] += self.shake * np.sin(2 * (2 * np.pi) * time)  # two periods in an exposure
        return np.vstack((motion, (0, 0, 1)))

    def time_of(self, plane: int) -> float:
        """Return the time of the middle of a plane of the clip, in exposures.

        E.g. with 3 frames of 60 planes, the clip lasts from -1.5 to 1.5. Plane 0 has the time
        0.5 / 60 - 1.5 = -1.492, and plane 150 has the time 150.5 / 60 - 1.5 = 1.008.

        plane: number of the plane, from 0 at the start of the clip.
        """
        return (plane + 0.5) / self.planes - self.frames / 2

    def sharp_time(self, frame: int) -> float:
        """Return the time of the sharp picture of a frame, in exposures.

        E.g. frame 2, with 60 planes and sharp_plane 30, has its sharp picture at plane 150.
        """
        return self.time_of(frame * self.planes + self.sharp_plane)

    def shifts(self, frame: int, planes: float) -> np.ndarray:
        """Return the true shift (H, W, 2) of each pixel, as x and y.

        The shift leads from the sharp picture of `frame` to the view at another time.

        planes: the other time, in spike planes after the sharp picture. A negative number is a
            time before the sharp picture.
        """
        start = self.sharp_time(frame)
        end = start + planes / self.planes
        # From `start` to the middle of the clip, and from there to `end`.
        motion = self.matrix(end) @ np.linalg.inv(self.matrix(start))

        height, width = self.size
        y, x = np.mgrid[:height, :width].astype(np.float64)
        points = np.stack((x, y, np.ones_like(x)))  # (3, H, W)
        # moved[i] = sum over j of motion[i, j] * points[j]: the x and the y of each moved pixel.
        moved = np.tensordot(motion[:2], points, 1)  # (2, H, W)
        return np.moveaxis(moved, 0, -1) - np.stack((x, y), axis=-1)

    # ---- What the cameras see ----

    def lights(self) -> Iterator[np.ndarray]:
        """Yield the linear light (H, W, 3) of each plane of the clip."""
        rng = np.random.default_rng(self.seed)
        height, width = self.size
        scene = _coloured_texture(rng, height + 2 * MARGIN, width + 2 * MARGIN)
        # Increase the contrast of the texture, by factors that were chosen by hand. No value is
        # below 0.02, because a black pixel would give no spikes.
        scene = to_linear(np.clip(1.6 * scene - 0.3, 0.02, 1))
        # The square is the upper left corner of a second texture. This texture has the size of the
        # frame, so its random draws do not depend on the size of the square.
        spot = to_linear(_coloured_texture(rng, height, width))[: self.spot, : self.spot]
        # The first pixel of the frame lies MARGIN pixels from the upper and left edge of the scene.
        to_frame = _translation(-MARGIN, -MARGIN)

        for plane in range(self.frames * self.planes):
            time = self.time_of(plane)
            # A pixel of the scene first goes to the frame, and then moves: the matrix at the right
            # of "@" is applied first.
            view = _render_view(scene, self.matrix(time) @ to_frame, self.size)
            if self.spot:
                view = self._with_spot(view, spot, time)
            yield view

    def _with_spot(self, view: np.ndarray, spot: np.ndarray, time: float) -> np.ndarray:
        """Return a view (H, W, 3) with the moving square in front of it."""
        height, width = self.size
        top = height // 2 - self.spot // 2
        left = width // 2 - self.spot // 2
        shift = np.array(self.spot_velocity) * time
        to_view = _translation(left + shift[0], top + shift[1])
        # 1 where the square covers a pixel, 0 outside, and in between at its edges.
        cover = _render_view(np.ones_like(spot), to_view, self.size, cv2.BORDER_CONSTANT)
        return view * (1 - cover) + _render_view(spot, to_view, self.size, cv2.BORDER_CONSTANT)

    def _weights_of_planes(self) -> np.ndarray:
        """Return the weight (planes, H) of each plane in each row of the blurry frame.

        The weights of a row sum to 1. A plane that is exposed only in part has a smaller weight.
        E.g. with 4 planes and an exposure of 0.75, 3 planes long, the exposure begins in the middle
        of the first plane. Then the weights are 1/6, 1/3, 1/3, 1/6.
        """
        length = self.exposure * self.planes  # length of the exposure, in planes
        rows = self.size[0]
        row = np.arange(rows) / (rows - 1) - 0.5  # (H,): -0.5 in the first row, 0.5 in the last
        begin = (self.planes - length) / 2 + row * self.rolling * length  # (H,), in planes
        end = begin + length
        plane = np.arange(self.planes)[:, None]  # (planes, 1): plane p lasts from p to p + 1
        # The part of each plane that is exposed, 0 to 1. Negative if the plane is not exposed.
        overlap = np.minimum(plane + 1, end) - np.maximum(plane, begin)  # (planes, H)
        return np.clip(overlap, 0, 1) / length

    def _blurry(self, lights: np.ndarray) -> np.ndarray:
        """Return the light (H, W, 3) of a blurry frame from the lights (planes, H, W, 3)."""
        # Sum the planes t for each row y, column x and channel c.
        weights = self._weights_of_planes()  # (planes, H)
        if self.averaged == "display":
            values = to_display(lights)
            return to_linear(np.einsum("ty,tyxc->yxc", weights, values))
        return np.einsum("ty,tyxc->yxc", weights, lights)

    def _spike_camera_input(self, light: np.ndarray) -> np.ndarray:
        """Return the values (H/2, W/2) that the pixels of the spike camera add up in one plane.

        light: (H, W, 3), the linear light of the plane.
        """
        values = to_display(light) if self.light == "display" else light
        return bin_pixels(to_grey(values), factor=2)

    # ---- The files of a clip ----

    def write(self, folder: Path) -> Path:
        """Write blur/, sharp/ and spike/ with its dataset.json into `folder`, and return it.

        A spike pixel covers 2 x 2 RGB pixels.
        """
        for kind in ("blur", "sharp", "spike"):
            (folder / kind).mkdir(parents=True)
        height = self.size[0] // 2
        width = self.size[1] // 2
        noise = np.random.default_rng(self.seed)
        camera = IntegrateAndFire(height, width, rate=self.rate, rng=noise)

        lights = self.lights()
        for frame in range(self.frames):
            exposure = [next(lights) for _ in range(self.planes)]
            name = f"{frame:03d}"
            _write_picture(folder / f"blur/{name}.png", self._blurry(np.stack(exposure)))
            _write_picture(folder / f"sharp/{name}.png", exposure[self.sharp_plane])
            spikes = camera.run(self._spike_camera_input(light) for light in exposure)
            write_spikes(folder / f"spike/{name}.dat", spikes, SpikeGeometry(height, width))

        about = {
            "format": 1,
            "h": height,
            "w": width,
            "flip": True,
            "planes": self.planes,
            "rate": self.rate,
            "light": self.light,
            "gt_plane": self.sharp_plane,
        }
        (folder / "spike/dataset.json").write_text(json.dumps(about))
        return folder


def with_clipped_sky(folder: Path, rate: float) -> None:
    """Give a clip of a scene a sky, which is four times as bright as the RGB camera can show.

    The upper half of the frames becomes white, and the upper half of the planes gets the spikes of
    the sky. The lower halves stay as they are.

    folder: the clip, as `Scene.write` makes it.
    rate: spikes per plane at full light. It must be below 1/4, because a pixel of the sky has four
    times as many spikes, and a pixel fires at most once in a plane.
    """
    for picture in (*files_in(folder / "blur"), *files_in(folder / "sharp")):
        frame = imread_rgb(picture)
        frame[: len(frame) // 2] = 255
        imwrite_rgb(picture, frame)
    plane = _plane_of(folder)
    rows = plane.height // 2  # height of the sky
    noise = np.random.default_rng(0)
    camera = IntegrateAndFire(rows, plane.width, rate=rate, rng=noise)
    light = np.full((rows, plane.width), 4.0)
    for file in files_in(folder / "spike", (".dat",)):
        spikes = read_spikes(file, plane)
        spikes[:, :rows] = camera.run(light for _ in spikes)  # the same light in each plane
        write_spikes(file, spikes, plane)


def change_spikes(folder: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Apply a function to the spikes (T, h, w) of each spike file of a clip of `Scene.write`."""
    plane = _plane_of(folder)
    for file in files_in(folder / "spike", (".dat",)):
        write_spikes(file, change(read_spikes(file, plane)), plane)


def _plane_of(folder: Path) -> SpikeGeometry:
    """Return the size of the spike planes of a clip of `Scene.write`."""
    about = json.loads((folder / "spike/dataset.json").read_text())
    return SpikeGeometry(about["h"], about["w"])


def reader_of(folder: Path, **spike: Any) -> DatasetClip:
    """Return the clip in a folder of `Scene.write`, opened as main_test_vrt.py opens it.

    spike: keys of the section `spike` in place of the usual ones.
    """
    options = {"type": "dat", "representation": "exposure", **spike}
    [reader] = user_clips(folder / "blur", folder / "spike", folder / "sharp", options)
    return reader


def _coloured_texture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return display values (height, width, 3), with another texture in each channel."""
    channels = [texture(rng, (height, width)) for _ in range(3)]
    return np.stack(channels, axis=-1)


def _translation(x: float, y: float) -> np.ndarray:
    """Return the matrix (3, 3) of a shift."""
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1.0]])


def _render_view(
    scene: np.ndarray, matrix: np.ndarray, size: tuple[int, int], border: int = cv2.BORDER_REPLICATE
) -> np.ndarray:
    """Return the view of a scene that is moved by `matrix`, with `size` (height, width).

    border: what OpenCV takes outside of the scene. BORDER_REPLICATE repeats its edge, and
        BORDER_CONSTANT gives 0.

    OpenCV rounds positions to 1/32 of a pixel, which is too coarse for the tests. So the view is
    rendered 4 times as large, and each 4 x 4 pixels are averaged.
    """
    fine = 4
    enlarge = np.diag((fine, fine, 1.0))
    # Pixel 0 becomes the fine pixels 0 to 3, whose middle is 1.5. So shift by 1.5 fine pixels.
    enlarge[:2, 2] = (fine - 1) / 2
    height, width = size
    view = cv2.warpPerspective(
        scene.astype(np.float32),
        enlarge @ matrix,
        (width * fine, height * fine),
        borderMode=border,
    )
    return cv2.resize(view, (width, height), interpolation=cv2.INTER_AREA)


def _write_picture(path: Path, light: np.ndarray) -> None:
    """Write linear light (H, W, 3) as a PNG."""
    rgb = to_uint8(to_display(light))
    assert cv2.imwrite(str(path), rgb[..., ::-1])  # OpenCV wants BGR
