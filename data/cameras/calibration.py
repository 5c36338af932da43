"""Read and write the calibration of two cameras: where the spike camera looks, and when.

    matrix M         the spike pixel at column x and row y lies at column u / d and row v / d of the
                     frame, with (u, v, d) = M (x, y, 1)
    exposure share   the fraction of a frame interval (the time from one frame to the next) during
                     which the frame was exposed. E.g. 0.5: 28 of the 56 planes of a frame

(0, 0) is the centre of the upper left pixel, x grows to the right, and y grows downwards.
scripts/calibrate.py writes calibration files, and data/cameras/self_calibration.py finds a
calibration from the frames and spikes of a clip.

What must stay: the keys, because they are part of files, and the digest of a file, because runs
store it (test_a_run_of_an_older_version_finds_the_digest_of_its_calibration). A new key needs a
default that changes nothing for old files, and an entry in `defaults_of_newer_keys` of
`Calibration.digest`.

Tests: tests/parts/data/test_spike_grid.py, tests/parts/data/test_data_json.py
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from utils.errors import DataError, OptionError
from utils.files import write_whole
from utils.json_file import read_json
from utils.options.section import Section, read_section
from utils.user_path import expand_path

# ---- The contents of a file ---------------------------------------------------------------------

# Types of (height, width) and of a row of the matrix. pydantic checks the lengths, 2 and 3.
Size = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]
Row = Annotated[list[float], Field(min_length=3, max_length=3)]


class Calibration(Section):
    """The contents of a calibration file.

    Where the spike camera looks:
    matrix: maps the spike pixel (x, y, 1), after `mirror`, to an RGB pixel. 2 rows of 3 values
    (affine) or 3 rows of 3 (homography).
    mirror: what is mirrored in the upright spike image before `matrix` applies.
    spike_size, rgb_size: (height, width) of a spike plane and of a frame.
    region: (top, left, height, width) in RGB pixels, the part of the frame in which the spikes can
    be used. None: the largest rectangle that the spike planes cover.

    When an exposure happens:
    time_offset_planes: number that is added to the plane at which an exposure should start. The
    number is positive if the spike camera started first.
    exposure_share: fraction of the planes of a frame during which the frame was exposed. These
    planes lie in the middle of the planes of the frame: share 0.5 of 56 planes is planes 14 ... 41.
    The motion within an exposure is computed from exactly these planes. Channels are made of
    1.12 times as many planes (`share_to_read`).
    tick_hz: planes per second. None if it is unknown.

    made: says how the file was made, for a person who opens the file. It has no effect.

    Only the motion within an exposure (data/motion/joint/) uses `rolling` and `lens_blur`:
    rolling: the last row of a frame is exposed later than the first row by this fraction of the
    exposure.
    lens_blur: blur of the spike camera's lens, the sigma of a Gaussian in spike pixels.
    """

    format: Literal[1] = 1
    matrix: Annotated[list[Row], Field(min_length=2, max_length=3)]
    spike_size: Size
    rgb_size: Size
    mirror: Literal["none", "columns", "rows", "both"] = "none"
    region: Annotated[list[int], Field(min_length=4, max_length=4)] | None = None
    time_offset_planes: float = 0.0
    exposure_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    tick_hz: Annotated[float, Field(gt=0)] | None = None
    rolling: Annotated[float, Field(ge=-1, le=1)] = 0.0
    lens_blur: Annotated[float, Field(ge=0)] = 0.0
    made: dict[str, Any] = Field(default_factory=dict)

    def to_rgb(self) -> np.ndarray:
        """Return the matrix (3, 3) float64 from a pixel of the upright spike image to an RGB pixel.

        The result is the product of `matrix` and the mirroring of `mirror`.
        """
        matrix = np.eye(3)
        # An affine matrix has 2 rows. Its third row is 0 0 1, as in the identity.
        number_of_rows = len(self.matrix)
        matrix[:number_of_rows] = self.matrix
        height, width = self.spike_size
        # A product of matrices acts from right to left: first mirror, then map to the frame.
        return matrix @ mirroring(self.mirror, (height, width))

    @property
    def share_to_read(self) -> float:
        """The fraction of a frame's planes that is read for its channels, rounded to 3 digits."""
        return round(share_to_read(self.exposure_share), 3)

    def digest(self) -> str:
        """Return 16 hex digits that change with every value that has an effect.

        Runs and caches store the digest, and must find it again with a later version. So the digest
        of an old file must stay if a key is added to `Calibration`: add the key and its default to
        `defaults_of_newer_keys`.

        In the digest, "exposure_share" is the share that is read (`share_to_read`), because version
        0.9.0 had this share under this name. All planes are read for the exposure share 0.95 and
        for 1, but the two digests must differ. So the digest has a second key, "exposed", for 0.95:

            exposure share   "exposure_share"                   "exposed"
            0.8              0.896                              -
            0.95             - (1 is the default, see below)    0.95
            1                -                                  -
        """
        values = self.plain()
        del values["made"]  # has no effect (test_keys_without_an_effect_do_not_change_the_digest)
        del values["tick_hz"]  # is used only to compare two clocks
        values["exposure_share"] = self.share_to_read
        if self.share_to_read == 1 and self.exposure_share != 1:
            values["exposed"] = self.exposure_share
        # Older files lack the following keys. If the value of such a key is its default, the key
        # does not enter the digest. The numbers here must stay equal to the defaults of the fields
        # of `Calibration`. With a different number here, files without the key would get a
        # different digest.
        defaults_of_newer_keys = {"exposure_share": 1.0, "rolling": 0.0, "lens_blur": 0.0}
        for key, default in defaults_of_newer_keys.items():
            if values[key] == default:
                del values[key]
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


# The channels of a frame use 1.12 times as many planes as its exposure has, e.g. 56 planes for an
# exposure of 50. The reason: the network multiplies the blurry frame by a ratio, the brightness at
# the sharp instant divided by the mean brightness over the exposure. The spikes are blurred, too
# (by windows, pixels and the lens). This blur moves the ratio nearer to 1, e.g. from 1.5 to 1.4. A
# mean over more planes than the exposure moves the ratio away from 1, and so corrects for the blur.
# A larger factor helps cameras with large flaws, and harms cameras with small flaws
# (docs/benchmarks/calibration.md, "The exposure share").
PLANES_FACTOR = 1.12


def share_to_read(exposure_share: float) -> float:
    """Return which fraction of the planes of a frame is read for its channels.

    E.g. an exposure share of 0.8 gives 1.12 * 0.8 = 0.896. A share of 0.95 gives 1, all planes,
    because 1.12 * 0.95 is above 1.
    """
    return min(PLANES_FACTOR * exposure_share, 1.0)


def mirroring(mirror: str, size: tuple[int, int]) -> np.ndarray:
    """Return the matrix (3, 3) float64 that maps a pixel of an image into the mirrored image.

    mirror: "none", "columns", "rows" or "both". size: (height, width) of the image.
    For example, "columns" moves x to width - 1 - x.

    If an image is moved by a pixel,
    test_the_matrix_of_a_mirrored_calibration_begins_at_the_other_side fails.
    """
    height, width = size
    matrix = np.eye(3)
    if mirror in ("columns", "both"):
        matrix[0] = (-1, 0, width - 1)  # x -> -x + width - 1
    if mirror in ("rows", "both"):
        matrix[1] = (0, -1, height - 1)  # y -> -y + height - 1
    return matrix


def scale_of(matrix: np.ndarray) -> float:
    """Return the side of a spike pixel in the frame, in RGB pixels, e.g. 2.0.

    matrix: (3, 3), from spike pixels to RGB pixels.

    The area of a spike pixel in the frame is the determinant of the upper left part. The side is
    the square root of the area, e.g. 2 for a determinant of 4. If one camera is tilted, the spike
    pixels differ a little in size. In this case, the result is about the side of spike pixel (0,
    0).
    """
    # A homography times any factor is the same map. The division by its last value, matrix[2, 2],
    # removes the factor.
    without_shift = matrix[:2, :2] / matrix[2, 2]
    area = abs(np.linalg.det(without_shift))  # negative if the matrix mirrors
    return float(np.sqrt(area))


# ---- Reading and writing ------------------------------------------------------------------------

# The end of several error texts: where the user finds the keys of a calibration file.
HELP_ON_KEYS = 'docs/data_reference.md, section "Two cameras", explains the keys'


def load_calibration(path: str | Path, table: dict[str, Any] | None = None) -> Calibration:
    """Read a calibration and check that its matrix can be used.

    path: a JSON file. table: the contents of the calibration, if the caller has read them already,
    e.g. from a dataset.json. None: read the file `path`.
    Raises DataError if there is no usable calibration.
    """
    path = expand_path(str(path))  # replaces ~ and $NAME
    table = _table_of(path, table)
    try:
        calibration = read_section(Calibration, table, "", "a calibration file")
    except OptionError as e:
        raise DataError(
            what=e.what,
            where=f"{path}, {e.where}",
            expected=e.expected,
            do=f"correct the file; {HELP_ON_KEYS}",
        ) from e
    _refuse_unusable_matrix(calibration, path)
    return calibration


def _table_of(path: str, table: Any) -> dict[str, Any]:
    """Return `table`. If `table` is None, return the object in a JSON file. Raises DataError."""
    try:
        if table is None:
            table = read_json(path)
        if not isinstance(table, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as e:
        raise DataError(
            what=f"cannot read the calibration: {e}",
            where=str(path),
            expected="a JSON file made by scripts/calibrate.py",
            do="correct spike.calibration, or make the file",
        ) from e
    return table


def save_calibration(path: str | Path, calibration: Calibration) -> None:
    """Write a calibration file, complete or not at all.

    Each key and each row of the matrix has a line of its own, so that a person can read the file.
    The form of the lines may change, because `load_calibration` reads any JSON that has the keys.
    """
    rows = []
    for row in calibration.matrix:
        rows.append("    " + json.dumps(row))
    matrix_text = "[\n" + ",\n".join(rows) + "\n  ]"

    lines = []
    for key, value in calibration.plain().items():
        text = matrix_text if key == "matrix" else json.dumps(value)
        lines.append(f"  {json.dumps(key)}: {text}")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_whole(path, text.encode())


# Largest condition number of a matrix that is inverted. With a condition number of 1e12, an inverse
# loses 12 of the 16 digits of float64, so 4 digits are correct. A larger condition number would
# leave fewer correct digits.
LARGEST_CONDITION = 1e12


def _refuse_unusable_matrix(calibration: Calibration, path: str) -> None:
    """Raise DataError if the matrix has no inverse, or maps a pixel to infinity."""
    to_rgb = calibration.to_rgb()
    # "not <" also refuses NaN, because every comparison with NaN is false. ">=" would accept NaN.
    if not np.linalg.cond(to_rgb) < LARGEST_CONDITION:
        raise DataError(
            what="the matrix of the calibration is singular",
            where=f"{path}, matrix",
            expected="a matrix that maps spike pixels to RGB pixels one to one",
            do="calibrate again: scripts/calibrate.py",
        )
    to_spike = np.linalg.inv(to_rgb)
    _refuse_pixels_at_infinity("spike", calibration.spike_size, to_rgb, path)
    _refuse_pixels_at_infinity("RGB", calibration.rgb_size, to_spike, path)


def _refuse_pixels_at_infinity(kind: str, size: Size, matrix: np.ndarray, path: str) -> None:
    """Raise DataError if a matrix maps a point of an image to infinity.

    kind: name of the image for the message. size: (height, width) of the image.
    """
    height, width = size
    # Pixel centres are whole numbers, so the image reaches from -0.5 to side - 0.5.
    right = width - 0.5
    bottom = height - 0.5
    corners = [
        [-0.5, right, -0.5, right],  # x
        [-0.5, -0.5, bottom, bottom],  # y
        [1, 1, 1, 1],
    ]
    # A homography divides by the depth, the third row of the product. A point of depth 0 is mapped
    # to infinity. The depth is linear in x and y, so its least and its largest value are at
    # corners. If the least value is negative and the largest is positive, the depth is 0 between
    # them.
    depth = matrix[2] @ corners  # (3,) @ (3, 4) -> (4,): the depth at each corner
    if depth.min() <= 0 <= depth.max():
        raise DataError(
            what=f"the matrix of the calibration maps pixels of the {kind} image to infinity",
            where=f"{path}, matrix",
            expected="a third row close to 0 0 1",
            do="calibrate again: scripts/calibrate.py",
        )
