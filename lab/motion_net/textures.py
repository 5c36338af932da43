"""Make textures: grey pictures from which the surfaces of things are cut.

All textures are equally likely, so the numbers below decide how often a scene shows a frame, a
photograph or a drawing.

What must stay: the order of the textures, because scenes draw a texture by its index. The order of
the draws in `drawing` and `cloudy_sky` must stay, too. No video or photograph on which something is
tested may become a texture: `photo_files` refuses such photographs. Free to change, for the next
training: the numbers.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from lab.quality_suite.sources import PHOTOS, VIDEOS, video_files

FRAMES_OF_VIDEO = 30  # textures from each video
# How often each photograph is in the list. All entries are equally likely, and a video has 30
# entries. So without copies a photograph would be drawn 30 times less often than a video.
PHOTO_COPIES = 4
DRAWINGS = 60  # number of drawings in the list
# Pictures are scaled down to these sides in pixels. A surface is a square of a picture, with a side
# of 64 to 205 pixels. At full size, this square would show a smaller part of an object.
FRAME_SIDE = 256  # smaller side of a frame
PHOTO_SIDE = 320  # smaller side of a photograph
DRAWING_SIDE = 224  # both sides of a drawing
DRAWN_SHAPES = 40  # discs, lines and letters in a drawing
# Photographs of scikit-image for training. lab/joint_gain.py tests on other photographs. If this
# list names a photograph of the tests, `photo_files` raises an error.
TRAINING_PHOTOS = (
    "brick.png", "camera.png", "cell.png", "clock_motion.png", "coins.png", "grass.png",
    "gravel.png", "ihc.png", "microaneurysms.png", "moon.png", "motorcycle_left.png", "page.png",
    "text.png",
)  # fmt: skip


def all_textures(videos: Path) -> list[np.ndarray]:
    """Return grey pictures (h, w) uint8 from videos, photographs and drawings.

    The order of the pictures is part of the training, because scenes draw a picture by its index.

    videos: folder of the videos of lab/quality.py.
    """
    textures = []
    for video in video_files(videos, VIDEOS["train"]):
        textures += frames_of(video)
    for file in photo_files(TRAINING_PHOTOS):
        photo = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
        assert photo is not None, file
        textures += [shrink(photo, PHOTO_SIDE)] * PHOTO_COPIES
    # The drawings have their own generator, so they are the same in each training, with any --seed.
    # The number 5 is arbitrary. Another number gives other drawings.
    rng = np.random.default_rng(5)
    for _ in range(DRAWINGS):
        textures.append(drawing(rng))
    return textures


def photo_files(names: Iterable[str]) -> list[Path]:
    """Return the paths of photographs in the installed package scikit-image.

    lab/motion_steps/sets.py calls this function as well.

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
            pictures.append(shrink(grey, FRAME_SIDE))
    return pictures


def shrink(picture: np.ndarray, side: int) -> np.ndarray:
    """Return a picture whose smaller side has at most `side` pixels. No picture is enlarged."""
    scale = side / min(picture.shape)
    if scale >= 1:
        return picture
    return cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)


def drawing(rng: np.random.Generator) -> np.ndarray:
    """Draw discs, lines and letters on a cloudy sky. Returns (224, 224) uint8.

    The order of the draws is part of the training, and each draw must stay. E.g. the end of a line
    is drawn for a disc, too, although a disc does not need it.
    """
    n = DRAWING_SIDE
    picture = cloudy_sky(rng)
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


def cloudy_sky(rng: np.random.Generator) -> np.ndarray:
    """Draw random clouds in grey. Returns (224, 224) uint8."""
    n = DRAWING_SIDE
    # Noise looks like clouds if its amplitude falls with the frequency:
    #
    #     amplitude = frequency^-power        0 for the frequency 0, which is the mean
    frequency_y = np.fft.fftfreq(n)[:, None]  # (n, 1)
    frequency_x = np.fft.rfftfreq(n)[None]  # (1, n / 2 + 1)
    frequency = np.hypot(frequency_y, frequency_x)
    frequency[0, 0] = 1  # instead of 0, because 0^-power is infinite. The amplitude becomes 0 below
    power = rng.uniform(1.1, 1.8)
    amplitude = frequency**-power
    amplitude[0, 0] = 0
    white_noise = np.fft.rfft2(rng.standard_normal((n, n)))
    clouds = np.fft.irfft2(amplitude * white_noise, (n, n))
    # The mean grey is 128, and the standard deviation is 40. Both were chosen by hand.
    return np.clip(128 + 40 * clouds / clouds.std(), 0, 255).astype(np.uint8)
