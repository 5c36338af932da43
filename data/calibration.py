"""The calibration of two cameras: where each spike pixel lies in the RGB frame, and when the planes begin.

A pixel (x, y) is column x and row y; (0, 0) is the centre of the upper left pixel, as in OpenCV, so that a picture of
width w reaches from -0.5 to w - 0.5. Spike pixels are those of the upright picture that `spike.flip` gives.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from utils.errors import DataError, OptionError
from utils.files import write_whole
from utils.options.section import Section, read_section

KEYS = 'docs/data_format.md, section "Two cameras", explains the keys'

Size = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]
Row = Annotated[list[float], Field(min_length=3, max_length=3)]


class Calibration(Section):
    """The contents of a calibration file."""

    format: Literal[1] = Field(1, description="Format of this file.")
    matrix: list[Row] = Field(
        min_length=2,
        max_length=3,
        description="Mirrored spike pixel (x, y, 1) -> RGB pixel: 2 rows of 3 (affine) or 3 rows of 3 (homography).",
    )
    spike_size: Size = Field(description="Height and width of a spike plane.")
    rgb_size: Size = Field(description="Height and width of the RGB frames.")
    mirror: Literal["none", "columns", "rows", "both"] = Field(
        "none", description="What is mirrored in the upright spike picture before `matrix` applies."
    )
    region: Annotated[list[int], Field(min_length=4, max_length=4)] | None = Field(
        None,
        description="[top, left, height, width] in RGB pixels: the part of the frame with usable spikes; null: the "
        "largest rectangle that the planes cover.",
    )
    time_offset_planes: float = Field(
        0.0,
        description="Added to the number of the plane at which an exposure should start: > 0 where the spike camera "
        "started first.",
    )
    tick_hz: float | None = Field(None, gt=0, description="Planes per second; null: unknown.")
    made: dict[str, Any] = Field(default_factory=dict, description="How the file was made; no effect.")

    def to_rgb(self) -> np.ndarray:
        """(3, 3) float64: spike pixel (x, y, 1) of the upright picture, not mirrored -> RGB pixel."""
        matrix = np.eye(3)
        matrix[: len(self.matrix)] = self.matrix
        return matrix @ mirroring(self.mirror, (self.spike_size[0], self.spike_size[1]))

    def digest(self) -> str:
        """16 hex digits that change with every value that has an effect."""
        values = {key: value for key, value in self.plain().items() if key not in ("made", "tick_hz")}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def mirroring(mirror: str, size: tuple[int, int]) -> np.ndarray:
    """(3, 3) float64: pixel of a picture of `size` (H, W) -> its place in the mirrored picture."""
    matrix = np.eye(3)
    if mirror in ("columns", "both"):
        matrix[0] = (-1, 0, size[1] - 1)
    if mirror in ("rows", "both"):
        matrix[1] = (0, -1, size[0] - 1)
    return matrix


def load_calibration(path: str | Path) -> Calibration:
    """The calibration in the JSON file `path`. Raises DataError for what is not a complete, usable calibration."""
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise DataError(
            f"cannot read the calibration: {e}", str(path), "a JSON file made by scripts/calibrate.py",
            "correct spike.calibration, or make the file: python scripts/calibrate.py --help",
        ) from e  # fmt: skip
    if not isinstance(table, dict):
        raise DataError("the calibration is no JSON object", str(path), "an object with the key matrix", KEYS)
    try:
        calibration = read_section(Calibration, table, "", "a calibration file")
    except OptionError as e:
        raise DataError(e.what, f"{path}, {e.where}", e.expected, f"correct the file; {KEYS}") from e
    _check_matrix(calibration, str(path))
    return calibration


def save_calibration(path: str | Path, calibration: Calibration) -> None:
    """Write a calibration file, complete or not at all."""
    rows = {key: json.dumps(value) for key, value in calibration.plain().items()}
    rows["matrix"] = "[\n    " + ",\n    ".join(json.dumps(row) for row in calibration.matrix) + "\n  ]"
    text = "{\n" + ",\n".join(f"  {json.dumps(key)}: {row}" for key, row in rows.items()) + "\n}\n"
    write_whole(path, text.encode())


def _check_matrix(calibration: Calibration, path: str) -> None:
    """Raise DataError for a matrix that does not map planes to frames one to one."""
    matrix = calibration.to_rgb()
    if not np.linalg.cond(matrix) < 1e12:
        raise DataError(
            "the matrix of the calibration is singular", f"{path}, matrix",
            "a matrix that maps spike pixels to RGB pixels one to one", "calibrate again: scripts/calibrate.py",
        )  # fmt: skip
    inverse = np.linalg.inv(matrix)
    for kind, size, mapping in (("spike", calibration.spike_size, matrix), ("RGB", calibration.rgb_size, inverse)):
        depth = mapping[2] @ _corners(size)
        if depth.min() <= 0 <= depth.max():
            raise DataError(
                f"the matrix of the calibration maps pixels of the {kind} picture to infinity", f"{path}, matrix",
                "a third row close to 0 0 1", "calibrate again: scripts/calibrate.py",
            )  # fmt: skip


def _corners(size: list[int]) -> np.ndarray:
    """(3, 4) the outer corners of a picture of `size` (H, W), as (x, y, 1)."""
    bottom, right = size[0] - 0.5, size[1] - 0.5
    return np.array([[-0.5, right, -0.5, right], [-0.5, -0.5, bottom, bottom], [1, 1, 1, 1]])
