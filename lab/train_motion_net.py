#!/usr/bin/env python3
"""Train the network that finds the motion within an exposure (models/fusion/motion_net.py).

    python lab/train_motion_net.py --videos VIDEOS --out FILE [--minutes 45] [--seed 0]

One thread of a CPU. Writes its weights to FILE each 30 seconds and at the end, and prints the mean
error of the motion. lab/train_motion.py reads the file and trains the rest of weights/motion.pth
behind the network.

The network learns from scenes whose motion is known exactly (`Scene`): a background and up to five
things in front of it, each of which moves, turns, grows and shears along its own curve. They look
like frames of the training videos of lab/quality.py, photographs of scikit-image that
lab/joint_gain.py does not test on, and drawings. A simulated spike camera sees each scene twice, in
light between 0.02 and 0.95 thresholds a plane where the scene is white.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.motion.learned import USUAL_PLANES, pictures_of, spike_windows
from data.spike.simulate import DISPLAY_GAMMA
from lab.quality import PHOTOS, VIDEOS
from models.fusion.motion_net import EDGES, INSIDE, WINDOWS, Curves, MotionNet, displacements

# ---- Time ------------------------------------------------------------------------------------
#
# A plane is one binary picture of the spike camera. tau counts halves of an exposure after the
# sharp instant: tau = -1 is about the begin of the exposure, tau = 1 its end.

PLANES = 88  # of an exposure
SHARP = 44.5  # the sharp instant, in planes from the begin of the exposure
HALF = 44  # planes of half an exposure
BEFORE = 40  # planes of a scene before the exposure, and as many after it
STEP = 2  # planes that see the same light, for speed
INSTANTS = (
    np.arange(-BEFORE, PLANES + BEFORE, STEP) + STEP / 2 - SHARP
)  # planes after the sharp one
# The middles of the 15 windows of `MotionNet`, in planes after the sharp instant.
MIDDLES = ((np.array(EDGES[:-1]) + np.array(EDGES[1:])) / 2 * USUAL_PLANES + HALF) - SHARP
WARM_UP = 24  # planes in which the sensor sees a still scene, before and after
SIDE = 64  # spike pixels of a scene
MARGIN = 32  # by which a layer is larger on each side

# ---- Training --------------------------------------------------------------------------------

LOT = 8  # samples of a step (the batch)
POOL = 1600  # newest samples from which lots are drawn
FIRST_POOL = 40  # samples before the first step
NEW_EACH = 3  # steps after which a new scene is drawn
# Learning rate at the begin, what is added to it at the end, and steps of the warm-up.
RATE, LAST_RATE, WARM_STEPS = 1.2e-3, 1e-5, 100
# The finest level is left out in this first share of the time, which saves half of it.
WITHOUT_FINEST = 0.45
OF_LEVELS = (0.4, 0.4, 0.6, 1.0)  # weights of their losses, from the coarsest on
USUAL_ERROR = 1.5  # spike pixels; the plain error is divided by it
LOG_ERRORS = (-5, 4)  # range of the logarithm of the expected error in the loss
LARGEST_GRADIENT = 1.0
MOST_AVERAGED = 0.995  # share of the old weights in the averaged ones
SAID_EACH = 30  # seconds


def main(argv: Sequence[str]) -> int:
    """Train the network and write its weights. Returns the exit code 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--out", type=Path, required=True, help="file of the weights")
    add("--minutes", type=float, default=45, help="time of the training, default %(default)s")
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    textures = all_textures(args.videos)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    train(textures, args.out, 60 * args.minutes, args.seed)
    return 0


# ---- What things look like -------------------------------------------------------------------

# A texture is a grey picture from which the surfaces of things are cut.
OF_VIDEO = 30  # frames of each video
VIDEO_SIDE, PHOTO_SIDE = 256, 320  # pixels of their smaller side
PHOTO_COPIES = 4  # a photograph is as likely as so many frames
# Number of drawings, their side in pixels, and the number of things in each.
DRAWINGS, DRAWING_SIDE, DRAWN_THINGS = 60, 224, 40
# Photographs of scikit-image for training. Those of lab/joint_gain.py are tested on, so
# `photo_files` refuses them.
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
    found = []
    for name in VIDEOS["train"]:
        [file] = sorted(videos.glob(f"{name}.*"))
        found += frames_of(file)
    for file in photo_files(TRAINING_PHOTOS):
        photo = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
        assert photo is not None, file
        found += [smaller(photo, PHOTO_SIDE)] * PHOTO_COPIES
    # The drawings are the same in each training, whatever its --seed.
    rng = np.random.default_rng(5)
    return found + [drawing(rng) for _ in range(DRAWINGS)]


def photo_files(names: Iterable[str]) -> list[Path]:
    """Return the paths of photographs in the installed package scikit-image.

    names: file names, e.g. "coins.png". A photograph of the tests is refused.
    """
    spec = find_spec("skimage")
    assert spec is not None and spec.origin is not None
    files = []
    for name in names:
        assert name not in PHOTOS["skimage"], name
        files.append(Path(spec.origin).parent / "data" / name)
    return files


def frames_of(video: Path) -> list[np.ndarray]:
    """Return OF_VIDEO frames of a video, evenly spread, as grey pictures (h, w) uint8."""
    # Read all frames in order, and keep the chosen ones.
    capture = cv2.VideoCapture(str(video))
    count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    chosen = set(np.linspace(0, count - 1, OF_VIDEO).astype(int).tolist())
    found = []
    for number in range(count):
        is_read, frame = capture.read()
        if not is_read:
            break
        if number in chosen:
            found.append(smaller(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), VIDEO_SIDE))
    return found


def smaller(picture: np.ndarray, side: int) -> np.ndarray:
    """Return a picture whose smaller side has at most `side` pixels. It is never enlarged."""
    scale = side / min(picture.shape)
    if scale >= 1:
        return picture
    return cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)


def drawing(rng: np.random.Generator) -> np.ndarray:
    """Draw discs, lines and letters on a cloudy sky. Returns (224, 224) uint8."""
    n = DRAWING_SIDE
    # Noise whose amplitude falls with a power of the frequency looks like clouds.
    frequency = np.hypot(np.fft.fftfreq(n)[:, None], np.fft.rfftfreq(n)[None])
    frequency[0, 0] = 1
    amplitude = frequency ** -rng.uniform(1.1, 1.8)
    amplitude[0, 0] = 0
    clouds = np.fft.irfft2(amplitude * np.fft.rfft2(rng.standard_normal((n, n))), (n, n))
    picture = np.clip(128 + 40 * clouds / clouds.std(), 0, 255).astype(np.uint8)
    for _ in range(DRAWN_THINGS):
        x, y, x_2, y_2 = rng.integers(0, n, 4).tolist()
        value = int(rng.integers(0, 256))
        kind = rng.integers(3)
        if kind == 0:
            cv2.circle(picture, (x, y), int(rng.integers(3, 16)), value, -1, cv2.LINE_AA)
        elif kind == 1:
            width = int(rng.integers(1, 6))
            cv2.line(picture, (x, y), (x_2, y_2), value, width, cv2.LINE_AA)
        else:
            letter = "AEHKMRSX2589"[rng.integers(12)]
            size = float(rng.uniform(0.5, 1.6))
            cv2.putText(picture, letter, (x, y), 0, size, value, 2, cv2.LINE_AA)
    return picture


# ---- Scenes with exact motion ----------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A flat picture that moves: the background, or a thing in front of it.

    Its pixel p at the sharp instant is at A(tau) (p - center) + center + way(tau) at tau. A is the
    matrix of `linear`. n = SIDE + 2 MARGIN; N is the number of INSTANTS.
    """

    light: np.ndarray  # (n, n) what it shows, linear light in [0, 1]
    cover: np.ndarray  # (n, n) in [0, 1], where it hides what is behind it
    center: np.ndarray  # (2,) x and y about which it turns, in pixels of the scene
    way: np.ndarray  # (N, 2) x and y of its shift at INSTANTS, in pixels
    turn: np.ndarray  # (2,) angle in radians: turn[0] tau + turn[1] tau^2
    zoom: np.ndarray  # (2,) logarithm of its size: zoom[0] tau + zoom[1] tau^2
    shear: np.ndarray  # (2,) shear of x by y, and of y by x, for each tau

    def linear(self, tau: float) -> np.ndarray:
        """Return the linear part (2, 2) of its motion from the sharp instant to tau."""
        angle = self.turn[0] * tau + self.turn[1] * tau * tau
        scale = np.exp(self.zoom[0] * tau + self.zoom[1] * tau * tau)
        matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * scale
        matrix[0, 1] += self.shear[0] * tau
        matrix[1, 0] += self.shear[1] * tau
        return matrix

    def seen(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return its light times its cover, and its cover, at an instant, (SIDE, SIDE) each.

        number: index of the instant in INSTANTS.
        """
        # OpenCV asks where each pixel of the result was at the sharp instant: the inverse of the
        # motion. MARGIN is where the scene begins in the larger pictures of the layer.
        back = np.linalg.inv(self.linear(INSTANTS[number] / HALF))
        offset = self.center - back @ (self.center + self.way[number]) + MARGIN
        # The background covers all, so its edges are mirrored. Around a thing there is nothing.
        both = cv2.warpAffine(
            np.stack([self.light * self.cover, self.cover], 2),
            np.column_stack((back, offset)),
            (SIDE, SIDE),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT_101 if self.cover.all() else cv2.BORDER_CONSTANT,
        )
        return both[..., 0], both[..., 1]

    def shifts(self, middle: float) -> np.ndarray:
        """Return the exact shifts (SIDE, SIDE, 2), x and y in pixels, from the sharp instant.

        middle: planes after the sharp instant, e.g. of the middle of a window.
        """
        shift_x, shift_y = (np.interp(middle, INSTANTS, self.way[:, axis]) for axis in range(2))
        tau = float(np.float32(middle / HALF))
        change = self.linear(tau) - np.eye(2)
        y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32)
        x = x - self.center[0]
        y = y - self.center[1]
        u_x = change[0, 0] * x + change[0, 1] * y + shift_x
        u_y = change[1, 0] * x + change[1, 1] * y + shift_y
        return np.stack([u_x, u_y], 2)


@dataclass(frozen=True)
class Scene:
    """A scene whose motion is known exactly."""

    light: np.ndarray  # (N, SIDE, SIDE) at INSTANTS, linear light in [0, 1]
    # (15, SIDE, SIDE, 2): x and y of the shift of each pixel, in spike pixels, from the sharp
    # instant to the middle of each window.
    shifts: np.ndarray


# The functions below draw random numbers one after the other. The order of the draws is part of the
# training: a new draw anywhere changes all scenes after it.


def log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    """Draw a number between two limits whose logarithm is evenly distributed.

    So 0.1 to 1 is as likely as 1 to 10.
    """
    return np.exp(rng.uniform(np.log(least), np.log(most)))


def random_way(rng: np.random.Generator, length: float) -> np.ndarray:
    """Draw a smooth way (N, 2), x and y at INSTANTS. It is 0 at the sharp instant.

    length: largest distance in pixels from the sharp instant within the exposure.
    """
    # Three waves of random period and size, then a constant speed.
    way = np.zeros((len(INSTANTS), 2))
    for weight in (0.5, 0.3, 0.2):
        period = np.exp(rng.uniform(np.log(1.5 * PLANES), np.log(9 * PLANES), 2))
        phase = rng.uniform(0, 1, 2)
        wave = np.sin(2 * np.pi * (INSTANTS[:, None] / period + phase))
        way += weight * wave * np.exp(rng.normal(0, 0.7, 2))
    way += rng.normal(0, 0.4, 2) * INSTANTS[:, None] / HALF
    # Shift the way to 0 at the sharp instant, and scale it to `length`. 1e-6 is for a way of 0.
    way -= np.stack([np.interp(0, INSTANTS, way[:, axis]) for axis in range(2)])
    farthest = np.hypot(*way[np.abs(INSTANTS) <= HALF].T).max()
    return way / max(farthest, 1e-6) * length


def random_scene(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> Scene:
    """Draw a scene: a background and up to five things. A quarter of the cameras stand still.

    textures: grey pictures (h, w) uint8, see `all_textures`.
    """
    # The motion of the camera, and how many things there are. A still camera sees one at least,
    # because otherwise nothing would move.
    is_still = rng.random() < 0.25
    camera = random_way(rng, 0.0 if is_still else log_uniform(rng, 0.15, 12))
    turn = rng.normal(0, 0.03, 2) * (not is_still)
    zoom = rng.normal(0, 0.03, 2) * (not is_still)
    count = int(rng.integers(1 if is_still else 0, 6))  # of the things in front
    nearer = rng.uniform(0, 0.5)  # a thing in front moves by so much more with the camera

    # From the back to the front: each layer covers what is behind it, in the light and in the
    # shifts.
    light = np.zeros((len(INSTANTS), SIDE, SIDE), np.float32)
    shifts = np.zeros((WINDOWS, SIDE, SIDE, 2), np.float32)
    for depth in range(count + 1):
        if depth == 0:
            layer = background(rng, textures, camera, turn, zoom)
        else:
            layer = thing(rng, textures, camera * (1 + nearer * depth), turn, zoom)
        for number in range(len(INSTANTS)):
            own, cover = layer.seen(number)
            light[number] = own if depth == 0 else light[number] * (1 - cover) + own
        # A pixel has the shift of the foremost layer that covers more than half of it at the sharp
        # instant.
        inner = slice(MARGIN, MARGIN + SIDE)
        is_seen = layer.cover[inner, inner] > 0.5
        for number, middle in enumerate(MIDDLES):
            shifts[number][is_seen] = layer.shifts(middle)[is_seen]
    return Scene(light, shifts)


def background(
    rng: np.random.Generator,
    textures: Sequence[np.ndarray],
    camera: np.ndarray,
    turn: np.ndarray,
    zoom: np.ndarray,
) -> Layer:
    """Draw the background. It moves as the camera does: way (N, 2), turn and zoom (2,)."""
    # The background has no shear. The draw stays, because all later draws depend on it.
    shear = rng.normal(0, 0.03, 2) * 0
    light = surface(rng, textures)
    middle = np.array([SIDE / 2, SIDE / 2])
    return Layer(light, np.ones_like(light), middle, camera, turn, zoom, shear)


def thing(
    rng: np.random.Generator,
    textures: Sequence[np.ndarray],
    camera: np.ndarray,
    turn: np.ndarray,
    zoom: np.ndarray,
) -> Layer:
    """Draw a thing in front of the background. A fifth of them move with the camera alone.

    camera: (N, 2), the way of the camera at the depth of the thing. turn, zoom: (2,) of the camera.
    """
    center = rng.uniform(0, SIDE, 2)
    way = camera
    if rng.random() >= 0.2:
        way = camera + random_way(rng, log_uniform(rng, 0.3, 10))
    turn = turn + rng.normal(0, 0.06, 2)
    zoom = zoom + rng.normal(0, 0.05, 2)
    shear = rng.normal(0, 0.03, 2)
    light = surface(rng, textures)

    # Its outline: a polygon, mostly a convex one.
    radius = log_uniform(rng, 3, 18)
    corners = int(rng.integers(4, 9))
    points = center + MARGIN + radius * rng.uniform(-1, 1, (corners, 2))
    is_convex = rng.random() < 0.7
    outline = cv2.convexHull(points.astype(np.float32)) if is_convex else points[:, None]
    cover = np.zeros_like(light)
    cv2.fillPoly(cover, [outline.astype(np.int32)], 1.0, cv2.LINE_AA)
    # Three in ten things have nearly one light everywhere, so that only their edges show motion.
    if rng.random() < 0.3:
        light = light * 0.15 + rng.uniform(0.01, 0.7)
    cover = cv2.GaussianBlur(cover, (0, 0), 0.5)
    return Layer(light, cover, center, way, turn, zoom, shear)


def surface(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> np.ndarray:
    """Cut a piece out of a texture. Returns its linear light (n, n) in [0, 1].

    n = SIDE + 2 MARGIN. Size, place, mirroring, contrast and sharpness are random.
    """
    # A square of the texture, scaled to n x n.
    n = SIDE + 2 * MARGIN
    texture = textures[int(rng.integers(len(textures)))]
    most = min(texture.shape)
    side = int(min(most, rng.uniform(0.5, 1.6) * n))
    y = rng.integers(0, texture.shape[0] - side + 1)
    x = rng.integers(0, texture.shape[1] - side + 1)
    piece = texture[y : y + side, x : x + side]
    how = cv2.INTER_AREA if side > n else cv2.INTER_CUBIC
    value = cv2.resize(piece, (n, n), interpolation=how).astype(np.float32) / 255
    # Mirrored, negative, with another contrast and brightness, slightly blurred.
    if rng.random() < 0.5:
        value = value[:, ::-1]
    if rng.random() < 0.3:
        value = 1 - value
    value = np.clip((value - 0.5) * rng.uniform(0.5, 1.4) + rng.uniform(0.3, 0.6), 0.01, 1)
    value = cv2.GaussianBlur(np.ascontiguousarray(value), (0, 0), rng.uniform(0.35, 0.7))
    return np.power(value, DISPLAY_GAMMA)


# ---- What the cameras record -----------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """What the network sees of a scene, and what it should find. All are float16."""

    pictures: np.ndarray  # (15, 2, SIDE, SIDE): light and number of spikes of each window
    scene: np.ndarray  # (3, SIDE, SIDE): see `SCENE` of models/fusion/motion_net.py
    shifts: np.ndarray  # (15, SIDE, SIDE, 2): the true ones, see `Scene`


def samples_of(rng: np.random.Generator, textures: Sequence[np.ndarray]) -> list[Sample]:
    """Draw a scene, and record it twice, by different cameras in different light.

    Returns two samples.
    """
    scene = random_scene(rng, textures)
    return [recorded(rng, scene) for _ in range(2)]


def recorded(rng: np.random.Generator, scene: Scene) -> Sample:
    """Record a scene by a spike camera and a blurry frame, with the flaws that they have.

    Whatever a user does not know is drawn: the light, the lens, the noise, the curve of the frame.
    """
    # The spike camera. A quarter of them integrate display values instead of light.
    rate = log_uniform(rng, 0.02, 0.95)  # thresholds a plane of white
    is_display = rng.random() < 0.25
    light = np.clip(scene.light * rng.uniform(0.6, 1.6), 0, 1)
    seen = light
    lens = rng.uniform(0, 0.6)  # sigma in spike pixels
    if lens > 0.25:
        seen = np.stack([cv2.GaussianBlur(each, (0, 0), lens) for each in light])
    # The flaws of the sensor, see `spikes_of`.
    jitter = rng.uniform(0, 0.05)
    pattern = rng.uniform(0, 0.05)
    dark = rng.uniform(0, 0.02 if is_display else 0.002)
    stream = spikes_of(rng, seen, rate, is_display, jitter, pattern, dark)

    # The blurry frame: often only a part of the planes is exposed, and it may lie beside.
    share = rng.choice([1.0, 0.8, rng.uniform(0.5, 1)])
    is_exposed = np.abs(INSTANTS + SHARP - HALF) < HALF * share
    blurry = light[is_exposed].mean(0) + 0.004 * rng.standard_normal((SIDE, SIDE))
    beside = np.array([[1, 0, rng.normal(0, 0.2)], [0, 1, rng.normal(0, 0.2)]])
    blurry = cv2.warpAffine(
        blurry.astype(np.float32), beside, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT_101
    )

    # The windows of the network, as edges in planes of the stream.
    begin = WARM_UP + BEFORE  # of the exposure
    edges = np.array([round(begin + HALF + edge * USUAL_PLANES) for edge in EDGES])
    windows = spike_windows(stream, edges)
    # The first and last frame of a clip have no planes before and after them.
    if rng.random() < 0.2:
        windows.are_recorded[: INSIDE.start] = False
    elif rng.random() < 0.2:
        windows.are_recorded[INSIDE.stop :] = False
    shown = np.power(np.clip(blurry, 0, 1), 1 / rng.uniform(2, 2.4))  # by an unknown curve
    pictures, about = pictures_of(windows, shown, INSIDE, USUAL_PLANES)
    half = np.float16  # of memory: the pool is large
    return Sample(pictures.astype(half), about.astype(half), scene.shifts.astype(half))


def spikes_of(
    rng: np.random.Generator,
    light: np.ndarray,
    rate: float,
    is_display: bool,
    jitter: float,
    pattern: float,
    dark: float,
) -> np.ndarray:
    """Record light (N, h, w) by a spike camera. Returns its planes (T, h, w) bool.

    A pixel collects charge in each plane. If the charge reaches the threshold, the pixel fires in
    this plane, and the threshold is taken off the charge. Before and after the instants of `light`
    the scene stands still for WARM_UP planes. A few pixels in half of the cameras never fire or
    always do. data/spike/simulate.py has the same sensor, but is slower here.

    rate: charge of a white pixel in a plane, in thresholds.
    is_display: whether the sensor integrates display values instead of light.
    jitter: the noise of a charge c has the standard deviation jitter * sqrt(c), in thresholds.
    pattern: relative standard deviation of the thresholds between pixels.
    dark: mean dark current, charge per plane in thresholds.
    """
    # What does not change in time: charge of each plane (N, h, w), thresholds and first charge (h,
    # w).
    size = light.shape[1:]
    integrated = np.power(light, np.float32(1 / DISPLAY_GAMMA)) if is_display else light
    current = dark * np.maximum(1 + 0.3 * rng.standard_normal(size), 0)
    charge_of_plane = (rate * integrated + current).astype(np.float32)
    threshold = np.maximum(1 + pattern * rng.standard_normal(size), 0.1).astype(np.float32)
    charge = (rng.random(size) * threshold).astype(np.float32)
    of_noise = charge_of_plane / rate if is_display else light
    noise = np.float32(jitter) * np.sqrt(np.float32(rate) * np.maximum(of_noise, 0))

    planes = []
    # STEP planes see the same light. Planes before the first and after the last see theirs.
    for plane in range(-WARM_UP, len(light) * STEP + WARM_UP):
        number = min(max(plane // STEP, 0), len(light) - 1)
        charge += charge_of_plane[number]
        # An even distribution with the variance of a normal one, which is drawn faster.
        even = rng.random(size, dtype=np.float32) - np.float32(0.5)
        charge += noise[number] * even * np.float32(12**0.5)
        has_fired = charge >= threshold
        np.fmod(charge, threshold, out=charge, where=has_fired)
        planes.append(has_fired)
    # Dead and hot pixels, in half of the cameras.
    stream = np.array(planes)
    if rng.random() < 0.5:
        stream[:, rng.random(size) < 0.0007] = False
        stream[:, rng.random(size) < 0.0007] = True
    return stream


# ---- The training ----------------------------------------------------------------------------


def train(textures: Sequence[np.ndarray], out: Path, seconds: float, seed: int) -> None:
    """Train for some time, and write the averaged weights.

    Learning rate and finest level follow the time and not the number of steps. So two trainings
    with the same seed differ on machines of different speed.

    out: the file. seconds: time of the training.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    net = MotionNet()
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters", flush=True)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=1e-4, betas=(0.9, 0.98))
    averaged = {name: value.clone() for name, value in net.state_dict().items()}
    pool: list[Sample] = []
    begin = said = time.time()  # of the training, and of the last line that was printed
    while len(pool) < FIRST_POOL:
        pool += samples_of(rng, textures)
    step = 0
    errors = []
    while (part := (time.time() - begin) / seconds) < 1:
        # New scenes are always in the lot, and old ones again, because drawing takes time.
        new = samples_of(rng, textures) if step % NEW_EACH == 0 else []
        pool = (pool + new)[-POOL:]
        old = rng.integers(0, len(pool), LOT - len(new))
        pictures, scene, shifts = turned(lot_of(new + [pool[number] for number in old]), rng)

        # The learning rate: warm-up by steps, then a cosine by time.
        cosine = 0.5 + 0.5 * np.cos(np.pi * part)
        optimizer.param_groups[0]["lr"] = (
            RATE * min(1, (step + 1) / WARM_STEPS) * cosine + LAST_RATE
        )
        levels = len(OF_LEVELS) - 1 if part < WITHOUT_FINEST else len(OF_LEVELS)
        loss, error = loss_of(net(pictures, scene, levels), shifts, net.tau[INSIDE])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        step += 1
        # The average follows the weights fast at first: share 1/21 of the old ones, then more.
        share = min(MOST_AVERAGED, step / (step + 20))
        for name, value in net.state_dict().items():
            averaged[name].lerp_(value, 1 - share)

        # Each 30 seconds: mean error of the motion beside its mean length, and the weights.
        errors.append((error, float(shifts.norm(dim=2).mean())))
        if time.time() - said > SAID_EACH:
            said = time.time()
            mean_error, length = np.mean(errors, axis=0)
            errors = []
            print(
                f"{said - begin:.0f} s, step {step}: error {mean_error:.3f} of {length:.3f} pixels",
                flush=True,
            )
            torch.save(averaged, out)
    torch.save(averaged, out)


def lot_of(samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """Return pictures (B, 15, 2, h, w), scenes (B, 3, h, w) and shifts (B, 11, 2, h, w)."""
    pictures = torch.from_numpy(np.stack([each.pictures for each in samples])).float()
    scene = torch.from_numpy(np.stack([each.scene for each in samples])).float()
    shifts = torch.from_numpy(np.stack([each.shifts for each in samples])).float()
    return pictures, scene, shifts[:, INSIDE].permute(0, 1, 4, 2, 3)


def turned(
    lot: tuple[Tensor, Tensor, Tensor], rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Mirror and transpose a lot at random, with the directions of its shifts.

    E.g. mirrored from left to right, x of each shift changes its sign.
    """
    pictures, scene, shifts = lot
    if rng.random() < 0.5:
        mirror_x = torch.tensor([-1.0, 1]).view(1, 1, 2, 1, 1)
        pictures, scene, shifts = pictures.flip(-1), scene.flip(-1), shifts.flip(-1) * mirror_x
    if rng.random() < 0.5:
        mirror_y = torch.tensor([1.0, -1]).view(1, 1, 2, 1, 1)
        pictures, scene, shifts = pictures.flip(-2), scene.flip(-2), shifts.flip(-2) * mirror_y
    # Transposed: rows become columns, and x and y of each shift (dimension 2) change places.
    if rng.random() < 0.5:
        swapped = shifts.transpose(-1, -2).flip(2)
        pictures, scene, shifts = pictures.transpose(-1, -2), scene.transpose(-1, -2), swapped
    return pictures, scene, shifts


def loss_of(found: Sequence[Curves], shifts: Tensor, tau: Tensor) -> tuple[Tensor, float]:
    """Return the loss, and the mean error of the finest level in spike pixels.

    The loss of a pixel is half its error and half error / e^s + s. Here s is the logarithm of the
    error that the network expects. The second term is smallest if e^s is the mean error, so the
    network learns how wrong it is.

    found: the curves of each level, the coarsest first. shifts: the true ones, (B, 11, 2, h, w) at
    times tau (11,).
    """
    total = torch.zeros(())
    error = total
    for curves, weight in zip(found, OF_LEVELS, strict=False):
        # The true shifts in the mean over each pixel of this level, (B, 11, 2, size, size).
        size = shifts.shape[-1] // curves.size
        truth = F.avg_pool2d(shifts.flatten(1, 2), curves.size)
        truth = truth.view(*shifts.shape[:3], size, size)
        difference = displacements(curves.coefficients, tau) - truth
        # 0.01^2 keeps the gradient of the root finite if the error is 0.
        length = (difference.square().sum(2) + 0.01**2).sqrt()
        error = length.mean(1, keepdim=True)  # over the exposure
        s = curves.log_error.clamp(*LOG_ERRORS)
        likelihood = error * torch.exp(-s) + s
        total = total + weight * (0.5 * error / USUAL_ERROR + 0.5 * likelihood).mean()
    return total, float(error.detach().mean())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
