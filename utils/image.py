"""Images on disk, in strips side by side, and in pages.

Images are (H, W, 3) uint8 RGB everywhere in the project.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from utils.errors import DataError
from utils.files import write_whole

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LABEL_HEIGHT, GAP = 18, 2  # of a strip, in pixels
ERROR = "error x5"
MAX_WIDTH = 1280  # of an image in a page: a page of more than some tens of megabytes opens slowly


def tensor_to_uint8(image: Any) -> np.ndarray:
    """A tensor (..., C, H, W) in [0, 1] -> (..., H, W, C) uint8: clamped, x255, rounded half to
    even.
    """
    return (
        (image.detach().float().clamp(0, 1) * 255)
        .round()
        .byte()
        .movedim(-3, -1)
        .contiguous()
        .cpu()
        .numpy()
    )


def scored_values(image: Any, values: str) -> np.ndarray:
    """A tensor (..., C, H, W) in [0, 1] -> (..., H, W, C) uint8 or float64 in 0..255. values: of
    metrics.VALUES.
    """
    if values == "uint8":
        return tensor_to_uint8(image)
    image = image.detach().double() * 255
    return (
        (image.clamp(0, 255) if values == "clamped" else image)
        .movedim(-3, -1)
        .contiguous()
        .cpu()
        .numpy()
    )


def imwrite_rgb(path: str | Path, image: np.ndarray) -> None:
    """Write (H, W, 3) uint8 in the format of the suffix; the file is whole or absent.

    Makes the folder.
    """
    write_whole(path, encode_rgb(path, image))


def imread_rgb(path: str | Path) -> np.ndarray:
    """(H, W, 3) uint8 of an image file. Raises DataError where it cannot be decoded."""
    # OpenCV ends the process for a name that is no UTF-8, so it gets the content.
    content = np.fromfile(path, np.uint8) if Path(path).is_file() else None
    image = None if content is None or not content.size else cv2.imdecode(content, cv2.IMREAD_COLOR)
    if image is None:
        raise DataError(
            "cannot read the image",
            str(path),
            "a complete image file",
            "remove it, then start again",
        )
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def encode_rgb(path: str | Path, image: np.ndarray) -> bytes:
    """(H, W, 3) uint8 as the bytes of a file `path`, in the format of its suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in IMAGE_SUFFIXES:
        what = f"cannot write a {suffix or 'nameless'} image"
        raise DataError(what, str(path), ", ".join(IMAGE_SUFFIXES), "use .png")
    _, encoded = cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return encoded.tobytes()


def data_uri(kind: str, content: bytes) -> str:
    """The content of a file, inline in a page. kind: its MIME type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def jpeg_uri(image: np.ndarray, max_width: int = MAX_WIDTH) -> str:
    """(H, W, 3) uint8 -> an inline JPEG for a page, at most max_width wide."""
    if image.shape[1] > max_width:
        height = max(1, round(image.shape[0] * max_width / image.shape[1]))
        image = cv2.resize(image, (max_width, height), interpolation=cv2.INTER_AREA)
    _, encoded = cv2.imencode(
        ".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 93]
    )
    return data_uri("image/jpeg", encoded.tobytes())


def comparison(
    blurry: np.ndarray, spikes: np.ndarray | None, restored: np.ndarray, sharp: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Panels blurry | spikes | restored | sharp | error x5, each (H, W, 3) uint8; those without
    data are left out.

    spikes: display values (H, W) of FrameReader.spike_light, of which the 99.5th percentile is
    white. Error: |restored
    - sharp| x 5, saturating at white.
    """
    panels = {"blurry": blurry}
    if spikes is not None:
        white = max(float(np.percentile(spikes, 99.5)), 1e-6)
        grey = np.round(255 * np.clip(spikes / white, 0, 1)).astype(np.uint8)
        panels["spikes"] = np.repeat(grey[..., None], 3, axis=2)
    panels["restored"] = restored
    if sharp is not None:
        difference = np.abs(restored.astype(np.int16) - sharp.astype(np.int16))
        panels |= {"sharp": sharp, ERROR: np.clip(difference * 5.0, 0, 255).astype(np.uint8)}
    return panels


def comparison_strip(
    panels: Mapping[str, np.ndarray], size: tuple[int, int] | None = None
) -> np.ndarray:
    """Panels (h, w, 3) uint8 in one row under their names, each enlarged by repetition: (H', W', 3)
    uint8.

    size: (height, width) of a panel; default: that of "restored".
    """
    (height, width), white, font = (
        size or panels["restored"].shape[:2],
        (255, 255, 255),
        cv2.FONT_HERSHEY_SIMPLEX,
    )
    gap = np.full((LABEL_HEIGHT + height, GAP, 3), 255, np.uint8)
    row = []
    for name, image in panels.items():
        label = np.full((LABEL_HEIGHT, width, 3), 32, np.uint8)
        cv2.putText(label, name, (4, LABEL_HEIGHT - 5), font, 0.42, white, 1, cv2.LINE_AA)
        if image.shape[:2] != (height, width):
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_NEAREST)
        row += [np.concatenate((label, image)), gap]
    return np.concatenate(row[:-1], axis=1)


def panels_of(strip: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Name -> (H, W, 3) uint8 of the panels of a strip from `comparison_strip`."""
    step = (strip.shape[1] + GAP) // len(names)
    return {
        name: strip[LABEL_HEIGHT:, i * step : (i + 1) * step - GAP] for i, name in enumerate(names)
    }


def render(template: str, **values: Any) -> str:
    """One HTML file with its images and styles: utils/templates/<template>.html filled with
    `values`, text escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    pages = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["data_uri"] = jpeg_uri
    return pages.get_template(f"{template}.html").render(**values)
