"""dataset.json: the properties of spike data that need not be repeated in option files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.errors import DataError

FILE_NAME = "dataset.json"
FORMAT = 1
GOPRO_INTERPOLATE = 8  # planes per 240-fps frame of the published Spk-GoPro streams
LIGHTS = ("linear", "display")


@dataclass(frozen=True)
class DatasetInfo:
    """The contents of a dataset.json; None for what it does not contain.

    h, w: size of a spike plane. flip: rows are stored bottom first. planes: planes per file. gt_plane: the plane at
    which the sharp frame was taken. rate: spikes per tick at full light. light: what the sensor integrated, "linear"
    light or "display" values. interpolate: planes per raw frame.
    clips: planes, gt_plane and offset (raw frames between the sharp frame and the middle one) of single clips.
    """

    path: str = ""
    h: int | None = None
    w: int | None = None
    flip: bool | None = None
    planes: int | None = None
    gt_plane: int | None = None
    rate: float | None = None
    light: str | None = None
    interpolate: int = GOPRO_INTERPOLATE
    clips: dict[str, dict[str, int]] = field(default_factory=dict)

    def planes_of(self, clip: str) -> int | None:
        return self.clips.get(clip, {}).get("planes", self.planes)

    def fewest_planes(self, clip: str, planes: int) -> int:
        """The fewest planes that the last file of a clip may hold where the others hold `planes`.

        The light after the last raw frame is unknown: the planes interpolated after it are missing and, where sharp
        frames are later than the middle of their exposure, so are those of the raw frames that would follow.
        """
        late = max(self.clips.get(clip, {}).get("offset", 0), 0)
        return planes - (self.interpolate - 1) - late * self.interpolate

    def gt_plane_of(self, clip: str, planes: int) -> int | None:
        """The sharp frame's plane in a file of `planes` planes, from dataset.json or from a GoPro clip name."""
        known = self.clips.get(clip, {}).get("gt_plane", self.gt_plane)
        return known if known is not None else gopro_gt_plane(clip, planes)


def gopro_gt_plane(clip: str, planes: int) -> int | None:
    """4 n - 4 for a Spk-GoPro clip such as GOPR0372_07_00, where n = 7 frames were averaged; None for others.

    Each 240-fps frame is followed by 7 interpolated ones, so frame i of the n is plane 8 i, and the sharp frame is
    number (n - 1) / 2. The last file of a clip may lack 7 of its 8 n planes.
    """
    found = re.fullmatch(r"GOPR\d+_(\d\d)_\d\d", clip)
    n = int(found.group(1)) if found else 0
    return 4 * n - 4 if n and 8 * n - 7 <= planes <= 8 * n else None


def nearest_info(path: Path) -> DatasetInfo:
    """The dataset.json of the data set that a spike file or folder is part of; empty where there is none.

    Layout: <root>/<split>/<clip>/spike/<file>.
    """
    above = path.resolve().parents
    places = [path, *above[:3]] if path.is_dir() else [path.parent, *above[:4]]
    return next((info for info in (load_info(str(place)) for place in places) if info.path), DatasetInfo())


def load_info(dataroot_spike: str) -> DatasetInfo:
    """The dataset.json in the spike folder or its parent (which holds the splits); empty where there is none.

    Raises DataError for a file that is no JSON object of this format.
    """
    root = Path(dataroot_spike)
    path = next((p for p in (root / FILE_NAME, root.parent / FILE_NAME) if p.is_file()), None)
    if path is None:
        return DatasetInfo()
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return _checked(table, str(path))
    except (OSError, ValueError, TypeError, AttributeError) as e:
        raise DataError(
            f"dataset.json cannot be used: {e}", str(path),
            f'a JSON object with "format": {FORMAT}, "h", "w", "flip", "planes", "rate", "light", "gt_plane"',
            "correct it, or make the data set again",
        ) from e  # fmt: skip


def _checked(table: dict[str, Any], path: str) -> DatasetInfo:
    if table.get("format") != FORMAT:
        raise ValueError(f"format is {table.get('format')!r}")
    types = {
        "h": int, "w": int, "flip": bool, "planes": int, "gt_plane": int, "rate": (int, float), "light": str,
        "clips": dict,
    }  # fmt: skip
    # Older files of scripts/prepare_gopro_spike.py name the light in their recipe only.
    table = {"light": (table.get("recipe") or {}).get("light"), **table}
    values = {}
    for key, kind in types.items():
        value = table.get(key)
        if value is None:
            continue
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{key} is {value!r}")
        if key == "light" and value not in LIGHTS:
            raise ValueError(f"light is {value!r}, not one of {', '.join(LIGHTS)}")
        values[key] = value
    interpolate = (table.get("recipe") or {}).get("interpolate", GOPRO_INTERPOLATE)
    if not isinstance(interpolate, int) or interpolate < 1:
        raise TypeError(f"recipe.interpolate is {interpolate!r}")
    values["interpolate"] = interpolate
    return DatasetInfo(path=path, **values)
