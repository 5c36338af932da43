"""Read and write images, put panels side by side (a strip), and put images into HTML pages.

Images are (H, W, 3) uint8 RGB everywhere in the project, unless a docstring says otherwise. OpenCV
expects B, G, R, so the colours are exchanged next to each call of OpenCV.

What must stay:

    the sizes of a strip (LABEL_HEIGHT, GAP), because reports cut strips of earlier runs apart
        test_a_strip_shows_five_panels_of_a_clip_with_spikes_and_sharp_frames
    the rounding in `tensor_to_uint8`, because scores depend on it

Free to change: size and quality of images in pages.

Tests: tests/parts/data/test_files.py, tests/parts/scripts/test_show_sample.py
"""

import base64
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from utils.errors import DataError
from utils.files import write_whole

# Suffixes of images that are read and written. data/ finds the frames of a clip by these suffixes.
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")

# Height in pixels of the line with the name of a panel, in a strip.
LABEL_HEIGHT = 18
# Width in pixels of the gap between two panels of a strip.
GAP = 2
# Name of the panel with the error. The report of a run finds the panel by this name.
ERROR = "error x5"
# Largest width of an image in a page, in pixels. With a larger width, a page could have more than
# some tens of megabytes, and would open slowly. templates/test.html has the same number.
MAX_WIDTH = 1280
# Quality of a JPEG in a page, 0 to 100. With a lower quality, a reader could take artefacts of the
# JPEG for artefacts of the restoration. Chosen by hand.
JPEG_QUALITY = 93


# ---- Tensors -----------------------------------------------------------------------------------


def tensor_to_uint8(image: Any) -> np.ndarray:
    """Turn a tensor (..., C, H, W) in [0, 1] into an array (..., H, W, C) uint8.

    Values are clamped, multiplied by 255, and rounded. A half is rounded to the even number: 2.5
    becomes 2, and 3.5 becomes 4. Scores depend on this rounding.
    """
    image = image.detach().float().clamp(0, 1) * 255
    image = image.round().byte()
    return _channels_last(image)


def scored_values(image: Any, values: str) -> np.ndarray:
    """Turn a tensor (..., C, H, W) in [0, 1] into the values (..., H, W, C) that a metric compares.

    values: the option metric.values:

        "uint8"      clamped to 0 ... 1, times 255, rounded; uint8
        "clamped"    clamped to 0 ... 1, times 255; float64
        "float"      times 255; float64
    """
    if values == "uint8":
        return tensor_to_uint8(image)
    image = image.detach().double() * 255
    if values == "clamped":
        image = image.clamp(0, 255)
    return _channels_last(image)


def _channels_last(image: Any) -> np.ndarray:
    """Turn a tensor (..., C, H, W) into an array (..., H, W, C)."""
    # On a GPU, contiguous() reorders the values before they are copied to the CPU.
    return image.movedim(-3, -1).contiguous().cpu().numpy()


# ---- Files -------------------------------------------------------------------------------------


def imwrite_rgb(path: str | Path, image: np.ndarray) -> None:
    """Write an image (H, W, 3) uint8 in the format of the suffix, e.g. ".png".

    The file appears only when it is complete. The folder is made if it is missing. Raises DataError
    if the file cannot be written.
    """
    write_whole(path, encode_rgb(path, image))


def imread_rgb(path: str | Path) -> np.ndarray:
    """Return an image file as (H, W, 3) uint8. Raises DataError if it cannot be decoded."""
    image = None
    # OpenCV gets the content and not the name of the file, because a name that is not UTF-8 would
    # end the process in OpenCV. An empty content is left out, because OpenCV would raise an error
    # of its own for it.
    if Path(path).is_file():
        content = np.fromfile(path, np.uint8)
        if content.size:
            image = cv2.imdecode(content, cv2.IMREAD_COLOR)
    if image is None:
        raise DataError(
            what="cannot read the image",
            where=str(path),
            expected="a complete image file",
            do="remove it, then start again",
        )
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def encode_rgb(path: str | Path, image: np.ndarray) -> bytes:
    """Return (H, W, 3) uint8 as the bytes of a file, in the format of the suffix of `path`.

    Nothing is written. Raises DataError for a suffix that is not in IMAGE_SUFFIXES.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in IMAGE_SUFFIXES:
        raise DataError(
            what=f"cannot write a {suffix or 'nameless'} image",
            where=str(path),
            expected=", ".join(IMAGE_SUFFIXES),
            do="use .png",
        )
    # The first value says whether OpenCV has succeeded. It is not needed, because suffixes that
    # OpenCV cannot write are refused above.
    _, encoded = cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return encoded.tobytes()


# ---- Strips ------------------------------------------------------------------------------------


def comparison(
    blurry: np.ndarray, spikes: np.ndarray | None, restored: np.ndarray, sharp: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Return the panels of a comparison: name -> image of 3 channels, uint8.

    The panels come in this order: blurry, spikes, restored, sharp, error x5. A panel without data
    is left out. The error is 5 x |restored - sharp|, at most 255.

    A new panel may be added. Each run writes the names of its panels to images/panels.json, where
    its report (utils/run/report.py) reads them. So a new panel does not break the reports of older
    runs.

    blurry: (h, w, 3) uint8. It may be smaller than `restored`, e.g. with super-resolution.
    spikes: display values (H, W) from `ClipReader.spike_light`, or None. The 99.5 % quantile of the
        values becomes white, so that a few bright pixels do not make the image dark.
    restored: (H, W, 3) uint8.
    sharp: (H, W, 3) uint8, or None if there is no sharp frame.
    """
    panels = {"blurry": blurry}
    if spikes is not None:
        # `white` is at least 1e-6, because we divide by `white`. Without any spike, the quantile is
        # 0.
        white = max(float(np.percentile(spikes, 99.5)), 1e-6)
        relative = np.clip(spikes / white, 0, 1)  # 0 is black, 1 is white
        grey = np.round(255 * relative).astype(np.uint8)  # (H, W)
        panels["spikes"] = np.repeat(grey[..., None], 3, axis=2)  # (H, W, 3)
    panels["restored"] = restored
    if sharp is not None:
        # Subtract in int16, because uint8 has no negative numbers: in uint8, 3 - 5 is 254.
        difference = np.abs(restored.astype(np.int16) - sharp.astype(np.int16))
        panels["sharp"] = sharp
        panels[ERROR] = np.clip(difference * 5.0, 0, 255).astype(np.uint8)
    return panels


def comparison_strip(
    panels: Mapping[str, np.ndarray], size: tuple[int, int] | None = None
) -> np.ndarray:
    """Put panels (h, w, 3) uint8 side by side, each below its name. Returns (H, W, 3) uint8.

    `panels_of` cuts a strip into its panels again, also a strip of an earlier version of this
    program. So LABEL_HEIGHT and GAP must keep their values.

    panels: name -> panel, from left to right.
    size: (height, width) of each panel in the strip. A smaller panel is enlarged to this size by
        repeating its pixels. None stands for the size of the panel "restored".
    """
    if size is None:
        size = panels["restored"].shape[:2]
    height, width = size
    gap = np.full((LABEL_HEIGHT + height, GAP, 3), 255, np.uint8)  # white
    columns = []
    for name, image in panels.items():
        label = np.full((LABEL_HEIGHT, width, 3), 32, np.uint8)  # dark grey
        cv2.putText(
            label,
            name,
            # Place and size of the letters are chosen by hand, so that they fit into LABEL_HEIGHT.
            org=(4, LABEL_HEIGHT - 5),
            fontFace=cv2.FONT_HERSHEY_SIMPLEX,
            fontScale=0.42,
            color=(255, 255, 255),
            thickness=1,
            lineType=cv2.LINE_AA,
        )
        if image.shape[:2] != (height, width):
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_NEAREST)
        if columns:
            columns.append(gap)
        columns.append(np.concatenate((label, image)))
    return np.concatenate(columns, axis=1)


def panels_of(strip: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Cut a strip of `comparison_strip` into its panels: name -> (H, W, 3) uint8.

    names: names of the panels, from left to right.
    """
    # n panels have n - 1 gaps between them. With one more gap at the right, the strip is n times a
    # panel with its gap. E.g. 3 panels of 100 pixels make a strip of 304 pixels, and a panel with
    # its gap has (304 + 2) // 3 = 102 pixels.
    strip_width = strip.shape[1]
    width_with_gap = (strip_width + GAP) // len(names)
    panels = {}
    for index, name in enumerate(names):
        left = index * width_with_gap
        right = left + width_with_gap - GAP
        panels[name] = strip[LABEL_HEIGHT:, left:right]
    return panels


# ---- Pages -------------------------------------------------------------------------------------


def data_uri(kind: str, content: bytes) -> str:
    """Return a URI that holds the content of a file, e.g. "data:image/jpeg;base64,/9j/4AAQ...".

    A page with such URIs needs no other files.

    kind: MIME type of the file, e.g. "image/jpeg".
    """
    text = base64.b64encode(content).decode("ascii")
    return f"data:{kind};base64,{text}"


def jpeg_uri(image: np.ndarray, max_width: int = MAX_WIDTH) -> str:
    """Return an image (H, W, 3) uint8 as a JPEG in a URI, at most max_width pixels wide."""
    height, width = image.shape[:2]
    if width > max_width:
        new_height = max(1, round(height * max_width / width))
        image = cv2.resize(image, (max_width, new_height), interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    _, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return data_uri("image/jpeg", encoded.tobytes())


def render(template: str, **values: Any) -> str:
    """Return an HTML page that needs no other file: images and styles are in it.

    template: name of a file utils/templates/<template>.html. In the file, `image | data_uri` stands
        for `jpeg_uri(image)`.
    values: name in the template -> the value that is filled in. Text is escaped.
    """
    return _pages().get_template(f"{template}.html").render(**values)


@cache
def _pages() -> Any:
    """Return the environment of jinja2, which reads the templates and keeps them."""
    # jinja2 is imported here, because only programs that write pages need it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    pages = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,  # a missing value is an error
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["data_uri"] = jpeg_uri
    return pages
