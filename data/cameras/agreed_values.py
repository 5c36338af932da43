"""Take the geometry of a plane, the rate and the calibration from the options or dataset.json.

An option and dataset.json may both give a value. If the two values differ, one of them must be
wrong, so an error is raised:

    option spike.h   "h" in dataset.json   value
    360              missing               360
    missing          360                   360
    360              250                   an error
    missing          missing               the default, or an error if there is no default

What must stay: the rules of this table, because data sets and option files rely on them.

Tests: tests/parts/data/test_dataset_video_rgbspike.py notices a changed rule, and a missing error.
"""

from typing import Any, Literal, NamedTuple

from data.cameras.calibration import Calibration, load_calibration
from data.cameras.dataset_info import DatasetInfo
from data.spike.errors import SpikeFileError
from data.spike.geometry import SpikeGeometry
from utils.errors import OptionError


def agreed_value(key: str, option: Any, info: DatasetInfo, default: Any = None) -> Any:
    """Return the value of a key: the option, else the value of dataset.json, else the default.

    Raises OptionError if option and dataset.json differ, or if there is no value.
    """
    recorded = getattr(info, key)  # None if dataset.json does not have the key
    if option is not None and recorded is not None and option != recorded:
        raise OptionError(
            what=f"spike.{key} is {option}, dataset.json has {recorded}",
            where=info.path,
            expected=f"the same {key} in both",
            do=f"remove spike.{key}, or correct dataset.json",
        )
    for value in (option, recorded, default):
        if value is not None:
            return value
    # Only h and w can be missing, because the callers below give all other keys a default.
    raise OptionError(
        what=f"spike.{key} is missing",
        where=f"spike.{key}",
        expected="the size of a spike plane, as neither dataset.json nor a file of "
        "spike.calibration gives it",
        do='add for instance "spike": {"type": "dat", "h": 360, "w": 640} '
        "(360 x 640 for Spk-GoPro)",
    )


def agreed_rate(
    rate: float | Literal["match"] | None, info: DatasetInfo
) -> float | Literal["match"]:
    """Return the rate: the option, else the value of dataset.json, else 1.

    The rate is the number of spikes per plane at full light. With "match", the rate is measured in
    each frame (measured_rate.py), so it is not compared with dataset.json. Raises OptionError if a
    number differs from dataset.json.
    """
    if rate == "match":
        return rate
    return float(agreed_value("rate", rate, info, default=1.0))


class FileCalibration(NamedTuple):
    """A calibration, and the file that has it: the file of spike.calibration, or dataset.json."""

    calibration: Calibration
    path: str  # path of the file, for messages


def agreed_geometry(
    info: DatasetInfo,
    calibration_of_file: FileCalibration | None,
    h: int | None,
    w: int | None,
    flip: bool | None,
    head_columns: int,
    bit_order: Literal["little", "big"],
    layout: Literal["raster", "sps100"],
) -> SpikeGeometry:
    """Return the geometry of a plane: its size, and how a file stores it.

    calibration_of_file: result of `file_calibration`.
    h, w, flip: the options spike.h, spike.w and spike.flip; None if an option is not given.
    head_columns, bit_order, layout: the options of these names (`SpikeGeometry` in
    data/spike/geometry.py explains them).
    Raises OptionError for wrong sizes.
    """
    # If an option or dataset.json gives the size of the planes, this size is taken. If neither
    # gives the size, the size in the calibration file is taken. If the taken size differs from the
    # calibration file, `CalibratedGrid` refuses the calibration later.
    calibrated_height = calibrated_width = None
    if calibration_of_file:
        calibrated_height, calibrated_width = calibration_of_file.calibration.spike_size
    # By default, the rows of a "raster" file are stored from bottom to top, so they must be
    # flipped. The rows of an "sps100" file are stored from top to bottom.
    default_flip = layout == "raster"
    height = agreed_value("h", h, info, default=calibrated_height)
    width = agreed_value("w", w, info, default=calibrated_width)
    flipud = agreed_value("flip", flip, info, default=default_flip)
    try:
        return SpikeGeometry(
            height,
            width,
            flipud=flipud,
            head_columns=head_columns,
            bit_order=bit_order,
            layout=layout,
        )
    except SpikeFileError as e:
        # A SpikeFileError does not know the options, so raise an error that names them.
        where = "spike.h, spike.w, spike.head_columns"
        raise OptionError(e.what, where, e.expected, "correct them") from e


def file_calibration(option: str | None, info: DatasetInfo) -> FileCalibration | None:
    """Return the calibration that the key `calibration` names. Raises DataError.

        option                  returns
        None                    None: spikes and frames are taken as aligned
        "auto"                  None: data/cameras/self_calibration.py finds a calibration later
        "recorded"              the calibration of dataset.json. If dataset.json has no
                                calibration, None: spikes and frames are taken as aligned
        a path, e.g. rig.json   the calibration of this file

    option: spike.calibration. info: what dataset.json says.
    """
    if option is None or option == "auto":
        return None
    if option != "recorded":
        return FileCalibration(load_calibration(option), option)
    if not info.calibration:
        return None
    return FileCalibration(load_calibration(info.path, info.calibration), info.path)
