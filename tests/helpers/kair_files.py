"""KAIR's nine option files for training VRT, and small data sets with the folders, LMDBs and meta
files they name.
"""

import json
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np

TABLE = json.loads(
    (Path(__file__).resolve().parents[1] / "data/kair_options.json").read_text(encoding="utf-8")
)
NAMES = tuple(TABLE["files"])


def options_of(number: str) -> dict[str, Any]:
    """Dotted key -> value of the file with this number, e.g. "003"."""
    own = dict(next(values for name, values in TABLE["files"].items() if name.startswith(number)))
    without = own.pop("without", [])
    return {key: value for key, value in (TABLE["base"] | own).items() if key not in without}


def write_file(path: Path, options: dict[str, Any]) -> Path:
    """An option file in KAIR's form: // comments, and a comma at the start of a line."""
    tree: dict[str, Any] = {}
    for key, value in options.items():
        *sections, last = key.split(".")
        section = tree
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    path.write_text(f"{_object(tree, 2)}\n", encoding="utf-8")
    return path


def _object(tree: dict[str, Any], indent: int) -> str:
    lines = []
    for number, (key, value) in enumerate(tree.items()):
        comma, note = ", " if number else "", "  // [8, 64, 64] | null" if key == "img_size" else ""
        shown = _object(value, indent + 2) if isinstance(value, dict) else json.dumps(value)
        lines.append(f'{" " * indent}{comma}"{key}": {shown}{note}')
    return "\n".join(["{", *lines, " " * (indent - 2) + "}"])


def picture(
    seed: int, frame: int, height: int, width: int, extension: str = "png", contrast: int = 100
) -> bytes:
    """An encoded picture of smooth shapes, moved to the right by 2 pixels a frame."""
    y, x = np.mgrid[:height, :width] / 16
    x = x - frame / 8
    channels = [128 + contrast * np.sin(x * (1 + c / 3) + seed) * np.cos(y + c) for c in range(3)]
    return cv2.imencode(f".{extension}", np.stack(channels, axis=2).round().astype(np.uint8))[
        1
    ].tobytes()


def clip_pictures(
    clips: list[str],
    stems: list[str],
    size: tuple[int, int],
    extension: str = "png",
    contrast: int = 100,
) -> dict[str, bytes]:
    """ "<clip>/<stem>.<extension>" -> the file, of all frames of all clips."""
    return {
        f"{clip}/{stem}.{extension}": picture(seed, frame, *size, extension, contrast)
        for seed, clip in enumerate(clips)
        for frame, stem in enumerate(stems)
    }


def write_files(root: Path, files: dict[str, bytes]) -> None:
    """The files as an LMDB in the layout of KAIR where `root` ends in .lmdb, else in folders."""
    if root.suffix == ".lmdb":
        root.mkdir(parents=True)
        with (
            lmdb.open(str(root), map_size=1 << 25) as environment,
            environment.begin(write=True) as transaction,
        ):
            for name, content in files.items():
                transaction.put(name.rpartition(".")[0].encode(), content)
        (root / "meta_info.txt").write_text("".join(f"{name} (64,64,3) 1\n" for name in files))
        return
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def write_data(folder: Path, options: dict[str, Any], side: int = 64) -> None:
    """What the paths of `options` lead to: two training and two test clips, sharp frames of side x
    (side + 16).
    """
    scale, is_vimeo = options["scale"], "Vimeo" in options["datasets.train.dataset_type"]
    tmpl = options.get("datasets.train.filename_tmpl", "08d")
    for split, count in (("train", 7 if is_vimeo else 6), ("test", 3)):
        key = f"datasets.{split}."
        vimeo = "Vimeo" in options[f"{key}dataset_type"]
        clips = ["00001/0266", "00002/0008"] if vimeo else ["001", "002"]
        stems = (
            [f"im{i + 1}" for i in range(7)] if vimeo else [format(i, tmpl) for i in range(count)]
        )
        extension = options.get(f"{key}filename_ext", "png")
        gt, lq = options[f"{key}dataroot_gt"], options[f"{key}dataroot_lq"]
        for root, factor, contrast in [(gt, 1, 100), *([(lq, scale, 80)] if lq != gt else [])]:
            size = (side // factor, (side + 16) // factor)
            write_files(folder / root, clip_pictures(clips, stems, size, extension, contrast))
        if meta := options.get(f"{key}meta_info_file"):
            number = "" if vimeo else f" {stems[0]}"
            lines = [f"{clip} {len(stems)} ({side},{side + 16},3){number}\n" for clip in clips]
            (folder / meta).parent.mkdir(parents=True, exist_ok=True)
            (folder / meta).write_text("".join(lines))


def in_folder(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """`options` with the paths of data and results below `folder`."""
    parts = ("dataroot_", "meta_info_file", "path.root", "pretrained_net")
    is_path = {
        key: isinstance(value, str) and any(p in key for p in parts)
        for key, value in options.items()
    }
    return {key: str(folder / value) if is_path[key] else value for key, value in options.items()}


def small(options: dict[str, Any]) -> dict[str, Any]:
    """`options` with a network and crops of a test's size, and two steps; every other key stays as
    it is.
    """
    frames, layers = options["netG.img_size"][0], len(options["netG.depths"])
    pa_frames = options["netG.pa_frames"]
    changes = {
        "netG.img_size": [frames, 16, 16],
        "netG.window_size": [options["netG.window_size"][0], 2, 2],
        "netG.depths": [2] + [1] * (layers - 1),
        "netG.embed_dims": [8] * layers,
        "netG.num_heads": [2] * layers,
        "datasets.train.gt_size": 16 * options["scale"],
        "datasets.train.dataloader_batch_size": 1,
        "datasets.train.dataloader_num_workers": 1,
        "train.total_iter": 2,
        "train.checkpoint_print": 1,
        "val.size_patch_testing": 0,
        "val.size_patch_overlapping": 0,
        "logging.use_tensorboard": False,
    }
    if pa_frames:
        changes["netG.deformable_groups"] = pa_frames
    return options | changes
