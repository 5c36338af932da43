"""Pictures on disk, and the side-by-side strips. Images are (H, W, 3) uint8 RGB everywhere in the project."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from utils.errors import DataError
from utils.files import natural_key, write_whole
from utils.metrics import tensor_to_uint8

if TYPE_CHECKING:  # programs that only prepare data start without torch
    from torch import Tensor

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
LABEL_HEIGHT = 18
MAX_WIDTH = 1280  # of a picture in a page: a page of more than some tens of megabytes opens slowly


def imwrite_rgb(path: str | Path, image: np.ndarray) -> None:
    """Write (H, W, 3) uint8 in the format of the suffix; the file is whole or absent. Makes the folder."""
    write_whole(path, encode_rgb(path, image))


def imread_rgb(path: str | Path) -> np.ndarray:
    """(H, W, 3) uint8 of an image file. Raises DataError where it cannot be decoded."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise DataError("cannot read the image", str(path), "a complete image file", "remove it, then start again")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def encode_rgb(path: str | Path, image: np.ndarray) -> bytes:
    """(H, W, 3) uint8 as the bytes of a file `path`, in the format of its suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in IMAGE_SUFFIXES:
        raise DataError(
            f"cannot write a {suffix or 'nameless'} image", str(path), ", ".join(IMAGE_SUFFIXES), "use .png"
        )
    _, encoded = cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return encoded.tobytes()


def data_uri(image: np.ndarray, max_width: int = MAX_WIDTH) -> str:
    """(H, W, 3) uint8 -> an inline JPEG for a page, at most max_width wide."""
    if image.shape[1] > max_width:
        height = max(1, round(image.shape[0] * max_width / image.shape[1]))
        image = cv2.resize(image, (max_width, height), interpolation=cv2.INTER_AREA)
    _, encoded = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 93])
    return f"data:image/jpeg;base64,{base64.b64encode(encoded).decode('ascii')}"


def list_images(folder: str | Path) -> list[Path]:
    """The images of a folder in the natural order of their names. Raises DataError where there is none."""
    folder = Path(folder)
    found = [p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES] if folder.is_dir() else []
    found.sort(key=lambda path: natural_key(path.name))
    if not found:
        what = "the folder holds no images" if folder.is_dir() else "no such folder"
        raise DataError(what, str(folder), f"frames as {', '.join(IMAGE_SUFFIXES)}", "check the path")
    return found


def spike_picture(spike: Tensor) -> np.ndarray:
    """Spike representation (S, H, W) -> (H, W, 3) uint8 for the eye: the mean over its middle third, a short TFP.

    Scaled so that the 99.5th percentile is white, gamma 1/2.2 (firing rates are linear in light).
    """
    # Over all channels it would be as blurry as the RGB frame of the same exposure.
    width = max(1, len(spike) // 3)
    first = (len(spike) - width) // 2
    rate = spike[first : first + width].detach().float().mean(0).clamp(min=0).cpu().numpy()
    white = max(float(np.percentile(rate, 99.5)), 1e-6)
    grey = np.round(255 * np.clip(rate / white, 0, 1) ** (1 / 2.2)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)


def error_picture(restored: np.ndarray, gt: np.ndarray, factor: float = 5.0) -> np.ndarray:
    """|restored - gt| x factor, (H, W, 3) uint8, saturating at white."""
    difference = np.abs(restored.astype(np.int16) - gt.astype(np.int16))
    return np.clip(difference * factor, 0, 255).astype(np.uint8)


def comparison_strip(
    lq: Tensor, spike: Tensor | None, restored: Tensor, gt: Tensor | None, labels: bool = True
) -> np.ndarray:
    """Panels blur | spikes | restored | sharp | error x5 side by side, at the size of `restored`, (H', W', 3) uint8.

    lq (3, h, w), spike (S, h, w) or None, restored (3, H, W), gt (3, H, W) or None. Panels without data are left out.
    """
    output = tensor_to_uint8(restored)
    panels = {"blurry": tensor_to_uint8(lq[:3])}
    if spike is not None:
        panels["spikes"] = spike_picture(spike)
    panels["restored"] = output
    if gt is not None:
        sharp = tensor_to_uint8(gt)
        panels |= {"sharp": sharp, "error x5": error_picture(output, sharp)}
    return side_by_side(list(panels.values()), list(panels) if labels else None, output.shape[:2])


def side_by_side(images: Sequence[np.ndarray], labels: Sequence[str] | None, size: tuple[int, int]) -> np.ndarray:
    """Images (h, w, 3) in one row, each enlarged to `size` (height, width) by repetition; names above them."""
    height, width = size
    row = [
        image if image.shape[:2] == size else cv2.resize(image, (width, height), interpolation=cv2.INTER_NEAREST)
        for image in images
    ]
    if labels is not None:
        row = [np.concatenate((_label(text, width), image)) for text, image in zip(labels, row, strict=True)]
    gap = np.full((row[0].shape[0], 2, 3), 255, np.uint8)
    return np.concatenate([part for image in row for part in (image, gap)][:-1], axis=1)


def split_strip(strip: np.ndarray) -> dict[str, np.ndarray]:
    """Name -> (H, W, 3) uint8 of the panels of a labelled `comparison_strip` with gt; {} for any other picture."""
    # No label fills a column of its band; a gap does.
    is_gap = (strip[:LABEL_HEIGHT] == 255).all(axis=(0, 2))
    edges = np.flatnonzero(np.diff(is_gap.astype(np.int8), prepend=1, append=1))
    panels = [strip[LABEL_HEIGHT:, first:end] for first, end in edges.reshape(-1, 2)] if len(edges) % 2 == 0 else []
    names = {4: ("blurry", "restored", "sharp", "error"), 5: ("blurry", "spikes", "restored", "sharp", "error")}
    sizes = {panel.shape for panel in panels}
    if len(panels) not in names or len(sizes) > 1 or not strip[LABEL_HEIGHT:].size:
        return {}
    return dict(zip(names[len(panels)], panels, strict=True))


def _label(text: str, width: int) -> np.ndarray:
    band = np.full((LABEL_HEIGHT, width, 3), 32, np.uint8)
    return cv2.putText(
        band, text, (4, LABEL_HEIGHT - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1, cv2.LINE_AA
    )
