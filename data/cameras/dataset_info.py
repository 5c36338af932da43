"""Read dataset.json, which describes the spike files of a data set.

The file lies beside the spike files, for example

    {"format": 1, "h": 360, "w": 640, "planes": 56, "gt_plane": 24, "rate": 0.5, "light": "linear",
     "clips": {"GOPR0372_07_00": {"planes": 56, "offset": 0}}}

`load_info` and `nearest_info` find the file, check it, and return a `DatasetInfo`. A plane is one
read-out of the spike camera. A raw frame is a frame of the fast video from which a clip was made:
several raw frames are averaged to one blurry frame.

What must stay:

    * the keys and their meanings, because published data sets have such files
    * the name and the place of each field in the `repr` of `DatasetInfo`, because a run recognises
      its data by a digest of this repr

Free to add: a field that the repr leaves out, e.g. `wavelength: float | None = field(default=None,
repr=False)`, and a key of `ClipKeys`.

Tests: tests/parts/data/test_data_json.py (keys), tests/parts/data/test_timing.py (repr)
"""

import dataclasses
import difflib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from utils.errors import DataError
from utils.json_file import cause_in_words, read_json

# ---- What is known ------------------------------------------------------------------------------

# Largest number of planes in a file. At 2 kHz, so many planes last about 17 years. Sums of such
# numbers fit into 64 bits.
MOST_PLANES = 2**40
# Types of the values in dataset.json, with the limits that pydantic checks.
Side = Annotated[int, Field(ge=1, le=2**16)]  # height or width of a plane
Planes = Annotated[int, Field(ge=1, le=MOST_PLANES)]  # a number of planes
Plane = Annotated[int, Field(ge=0, lt=MOST_PLANES)]  # the number of a plane, counted from 0
# "float | int" and not only float, because pydantic would turn the 1 of a file into 1.0. This would
# change the repr of `DatasetInfo`.
Rate = Annotated[float | int, Field(gt=0, allow_inf_nan=False)]
Light = Literal["linear", "display"]

# GOPRO_INTERPOLATE and GOPRO_NAME are for the published data set Spk-GoPro, because it may have no
# dataset.json.
# Number of planes for each raw frame: the raw frame itself, and 7 frames that are interpolated
# between this raw frame and the next one.
GOPRO_INTERPOLATE = 8
# The number in the middle of a clip name is the number of averaged raw frames. E.g. in
# GOPR0372_07_00 a blurry frame is the mean of 7 raw frames, so a spike file has 7 * 8 = 56 planes.
GOPRO_NAME = re.compile(r"GOPR\d+_(\d\d)_\d\d")

# Keys that "clips" in dataset.json may set for one clip, in place of the value for all clips. Each
# key must be a field of `DatasetInfo` and of `ClipKeys` below.
KEYS_OF_ONE_CLIP = ("h", "w", "flip", "rate", "light", "calibration")


@dataclass(frozen=True)
class DatasetInfo:
    """The contents of a dataset.json. A value is None if the file does not contain it."""

    path: str = ""  # path of the file; "" if there is no dataset.json
    h: Side | None = None  # height of a spike plane
    w: Side | None = None  # width of a spike plane
    flip: bool | None = None  # whether the lowest row of the image is stored first
    planes: Planes | None = None  # number of planes in a file
    gt_plane: Plane | None = None  # number of the plane at which the sharp frame was taken
    rate: Rate | None = None  # spikes per plane at full light
    # What the sensor integrated: "linear" light, or "display" values, which are light after gamma.
    light: Light | None = None
    interpolate: Planes = GOPRO_INTERPOLATE  # number of planes for each raw frame
    # The contents of a file of scripts/calibrate.py. The repr does not show it, because the digest
    # of the data contains the calibration already (`DatSpikes.calibration`).
    calibration: dict[str, Any] | None = field(default=None, repr=False)
    # Name of a clip -> its values, with the keys of `ClipKeys`. `offset` is the number of raw
    # frames from the middle of an exposure to its sharp frame.
    clips: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of_clip(self, clip: str) -> "DatasetInfo":
        """Return the description of the spikes of one clip.

        A value of the clip replaces the value for all clips (KEYS_OF_ONE_CLIP). If the clip has no
        such value, the result is this object itself, not a copy. data/root_spikes.py compares the
        result with `is`, to find clips with values of their own.
        """
        values_of_clip = {}
        for key, value in self.clips.get(clip, {}).items():
            if key in KEYS_OF_ONE_CLIP and value is not None:
                values_of_clip[key] = value
        if not values_of_clip:
            return self
        return dataclasses.replace(self, **values_of_clip)

    @property
    def trained_rate(self) -> float | str | None:
        """The spikes per plane at full light, for a network trained on these clips.

        Returns "match" if each clip has a rate of its own, because the rate must then be measured
        from the frames (spike.rate "match"). Returns None if the rate is unknown.
        """
        if self.rate is not None:
            return self.rate
        every_clip_has_a_rate = all(clip.get("rate") for clip in self.clips.values())
        if self.clips and every_clip_has_a_rate:
            return "match"
        return None

    def planes_of(self, clip: str, usual: int) -> tuple[int, int]:
        """Return the number of planes of a clip's files, and the least number for its last file.

        usual: number of planes that most files have, used if dataset.json has no number.

        The last file may be shorter for two reasons. Planes are interpolated between a raw frame
        and the next one, but there is no raw frame after the last one. E.g. with 8 planes per raw
        frame, the last 7 of 56 planes are missing, so the result is (56, 49). If sharp frames are
        `offset` raw frames later than the middle of their exposure, the planes of `offset` further
        raw frames are missing.
        """
        values_of_clip = self.clips.get(clip, {})
        planes = usual
        if self.planes is not None:
            planes = self.planes
        if values_of_clip.get("planes") is not None:
            planes = values_of_clip["planes"]
        # A negative offset (a sharp frame before the middle) takes no planes from the last file.
        offset = max(values_of_clip.get("offset") or 0, 0)
        missing_after_last = self.interpolate - 1  # e.g. 7, if a raw frame has 8 planes
        missing_by_offset = offset * self.interpolate  # e.g. 1 * 8
        return planes, planes - missing_after_last - missing_by_offset

    def gt_plane_of(self, clip: str, planes: int) -> int | None:
        """Return the plane of the sharp frame in a file of `planes` planes.

        The plane comes from dataset.json, or else from a clip name of Spk-GoPro. Returns None if
        neither dataset.json nor the name tells the plane.

        The name GOPR0372_07_00 says that n = 7 raw frames were averaged. Each raw frame is a plane,
        and 7 interpolated planes follow it:

            raw frame       0        1        2        3 (the middle)   ...   n - 1 = 6
            plane           0        8        16       24               ...   48 (and 49 ... 55)

        The last file of a clip may lack the 7 planes after its last raw frame:

                                                            n raw frames    n = 7
            planes of a file                                8 n             56
            planes of the last file of a clip, at least     8 n - 7         49
            number of the middle raw frame                  (n - 1) / 2     3
            its plane, the sharp frame                      4 n - 4         24

        If a name tells the plane for any number of planes,
        test_a_clip_name_of_spk_gopro_tells_the_sharp_plane_if_the_files_have_its_length fails.
        """
        plane_of_clip = self.clips.get(clip, {}).get("gt_plane")
        if plane_of_clip is not None:
            return plane_of_clip
        if self.gt_plane is not None:
            return self.gt_plane
        match = GOPRO_NAME.fullmatch(clip)
        if not match:
            return None
        n = int(match[1])
        if n == 0:
            return None
        # E.g. n = 7 allows 49 to 56 planes. A file with fewer or more planes was made in another
        # way, so the name of the clip does not tell the plane. The numbers are written out because
        # Spk-GoPro always has 8 planes for each raw frame: 8 is GOPRO_INTERPOLATE, 7 is 8 - 1, and
        # 4 is 8 / 2.
        most_planes = 8 * n
        least_planes = most_planes - 7
        if least_planes <= planes <= most_planes:
            return 4 * n - 4
        return None


class ClipKeys(BaseModel, strict=True, extra="allow"):
    """The keys of one clip in "clips" of dataset.json, with the types that they must have.

    A key has the same meaning as in `DatasetInfo`, but only for this clip. Further keys are
    allowed, because the programs that make data record in them how a clip was made. The types
    `Side`, `Rate`, ... at the top of this file have the limits of the values.
    """

    h: Side | None = None
    w: Side | None = None
    flip: bool | None = None
    rate: Rate | None = None
    light: Light | None = None
    calibration: dict[str, Any] | None = None
    planes: Planes | None = None
    gt_plane: Plane | None = None
    offset: Annotated[int, Field(gt=-MOST_PLANES, lt=MOST_PLANES)] | None = None


# ---- Reading the file ---------------------------------------------------------------------------

FILE_NAME = "dataset.json"
# The version of the format of the file. Files of any other version are refused, so a higher number
# would make all existing files unusable. If a new key may be missing in a file, keep the number.
FORMAT = 1


def nearest_info(path: Path) -> DatasetInfo:
    """Return the dataset.json of the data set that a spike file or folder belongs to.

    path: a spike file, a folder of spike files, or the folder of a clip. In a data set, a spike
    file is <root>/<split>/<clip>/spike/<file>, and dataset.json lies in the root. The folders
    around `path` are tried, the nearest first. E.g. for the file root/train/a/spike/0.dat, the
    folders root/train/a/spike, root/train/a, root/train, root and the parent of root are tried.
    (For root, `load_info` also looks in the parent of root.) Returns an empty DatasetInfo if no
    folder has a dataset.json.

    If more folders are tried, test_a_dataset_json_far_above_belongs_to_other_files fails.
    """
    parents = path.resolve().parents  # the nearest first
    if path.is_dir():
        folders = [path, *parents[:3]]  # the root is the third parent of a folder "spike"
    else:
        # The root is the fourth parent of a spike file. If the file is a link, path.parent is the
        # folder of the link, and parents[0] the folder of the linked file. Without a link, both are
        # the same folder.
        folders = [path.parent, *parents[:4]]
    for folder in folders:
        info = load_info(str(folder))
        if info.path:
            return info
    return DatasetInfo()


def load_info(dataroot_spike: str) -> DatasetInfo:
    """Return the dataset.json in a folder or, if the folder has none, in the parent of the folder.

    dataroot_spike: the folder. It is the value of the option dataroot_spike, e.g. root/train with
    the clips of a split, or one of the folders that `nearest_info` tries. For root/train, the
    parent is the root of the data set.
    Returns an empty DatasetInfo if neither of the two folders has the file.
    Raises DataError for a file that is not a JSON object of this format, and for values of a wrong
    type.
    """
    root = Path(dataroot_spike)
    for path in (root / FILE_NAME, root.parent / FILE_NAME):
        if path.is_file():
            return _read_info(path)
    return DatasetInfo()


def _read_info(path: Path) -> DatasetInfo:
    """Read and check a dataset.json. Raises DataError."""
    clip_in_message = ""  # "clip a: " while the values of clip a are checked
    try:
        fields_of_info = _fields_in(read_json(path))
        # The strict mode of JSON refuses the text "56" and the value true if a number is expected.
        info = TypeAdapter(DatasetInfo).validate_json(json.dumps(fields_of_info), strict=True)
        for clip, values_of_clip in info.clips.items():
            clip_in_message = f"clip {clip}: "
            ClipKeys.model_validate_json(json.dumps(values_of_clip))
            _refuse_misspelt_keys(values_of_clip)
    except (OSError, ValueError) as e:
        raise DataError(
            what=f"dataset.json cannot be used: {clip_in_message}{cause_in_words(e)}",
            where=str(path),
            expected=f'a JSON object with "format": {FORMAT}, "h", "w", "flip", "planes", "rate", '
            '"light", "gt_plane"',
            do="correct dataset.json, or make the data set again",
        ) from e
    # The path is set here and not in the JSON text, because the name of a folder may have bytes
    # that JSON cannot hold.
    return dataclasses.replace(info, path=str(path))


def _fields_in(table: Any) -> dict[str, Any]:
    """Return the fields of `DatasetInfo` that the contents of a file give. Raises ValueError.

    table: contents of the JSON file. Other keys are ignored, because newer versions may add some.
    """
    if not isinstance(table, dict):
        raise ValueError("it is no JSON object")
    if table.get("format") != FORMAT:
        raise ValueError(f"format is {table.get('format')!r}")
    values = _with_values_of_recipe(table)
    fields_of_info = {}
    for one_field in dataclasses.fields(DatasetInfo):
        name = one_field.name
        # `path` is not in the file: it is the path of the file.
        if name != "path" and values.get(name) is not None:
            fields_of_info[name] = values[name]
    return fields_of_info


def _with_values_of_recipe(table: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `table`, the contents of a file, with the two values that its recipe gives.

    The recipe holds the settings with which scripts/prepare_gopro_spike.py made the clips. The
    recipe gives `interpolate`, and in older files also `light`. Raises ValueError.
    """
    recipe = table.get("recipe")
    if recipe is None:
        recipe = {}
    if not isinstance(recipe, dict):
        raise ValueError("recipe is no JSON object")
    values = dict(table)
    values["interpolate"] = recipe.get("interpolate")
    if "light" not in values:
        values["light"] = recipe.get("light")
    return values


def _refuse_misspelt_keys(values_of_clip: dict[str, Any]) -> None:
    """Raise ValueError for a key of a clip that is probably misspelt, such as "gt_plan".

    An unknown key counts as misspelt if it resembles a known key. Any other unknown key is taken as
    a note of the user, and is allowed.

    values_of_clip: {key: value}, what "clips" in dataset.json says about one clip.
    """
    valid_keys = list(ClipKeys.model_fields)
    for key in values_of_clip:
        # cutoff: smallest similarity. "gt_plan" and "gt_plane" have a similarity of 0.93. Unrelated
        # words have less than 0.8.
        similar_keys = difflib.get_close_matches(key.lower(), valid_keys, n=1, cutoff=0.8)
        if key not in valid_keys and similar_keys:
            raise ValueError(f"the key {key!r} is unknown; the nearest one is {similar_keys[0]}")
