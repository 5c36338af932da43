#!/usr/bin/env python3
"""Train the network that finds the motion within an exposure (models/fusion/motion_net.py).

    python lab/train_motion_net.py --videos VIDEOS --out FILE [--minutes 45] [--seed 0]

The network learns from scenes whose motion is known exactly (`Scene`): a background, and up to five
things in front of it. Each of them moves, turns, grows and shears along its own curve. They are cut
from frames of the training videos of lab/quality.py, from photographs of scikit-image on which
lab/joint_gain.py does not test, and from drawings. Two simulated spike cameras see each scene, each
in another light. The data of one step of the training flow in this order:

    all_textures -> random_scene -> recorded (spikes, blurry frame) -> Sample
    8 samples -> batch_of -> turned -> MotionNet -> loss_of

The program uses one thread of a CPU. It writes the weights to FILE every 30 seconds and at the end,
and prints the mean error of the motion. lab/train_motion.py reads FILE, and trains the rest of
weights/motion.pth behind the network.

What must stay: the order of the random draws. All random numbers come from one generator, one after
the other. A new draw, or another order of two draws, changes all scenes after it. No test notices,
but a training cannot be repeated then. lab/vrt_curve.py draws its scenes and computes its loss with
functions of this file. Free to change: the values under "Training", for the next training.

Tests: tests/parts/house/test_vrt_curve.py draws scenes and computes the loss, but it looks at none
of these numbers. E.g. it passes if a true shift has the wrong sign. No test runs `train`. So train
for two minutes after a change: the printed error must become clearly smaller than the printed
length, e.g. 0.7 of 1.2 pixels. With the wrong sign of y it stays as large as the length.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.motion.network_inputs import USUAL_PLANES, pictures_of
from data.motion.spike_windows import spike_windows
from data.spike.pictures import DISPLAY_GAMMA
from lab.quality import PHOTOS, VIDEOS, video_files
from models.fusion.motion_net import Curves, MotionNet
from models.fusion.motion_windows import EDGES, INSIDE, WINDOWS, displacements

# ---- Time ------------------------------------------------------------------------------------
#
# A plane is one binary picture of the spike camera. tau counts halves of an exposure after the
# sharp instant: tau = -1 is about the begin of the exposure, tau = 1 its end.

PLANES = 88  # planes of an exposure
HALF = 44  # planes of half an exposure
SHARP = 44.5  # the sharp instant, in planes from the begin of the exposure: the middle of plane 44
BEFORE = 40  # planes of a scene before the exposure, and as many after it
STEP = 2  # two planes in a row see the same light, which halves the time for drawing a scene
# The instants at which a scene is drawn, (84,): the middles of pairs of planes, in planes after the
# sharp instant. E.g. the first pair, planes -40 and -39, has its middle at -39, and -39 - 44.5 is
# -83.5.
INSTANTS = np.arange(-BEFORE, PLANES + BEFORE, STEP) + STEP / 2 - SHARP
# The middles of the 15 windows of `MotionNet`, (15,), in planes after the sharp instant. EDGES are
# in elevenths of an exposure from its middle, and USUAL_PLANES is the planes of an eleventh. E.g.
# the middle window has its middle at 0 elevenths, which is 44 planes after the begin of the
# exposure and so at 44 - 44.5 = -0.5.
_MIDDLES_OF_EDGES = (np.array(EDGES[:-1]) + np.array(EDGES[1:])) / 2
MIDDLES = (_MIDDLES_OF_EDGES * USUAL_PLANES + HALF) - SHARP
# The sensor first sees a still scene for this number of planes, so that the charge of a pixel no
# longer depends on its initial value. It sees the last instant as long after the scene, because
# `spike_windows` looks for the first spike after the last window.
WARM_UP = 24
SIDE = 64  # height and width of a scene, in spike pixels
# A layer is larger than the scene by this number of pixels on each side, so that its picture goes
# on where the layer moves into the scene.
MARGIN = 32

# ---- Training --------------------------------------------------------------------------------
#
# The shipped network was trained with these values. No measurement of other values is recorded.

BATCH = 8  # samples of a step
# Drawing scenes takes time. So a new scene (two samples) comes only every third step, and the rest
# of each batch is drawn from the newest 1600 samples.
NEW_EVERY = 3  # steps
POOL = 1600  # samples that are kept in memory
FIRST_POOL = 40  # samples that are drawn before the first step
RATE = 1.2e-3  # largest learning rate
LAST_RATE = 1e-5  # added to the learning rate, so that it does not end at 0
WARM_STEPS = 100  # steps in which the learning rate rises
# The finest level takes half of the time of a step. It is left out in the first 45 % of the
# training. This loses little, because it only corrects what the coarser levels have found.
SHARE_WITHOUT_FINEST = 0.45
LEVEL_WEIGHTS = (0.4, 0.4, 0.6, 1.0)  # of the levels in the loss, the coarsest first
# An error of this size, in spike pixels, counts as 1 in the first term of the loss. A larger value
# gives more weight to the second term, the expected error.
USUAL_ERROR = 1.5
# Limits of s, the logarithm of the expected error, in the loss: errors of 0.007 to 55 pixels.
# Without limits, exp(-s) could become very large at first.
LOG_ERRORS = (-5, 4)
LARGEST_GRADIENT = 1.0  # larger gradients are scaled down to this norm
# Share of the old weights in the moving average of the weights. 0.995 averages over about the last
# 200 steps.
MOST_OLD = 0.995
PRINT_EVERY = 30  # seconds; the weights are written as often


def main(argv: Sequence[str]) -> int:
    """Draw the textures, train the network and write its weights. Returns the exit code 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--out", type=Path, required=True, help="file of the weights")
    add("--minutes", type=float, default=45, help="time of the training, default %(default)s")
    add("--seed", type=int, default=0, help="seed of weights and scenes, default %(default)s")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    textures = all_textures(args.videos)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    train(textures, args.out, 60 * args.minutes, args.seed)
    return 0


# ---- What things look like -------------------------------------------------------------------

# A texture is a grey picture from which the surfaces of things are cut. All textures are equally
# likely, so these numbers decide how often a scene shows a frame, a photograph or a drawing.
FRAMES_OF_VIDEO = 30  # textures from each video
# Each photograph is in the list so many times, because all entries are equally likely: without
# copies, one photograph would be drawn 30 times less often than one video.
PHOTO_COPIES = 4
DRAWINGS = 60
# Pictures are scaled down to these sides in pixels, because a surface is cut out of 64 to 205
# pixels of them: at full size a surface would show a smaller part of an object.
FRAME_SIDE = 256  # smaller side of a frame
PHOTO_SIDE = 320  # smaller side of a photograph
DRAWING_SIDE = 224  # both sides of a drawing
DRAWN_SHAPES = 40  # discs, lines and letters in a drawing
# Photographs of scikit-image for training. lab/joint_gain.py tests on other photographs, which
# `photo_files` refuses.
TRAINING_PHOTOS = (
    "brick.png", "camera.png", "cell.png", "clock_motion.png", "coins.png", "grass.png",
    "gravel.png", "ihc.png", "microaneurysms.png", "moon.png", "motorcycle_left.png", "page.png",
    "text.png",
)  # fmt: skip


def all_textures(videos: Path) -> list[np.ndarray]:
    """Return grey pictures (h, w) uint8 from videos, photographs and drawings.

    Their order is part of the training, because scenes draw a picture by its index.

    videos: folder of the videos of lab/quality.py.
    """
    textures = []
    for video in video_files(videos, VIDEOS["train"]):
        textures += frames_of(video)
    for file in photo_files(TRAINING_PHOTOS):
        photo = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
        assert photo is not None, file
        textures += [smaller(photo, PHOTO_SIDE)] * PHOTO_COPIES
    # A generator of their own makes the drawings the same in each training, whatever its --seed.
    # The number 5 is arbitrary. Another number gives other drawings.
    rng = np.random.default_rng(5)
    for _ in range(DRAWINGS):
        textures.append(drawing(rng))
    return textures


def photo_files(names: Iterable[str]) -> list[Path]:
    """Return the paths of photographs in the installed package scikit-image.

    lab/train_motion.py calls it as well.

    names: file names, e.g. "coins.png". A photograph on which lab/joint_gain.py tests is refused.
    """
    spec = find_spec("skimage")
    assert spec is not None and spec.origin is not None  # scikit-image is not installed
    folder = Path(spec.origin).parent / "data"
    files = []
    for name in names:
        assert name not in PHOTOS["skimage"], name
        files.append(folder / name)
    return files


def frames_of(video: Path) -> list[np.ndarray]:
    """Return 30 frames of a video, evenly spread, as grey pictures (h, w) uint8."""
    capture = cv2.VideoCapture(str(video))
    count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    chosen = set(np.linspace(0, count - 1, FRAMES_OF_VIDEO).astype(int).tolist())
    pictures = []
    # Read every frame in order, because OpenCV may miss a frame that it is asked to jump to.
    for frame_index in range(count):
        is_read, frame = capture.read()
        if not is_read:
            break  # some videos have fewer frames than their header says
        if frame_index in chosen:
            grey = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY)
            pictures.append(smaller(grey, FRAME_SIDE))
    return pictures


def smaller(picture: np.ndarray, side: int) -> np.ndarray:
    """Return a picture whose smaller side has at most `side` pixels. It is never enlarged."""
    scale = side / min(picture.shape)
    if scale >= 1:
        return picture
    return cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)


def drawing(rng: np.random.Generator) -> np.ndarray:
    """Draw discs, lines and letters on a cloudy sky. Returns (224, 224) uint8."""
    n = DRAWING_SIDE
    # Noise whose amplitude falls with a power of the frequency looks like clouds:
    # amplitude = frequency^-power, and 0 for the mean.
    frequency_y = np.fft.fftfreq(n)[:, None]  # (n, 1)
    frequency_x = np.fft.rfftfreq(n)[None]  # (1, n / 2 + 1)
    frequency = np.hypot(frequency_y, frequency_x)
    frequency[0, 0] = 1  # instead of 0, which has no negative power
    power = rng.uniform(1.1, 1.8)
    amplitude = frequency**-power
    amplitude[0, 0] = 0
    white_noise = np.fft.rfft2(rng.standard_normal((n, n)))
    clouds = np.fft.irfft2(amplitude * white_noise, (n, n))
    # Grey 128 in the mean, with a standard deviation of 40.
    picture = np.clip(128 + 40 * clouds / clouds.std(), 0, 255).astype(np.uint8)

    for _ in range(DRAWN_SHAPES):
        # Random numbers for a shape of any kind: its place (x, y), and the end of a line. A disc
        # and a letter do not use the end.
        x, y, end_x, end_y = rng.integers(0, n, 4).tolist()
        grey = int(rng.integers(0, 256))
        shape = rng.integers(3)
        if shape == 0:
            radius = int(rng.integers(3, 16))
            cv2.circle(picture, (x, y), radius, grey, cv2.FILLED, cv2.LINE_AA)
        elif shape == 1:
            width = int(rng.integers(1, 6))
            cv2.line(picture, (x, y), (end_x, end_y), grey, width, cv2.LINE_AA)
        else:
            # Letters and digits with straight, slanted and round strokes.
            letter = "AEHKMRSX2589"[rng.integers(12)]  # one of these 12
            scale = float(rng.uniform(0.5, 1.6))
            font = cv2.FONT_HERSHEY_SIMPLEX
            cv2.putText(picture, letter, (x, y), font, scale, grey, 2, cv2.LINE_AA)
    return picture


# ---- Scenes with exact motion ----------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A flat picture that moves: the background, or a thing in front of it.

    A point p of the picture at the sharp instant has moved, at the time tau, to

        p' = A(tau) (p - center) + center + trajectory(tau)

    A is the matrix of `linear`. n = SIDE + 2 MARGIN is the side of the picture of a layer, and N is
    the number of INSTANTS. Both `picture_at` and `shifts` follow this equation: change them
    together, because the network learns that the shifts explain the pictures. No test compares
    them. With the wrong sign of y in `shifts` alone, a training found no motion.
    """

    light: np.ndarray  # (n, n) what it shows, linear light in [0, 1]
    cover: np.ndarray  # (n, n) 1 where it hides what is behind it, 0 where it does not
    center: np.ndarray  # (2,) x and y about which it turns, in pixels of the scene
    trajectory: np.ndarray  # (N, 2) x and y of its shift at INSTANTS, in pixels
    turn: np.ndarray  # (2,) angle in radians: turn[0] tau + turn[1] tau^2
    zoom: np.ndarray  # (2,) logarithm of its size: zoom[0] tau + zoom[1] tau^2
    shear: np.ndarray  # (2,) shear of x by y, and of y by x, for each tau

    def linear(self, tau: float) -> np.ndarray:
        """Return the matrix A(tau), (2, 2): a rotation times a scale, plus a shear."""
        angle = self.turn[0] * tau + self.turn[1] * tau * tau
        scale = np.exp(self.zoom[0] * tau + self.zoom[1] * tau * tau)
        cosine = np.cos(angle)
        sine = np.sin(angle)
        A = np.array([[cosine, -sine], [sine, cosine]]) * scale
        A[0, 1] += self.shear[0] * tau
        A[1, 0] += self.shear[1] * tau
        return A

    def picture_at(self, instant_index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return light x cover, and cover, of this layer in the scene, (SIDE, SIDE) each.

        instant_index: index of the time in INSTANTS.
        """
        # OpenCV asks for each pixel p' where it was in the sharp instant. The equation of the class
        # solved for p:  p = A^-1 p' + (center - A^-1 (center + trajectory))
        tau = INSTANTS[instant_index] / HALF
        A_inverse = np.linalg.inv(self.linear(tau))
        offset = self.center - A_inverse @ (self.center + self.trajectory[instant_index])
        # The scene begins at the pixel (MARGIN, MARGIN) of the picture of the layer.
        offset = offset + MARGIN
        p_of_p_prime = np.column_stack((A_inverse, offset))  # (2, 3)

        # Beyond its picture the background goes on mirrored. Around a thing there is nothing.
        is_background = self.cover.all()
        moved = cv2.warpAffine(
            np.stack([self.light * self.cover, self.cover], axis=2),  # (n, n, 2)
            p_of_p_prime,
            (SIDE, SIDE),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT_101 if is_background else cv2.BORDER_CONSTANT,
        )
        covered_light = moved[..., 0]
        cover = moved[..., 1]
        return covered_light, cover

    def shifts(self, time: float) -> np.ndarray:
        """Return the exact shifts (SIDE, SIDE, 2), x and y in pixels, from the sharp instant.

        time: planes after the sharp instant, e.g. the middle of a window.
        """
        # The equation of the class, minus p:  p' - p = (A - 1) (p - center) + trajectory
        tau = float(np.float32(time / HALF))  # `MotionNet.tau` has float32 as well
        change = self.linear(tau) - np.eye(2)
        trajectory_x = np.interp(time, INSTANTS, self.trajectory[:, 0])
        trajectory_y = np.interp(time, INSTANTS, self.trajectory[:, 1])
        y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32)
        x = x - self.center[0]
        y = y - self.center[1]
        shift_x = change[0, 0] * x + change[0, 1] * y + trajectory_x
        shift_y = change[1, 0] * x + change[1, 1] * y + trajectory_y
        return np.stack([shift_x, shift_y], axis=2)


@dataclass(frozen=True)
class Scene:
    """A scene whose motion is known exactly."""

    light: np.ndarray  # (N, SIDE, SIDE) at INSTANTS, linear light in [0, 1]
    # (15, SIDE, SIDE, 2): x and y of the shift of each pixel, in spike pixels, from the sharp
    # instant to the middle of each window.
    shifts: np.ndarray


@dataclass(frozen=True)
class CameraMotion:
    """How the camera moves, and with it all layers of a scene.

    The background moves by these values, and each thing adds its own motion to them.
    """

    trajectory: np.ndarray  # (N, 2) x and y of the shift at INSTANTS, in pixels
    turn: np.ndarray  # (2,) angle in radians: turn[0] tau + turn[1] tau^2
    zoom: np.ndarray  # (2,) logarithm of the size: zoom[0] tau + zoom[1] tau^2


# The order of the draws below is part of the training: with another order the same seed gives other
# scenes. The ranges of the draws were judged. They shall contain what users film. No measurement of
# other ranges is recorded.


def log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    """Draw a number between two limits. Its logarithm is evenly distributed.

    E.g. between the limits 0.1 and 10, a number below 1 is as likely as a number above 1.
    """
    return np.exp(rng.uniform(np.log(least), np.log(most)))


def random_trajectory(rng: np.random.Generator, length: float) -> np.ndarray:
    """Draw a smooth trajectory (N, 2), x and y at INSTANTS. It is 0 at the sharp instant.

    length: largest distance in pixels from the sharp instant within the exposure.
    """
    # The sum of three waves with periods of 1.5 to 9 exposures, so that the speed changes within an
    # exposure, but not often. x and y have different waves: each draw is (2,).
    trajectory = np.zeros((len(INSTANTS), 2))
    shortest = np.log(1.5 * PLANES)
    longest = np.log(9 * PLANES)
    for weight in (0.5, 0.3, 0.2):
        period = np.exp(rng.uniform(shortest, longest, size=2))
        phase = rng.uniform(0, 1, size=2)
        wave = np.sin(2 * np.pi * (INSTANTS[:, None] / period + phase))  # (N, 2)
        amplitude = np.exp(rng.normal(0, 0.7, size=2))
        trajectory += weight * wave * amplitude
    # A constant speed in addition.
    trajectory += rng.normal(0, 0.4, size=2) * INSTANTS[:, None] / HALF

    # Move the trajectory to 0 at the sharp instant, and scale it to `length`.
    x_of_sharp = np.interp(0, INSTANTS, trajectory[:, 0])
    y_of_sharp = np.interp(0, INSTANTS, trajectory[:, 1])
    trajectory -= np.stack([x_of_sharp, y_of_sharp])
    exposed = trajectory[np.abs(INSTANTS) <= HALF]
    farthest = np.hypot(exposed[:, 0], exposed[:, 1]).max()
    return trajectory / max(farthest, 1e-6) * length  # 1e-6 avoids 0 / 0 if all waves are 0


def random_scene(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> Scene:
    """Draw a scene: a background and up to five things in front of it.

    textures: grey pictures (h, w) uint8 from which surfaces are cut.
    """
    # The motion of the camera. In a quarter of the scenes it stands still.
    stands_still = rng.random() < 0.25
    length = 0.0 if stands_still else log_uniform(rng, 0.15, 12)  # pixels
    trajectory = random_trajectory(rng, length)
    # Turn and zoom are drawn in any case, because all later draws depend on these draws.
    turn = rng.normal(0, 0.03, size=2)  # radians
    zoom = rng.normal(0, 0.03, size=2)  # logarithm of a factor: about 3 %
    if stands_still:
        turn = 0 * turn
        zoom = 0 * zoom
    camera = CameraMotion(trajectory, turn, zoom)

    # A still camera sees at least one thing, because otherwise nothing would move.
    least_things = 1 if stands_still else 0
    number_of_things = int(rng.integers(least_things, 6))
    # Parallax: by the camera, a thing at depth d moves 1 + parallax d times as far as the
    # background. E.g. with 0.5, the thing in front of all, at depth 5, moves 3.5 times as far.
    parallax = rng.uniform(0, 0.5)

    # From the back to the front: each layer covers what is behind it, in the light and in the
    # shifts. The background has depth 0.
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
    """Draw a layer over the light (N, SIDE, SIDE) of the layers behind it. Changes `light`."""
    for instant_index in range(len(INSTANTS)):
        covered_light, cover = layer.picture_at(instant_index)
        behind = light[instant_index]
        light[instant_index] = behind * (1 - cover) + covered_light


def set_shifts(shifts: np.ndarray, layer: Layer) -> None:
    """Set the shifts (15, SIDE, SIDE, 2) of the pixels that show a layer. Changes `shifts`.

    A pixel shows the layer if the layer covers more than half of it at the sharp instant.
    """
    inner = slice(MARGIN, MARGIN + SIDE)  # the scene within the larger picture of the layer
    is_seen = layer.cover[inner, inner] > 0.5
    for window, middle in enumerate(MIDDLES):
        shifts[window][is_seen] = layer.shifts(middle)[is_seen]


def random_background(
    rng: np.random.Generator, textures: Sequence[np.ndarray], camera: CameraMotion
) -> Layer:
    """Draw the background. It moves as the camera does."""
    # The background has no shear. Its shear is drawn and then set to 0, because without this draw
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

    camera: the motion of the camera. Its trajectory is the one that is seen at the depth of the
    thing: near things move farther.
    """
    # The motion of the camera, plus the motion of the thing itself. Eight in ten things shift by
    # themselves, by 0.3 to 10 pixels within the exposure.
    center = rng.uniform(0, SIDE, size=2)
    trajectory = camera.trajectory
    if rng.random() >= 0.2:
        trajectory = trajectory + random_trajectory(rng, log_uniform(rng, 0.3, 10))
    # Each thing turns and grows by itself. The numbers are standard deviations of the two
    # coefficients of tau and tau^2 (see `Layer`), at tau = 1, the end of the exposure.
    turn = camera.turn + rng.normal(0, 0.06, size=2)  # radians: 0.06 is 3.4 degrees
    zoom = camera.zoom + rng.normal(0, 0.05, size=2)  # logarithm of a factor: about 5 %
    shear = rng.normal(0, 0.03, size=2)  # pixels of shift per pixel of distance
    light = random_surface(rng, textures)
    cover = random_polygon(rng, center)

    # Three in ten things have nearly the same light everywhere, so that only their edges show the
    # motion: their contrast is reduced to 15 %.
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


def random_polygon(rng: np.random.Generator, center: np.ndarray) -> np.ndarray:
    """Draw a polygon of 4 to 8 random corners: (n, n), 1 within it and 0 elsewhere.

    n = SIDE + 2 MARGIN. Seven in ten polygons are made convex.

    center: x and y of its middle, in pixels of the scene.
    """
    radius = log_uniform(rng, 3, 18)  # pixels
    number_of_corners = int(rng.integers(4, 9))
    from_center = radius * rng.uniform(-1, 1, (number_of_corners, 2))
    corners = center + MARGIN + from_center  # (corners, 2) in the picture of the layer
    is_convex = rng.random() < 0.7
    if is_convex:
        outline = cv2.convexHull(corners.astype(np.float32))
    else:
        outline = corners[:, None]  # (corners, 1, 2), as convexHull returns it
    n = SIDE + 2 * MARGIN
    cover = np.zeros((n, n), np.float32)
    cv2.fillPoly(cover, [outline.astype(np.int32)], 1.0, cv2.LINE_AA)
    return cv2.GaussianBlur(cover, (0, 0), 0.5)  # soft edges, as behind a lens


def random_surface(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> np.ndarray:
    """Cut a piece out of a texture. Returns its linear light (n, n) in [0, 1].

    n = SIDE + 2 MARGIN. Size, place, mirroring, contrast and sharpness are random.
    """
    # A square of the texture, scaled to n x n. Its side is 0.5 to 1.6 n, so the texture is enlarged
    # or reduced.
    n = SIDE + 2 * MARGIN
    texture = textures[int(rng.integers(len(textures)))]
    height, width = texture.shape
    side = int(min(height, width, rng.uniform(0.5, 1.6) * n))
    y = rng.integers(0, height - side + 1)
    x = rng.integers(0, width - side + 1)
    square = texture[y : y + side, x : x + side]
    interpolation = cv2.INTER_AREA if side > n else cv2.INTER_CUBIC
    value = cv2.resize(square, (n, n), interpolation=interpolation).astype(np.float32) / 255

    # Half of the surfaces are mirrored, three in ten are negatives.
    if rng.random() < 0.5:
        value = value[:, ::-1]
    if rng.random() < 0.3:
        value = 1 - value
    # Contrast and brightness. At least 0.01, because nothing real is perfectly black.
    contrast = rng.uniform(0.5, 1.4)
    brightness = rng.uniform(0.3, 0.6)
    value = np.clip((value - 0.5) * contrast + brightness, 0.01, 1)
    # A slight blur, so that no edge is sharper than a lens draws it.
    value = cv2.GaussianBlur(np.ascontiguousarray(value), (0, 0), rng.uniform(0.35, 0.7))
    return np.power(value, DISPLAY_GAMMA)  # display values -> linear light


# ---- What the cameras record -----------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """What the network sees of a scene, and what it should find.

    All arrays are float16, because up to 1600 samples are kept in memory.
    """

    pictures: np.ndarray  # (15, 2, SIDE, SIDE): light and number of spikes of each window
    # (3, SIDE, SIDE): brightness around each pixel, mean brightness, and the blurry frame.
    scene: np.ndarray
    # (15, SIDE, SIDE, 2): the true shifts from the sharp instant to the middle of each window.
    shifts: np.ndarray


def samples_of(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> list[Sample]:
    """Draw a scene, and record it twice, by different cameras in different light.

    Returns two samples. Drawing a scene takes time, so each scene is used twice.
    """
    scene = random_scene(rng, textures)
    return [recorded(rng, scene) for _ in range(2)]


def recorded(rng: np.random.Generator, scene: Scene, rate: float | None = None) -> Sample:
    """Record a scene by a spike camera and an RGB camera, with their usual flaws.

    Everything that a user does not know is drawn: light, lens, noise, exposure, the shift between
    the cameras, and the curve from light to display values.

    rate: `Sensor.rate` of the spike camera. None: it is drawn. lab/vrt_curve.py gives it, to
    compare networks in one light.
    """
    light, stream = recorded_stream(rng, scene, rate)
    blurry = blurry_frame(rng, light)

    # The windows of the network. EDGES counts from the middle of the exposure, in elevenths of the
    # exposure, and an eleventh has USUAL_PLANES = 8 planes. E.g. the first edge of the exposure is
    # -5.5, so plane 108 - 5.5 * 8 = 64 of the stream. The stream has 216 planes.
    middle_plane = WARM_UP + BEFORE + HALF  # of the exposure: 108
    edges = np.array([round(middle_plane + edge * USUAL_PLANES) for edge in EDGES])
    windows = spike_windows(stream, edges)
    # The first frame of a clip has no planes before it, and the last frame has no planes after it.
    # So a fifth of the samples lose the windows before the exposure, and a fifth of the others lose
    # the windows after it. INSIDE are the windows of the exposure itself.
    if rng.random() < 0.2:
        windows.are_recorded[: INSIDE.start] = False
    elif rng.random() < 0.2:
        windows.are_recorded[INSIDE.stop :] = False

    # Display values of the frame. The network does not get gamma, because users do not know it.
    gamma = rng.uniform(2, 2.4)
    shown = np.power(np.clip(blurry, 0, 1), 1 / gamma)
    pictures, about_scene = pictures_of(windows, shown, INSIDE, USUAL_PLANES)
    return Sample(
        pictures=pictures.astype(np.float16),
        scene=about_scene.astype(np.float16),
        shifts=scene.shifts.astype(np.float16),
    )


@dataclass(frozen=True)
class Sensor:
    """A spike camera. Charges are counted in thresholds: a pixel fires at a charge of about 1."""

    rate: float  # charge that a white pixel collects in a plane
    is_display: bool  # whether it integrates display values instead of light
    jitter: float  # the noise of a charge c has the standard deviation jitter * sqrt(c)
    pattern: float  # relative standard deviation of the thresholds between pixels
    dark: float  # mean charge in a plane without any light


def recorded_stream(
    rng: np.random.Generator, scene: Scene, rate: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Record a scene by a random spike camera in random light.

    Returns the light (N, SIDE, SIDE), which the RGB camera sees as well, and the spikes
    (T, SIDE, SIDE).

    rate: `Sensor.rate` of the camera. None: it is drawn.
    """
    # From near darkness, with about 2 spikes in the 88 planes of an exposure at full light, up to
    # nearly a spike in every plane. It is drawn in any case, because all later draws depend on it.
    drawn_rate = log_uniform(rng, 0.02, 0.95)
    if rate is None:
        rate = drawn_rate
    # A quarter of the cameras integrate display values instead of light.
    is_display = rng.random() < 0.25
    # The light of both cameras. A factor of 0.6 makes dark frames. With 1.6, bright places are cut
    # off at full light.
    light = np.clip(scene.light * rng.uniform(0.6, 1.6), 0, 1)
    blur = rng.uniform(0, 0.6)  # of the lens: sigma in spike pixels
    # The flaws of the camera; the fields of `Sensor` say what they are.
    jitter = rng.uniform(0, 0.05)
    pattern = rng.uniform(0, 0.05)
    # A camera of display values gets up to ten times the dark charge. Its charges in dim light are
    # larger as well: 0.002 of full light has a display value of about 0.06.
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
    # A third of the frames are exposed for all planes, a third for 80 %, and a third for 50 to
    # 100 %.
    random_share = rng.uniform(0.5, 1)
    share = rng.choice([1.0, 0.8, random_share])
    # INSTANTS are in planes after the sharp instant, which is plane SHARP of the exposure. The
    # middle of the exposure is plane HALF. So these are planes after the middle:
    from_middle = INSTANTS + SHARP - HALF
    is_exposed = np.abs(from_middle) < HALF * share
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


def spikes_of(rng: np.random.Generator, light: np.ndarray, sensor: Sensor) -> np.ndarray:
    """Record light (N, h, w) by a spike camera. Returns its planes (T, h, w) bool.

    A pixel collects charge in each plane. If the charge reaches the threshold, the pixel fires in
    this plane, and the threshold is taken off the charge. Before and after the instants of `light`
    the scene stands still for WARM_UP planes.

    data/spike/simulate.py has a similar sensor, for the clips of users. This function is faster,
    because its noise is evenly distributed instead of normal.
    """
    size = light.shape[1:]
    # What does not change in time: the charge that each pixel collects in a plane of each instant
    # (N, h, w), its noise (N, h, w), and the thresholds and the first charge (h, w).
    charge_of_plane = collected_charge(rng, light, sensor)
    # A threshold is at least 0.1, because a pixel with a threshold near 0 would fire in every
    # plane.
    threshold = np.maximum(1 + sensor.pattern * rng.standard_normal(size), 0.1).astype(np.float32)
    charge = (rng.random(size) * threshold).astype(np.float32)
    noise = noise_of_plane(light, charge_of_plane, sensor)

    planes = []
    for plane in range(-WARM_UP, len(light) * STEP + WARM_UP):
        # STEP = 2 planes see one instant: the planes 0 and 1 see the instant 0. The planes -24 to
        # -1 see the instant 0 as well, and the last 24 planes see the last instant.
        instant_index = min(max(plane // STEP, 0), len(light) - 1)
        charge += charge_of_plane[instant_index]
        # Noise that is evenly distributed is drawn faster than normal noise. Between -0.5 and 0.5
        # its variance is 1 / 12, so the factor sqrt(12) gives it the variance 1.
        even = rng.random(size, dtype=np.float32) - np.float32(0.5)
        charge += noise[instant_index] * even * np.float32(12**0.5)
        has_fired = charge >= threshold
        # Take the threshold off, or a multiple of it. Changes `charge` where a pixel has fired.
        np.fmod(charge, threshold, out=charge, where=has_fired)
        planes.append(has_fired)

    stream = np.array(planes)
    # Half of the cameras have broken pixels.
    if rng.random() < 0.5:
        break_pixels(rng, stream)
    return stream


def collected_charge(rng: np.random.Generator, light: np.ndarray, sensor: Sensor) -> np.ndarray:
    """Return the charge (N, h, w) that each pixel collects in a plane, without noise.

    It is rate * light + dark charge. For a camera that integrates display values, the light is
    replaced by its display value.
    """
    integrated = light
    if sensor.is_display:
        integrated = np.power(light, np.float32(1 / DISPLAY_GAMMA))
    # The dark charge differs between pixels by 30 % (standard deviation), and is never negative.
    differences = rng.standard_normal(light.shape[1:])  # (h, w)
    dark_charge = sensor.dark * np.maximum(1 + 0.3 * differences, 0)
    return (sensor.rate * integrated + dark_charge).astype(np.float32)


def noise_of_plane(light: np.ndarray, charge_of_plane: np.ndarray, sensor: Sensor) -> np.ndarray:
    """Return the standard deviation (N, h, w) of the noise of a charge c: jitter * sqrt(c).

    c is the charge of a plane. If the camera integrates light, c leaves out the dark charge, so
    that a black pixel has no noise. The shipped network was trained so, and no measurement of the
    difference is recorded.

    charge_of_plane: (N, h, w), with the dark charge.
    """
    # c is computed as rate times `relative` (1 at full light), because another order of the
    # multiplications would round to other numbers than in the shipped training.
    if sensor.is_display:
        relative = charge_of_plane / sensor.rate
    else:
        relative = light
    # `maximum` only excludes the root of a negative number: neither light nor charge is negative.
    c = np.float32(sensor.rate) * np.maximum(relative, 0)
    return np.float32(sensor.jitter) * np.sqrt(c)


def break_pixels(rng: np.random.Generator, stream: np.ndarray) -> None:
    """Let 0.07 % of the pixels never fire, and 0.07 % always. Changes `stream`, (T, h, w) bool.

    A scene of 64 x 64 pixels has about three of each kind.
    """
    size = stream.shape[1:]
    is_dead = rng.random(size) < 0.0007
    stream[:, is_dead] = False
    is_hot = rng.random(size) < 0.0007
    stream[:, is_hot] = True


# ---- Batches -------------------------------------------------------------------------------


class Batch(NamedTuple):
    """B samples as tensors."""

    pictures: Tensor  # (B, 15, 2, h, w)
    scenes: Tensor  # (B, 3, h, w)
    # (B, 11, 2, h, w), x and y, of the eleven windows of the exposure. The loss needs no others.
    shifts: Tensor


def batch_of(samples: Sequence[Sample]) -> Batch:
    """Join samples to a batch of float32."""
    pictures = np.stack([sample.pictures for sample in samples])
    scenes = np.stack([sample.scene for sample in samples])
    shifts = np.stack([sample.shifts for sample in samples])  # (B, 15, h, w, 2)
    shifts_inside = torch.from_numpy(shifts).float()[:, INSIDE]  # (B, 11, h, w, 2)
    return Batch(
        pictures=torch.from_numpy(pictures).float(),
        scenes=torch.from_numpy(scenes).float(),
        shifts=shifts_inside.permute(0, 1, 4, 2, 3),
    )


def turned(batch: Batch, rng: np.random.Generator) -> Batch:
    """Mirror and transpose a batch at random, with the directions of its shifts.

    E.g. after mirroring from left to right, x of each shift has the opposite sign. No test notices
    a wrong sign. The order of the three draws is part of the training.
    """
    pictures, scenes, shifts = batch
    if rng.random() < 0.5:  # left and right: x changes its sign
        sign = torch.tensor([-1.0, 1.0]).view(1, 1, 2, 1, 1)  # of x and of y
        pictures = pictures.flip(-1)
        scenes = scenes.flip(-1)
        shifts = shifts.flip(-1) * sign
    if rng.random() < 0.5:  # up and down: y changes its sign
        sign = torch.tensor([1.0, -1.0]).view(1, 1, 2, 1, 1)
        pictures = pictures.flip(-2)
        scenes = scenes.flip(-2)
        shifts = shifts.flip(-2) * sign
    if rng.random() < 0.5:  # rows become columns: x and y change places
        pictures = pictures.transpose(-1, -2)
        scenes = scenes.transpose(-1, -2)
        shifts = shifts.transpose(-1, -2).flip(2)  # axis 2 is x and y
    return Batch(pictures, scenes, shifts)


# ---- The training ----------------------------------------------------------------------------


class Pool:
    """The newest samples, from which each step draws its batch.

    The order of the draws is part of the training: first FIRST_POOL samples, then in each step the
    new samples, the old samples, and how the batch is turned.
    """

    def __init__(self, rng: np.random.Generator, textures: Sequence[np.ndarray]) -> None:
        self.rng = rng
        self.textures = textures
        self.samples: list[Sample] = []
        while len(self.samples) < FIRST_POOL:
            self.samples += samples_of(rng, textures)

    def batch(self, step: int) -> Batch:
        """Return the batch of a step: its new samples, if it has any, and samples of the pool.

        Every third step (NEW_EVERY) has the two samples of a new scene. Drawing scenes takes time,
        so all other samples are drawn from the pool.
        """
        is_step_with_new = step % NEW_EVERY == 0
        new = samples_of(self.rng, self.textures) if is_step_with_new else []
        self.samples = (self.samples + new)[-POOL:]
        old_indices = self.rng.integers(0, len(self.samples), BATCH - len(new))
        old = [self.samples[index] for index in old_indices]
        return turned(batch_of(new + old), self.rng)


def train(textures: Sequence[np.ndarray], out: Path, seconds: float, seed: int) -> None:
    """Train for some time, and write the averaged weights.

    Learning rate and finest level follow the time and not the number of steps. So two trainings
    with the same seed differ on machines of different speed.

    out: the file. seconds: time of the training.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)  # of the initial weights
    net = MotionNet()
    parameter_count = sum(parameter.numel() for parameter in net.parameters())
    print(f"{parameter_count:,} parameters", flush=True)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=1e-4, betas=(0.9, 0.98))
    averaged = {name: value.clone() for name, value in net.state_dict().items()}

    begin = time.time()
    last_print = begin
    pool = Pool(rng, textures)

    step = 0
    errors_and_lengths = []  # mean error and mean length of the shifts, of each step
    while True:
        elapsed_share = (time.time() - begin) / seconds
        if elapsed_share >= 1:
            break

        batch = pool.batch(step)
        levels = len(LEVEL_WEIGHTS)
        if elapsed_share < SHARE_WITHOUT_FINEST:
            levels -= 1  # without the last level, the finest one
        optimizer.param_groups[0]["lr"] = learning_rate(step, elapsed_share)
        error = train_step(net, optimizer, batch, levels)
        step += 1
        update_average(averaged, net, step)

        # Print the mean error beside the mean length of the shifts. If the error is as large as the
        # length, the network finds nothing.
        length = float(batch.shifts.norm(dim=2).mean())  # dimension 2 is x and y
        errors_and_lengths.append((error, length))
        if time.time() - last_print > PRINT_EVERY:
            last_print = time.time()
            mean_error, mean_length = np.mean(errors_and_lengths, axis=0)
            errors_and_lengths = []
            passed = f"{last_print - begin:.0f} s, step {step}"
            print(f"{passed}: error {mean_error:.3f} of {mean_length:.3f} pixels", flush=True)
            torch.save(averaged, out)
    torch.save(averaged, out)


def train_step(
    net: MotionNet, optimizer: torch.optim.Optimizer, batch: Batch, levels: int
) -> float:
    """Change the weights once. Returns the mean error of the shifts, in spike pixels.

    levels: number of levels that the network computes, from the coarsest one on.
    """
    found = net(batch.pictures, batch.scenes, levels)
    loss, error = loss_of(found, batch.shifts, net.tau[INSIDE])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), LARGEST_GRADIENT)
    optimizer.step()
    return error


def learning_rate(step: int, elapsed_share: float) -> float:
    """Return the learning rate: a rise over the first steps, and a cosine over the time.

    step: number of steps so far. elapsed_share: share of the time of the training, 0 to 1.
    """
    warm_up = min(1, (step + 1) / WARM_STEPS)
    cosine = 0.5 + 0.5 * np.cos(np.pi * elapsed_share)  # from 1 to 0
    return RATE * warm_up * cosine + LAST_RATE


def update_average(averaged: dict[str, Tensor], net: nn.Module, step: int) -> None:
    """Move the averaged weights towards the weights of the network. Changes `averaged`.

    step: number of steps so far, the newest included.
    """
    # The average follows the weights fast at first. After step 1 it takes 20/21 of the new weights,
    # after step 20 a half, and from step 3980 on 1 - MOST_OLD.
    share_of_old = min(MOST_OLD, step / (step + 20))
    for name, newest in net.state_dict().items():
        averaged[name].lerp_(newest, 1 - share_of_old)


def loss_of(found: Sequence[Curves], shifts: Tensor, tau: Tensor) -> tuple[Tensor, float]:
    """Return the loss, and the mean error of the finest level in spike pixels.

    The loss of a pixel at one level has two terms. e is the error of its shifts, in the mean over
    the exposure, and s is the logarithm of the error that the network expects:

        loss = 1/2 e / USUAL_ERROR + 1/2 (e exp(-s) + s)

    The second term is smallest if exp(s) = e. So the network learns how wrong its shifts are. The
    loss of all levels is the mean over pixels, times LEVEL_WEIGHTS, added up.

    found: the curves of each level, the coarsest first. It may lack the finest levels.
    shifts: the true shifts (B, 11, 2, h, w) at the times tau (11,).
    """
    total = torch.zeros(())
    e = total  # replaced by the errors of each level
    for curves, weight in zip(found, LEVEL_WEIGHTS, strict=False):
        # A pixel of this level has the mean of the true shifts of its spike pixels.
        batch, times, axes = shifts.shape[:3]
        size = shifts.shape[-1] // curves.size  # pixels of the level on a side
        truth = F.avg_pool2d(shifts.flatten(1, 2), curves.size)  # (B, 11 x 2, size, size)
        truth = truth.view(batch, times, axes, size, size)
        difference = displacements(curves.coefficients, tau) - truth
        # 0.01^2 keeps the gradient of the root finite if the error is 0.
        length = (difference.square().sum(2) + 0.01**2).sqrt()  # (B, 11, size, size)
        e = length.mean(1, keepdim=True)  # (B, 1, size, size)
        s = curves.log_error.clamp(*LOG_ERRORS)
        expected = e * torch.exp(-s) + s
        total = total + weight * (0.5 * e / USUAL_ERROR + 0.5 * expected).mean()
    return total, float(e.detach().mean())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
