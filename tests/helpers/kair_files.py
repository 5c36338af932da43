"""KAIR's nine option files for training VRT, and small data sets in the layouts that they name.

KAIR is the project in which VRT was published. tests/data/kair_options.json has the options of its
files: the keys that all files share ("base"), and for each file the keys of its own. A key has dots
between sections, e.g. `netG.img_size`.

    options_of        the options of a file
    shrink_options    the same options with a tiny network
    write_file        writes an option file in KAIR's form
    write_data        writes the folders, LMDBs and meta files that the paths of the options name

What must stay: names, layouts and forms, because files of KAIR have them.
"""

import json
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np

_PATH = Path(__file__).resolve().parents[1] / "data/kair_options.json"
TABLE = json.loads(_PATH.read_text(encoding="utf-8"))
NAMES = tuple(TABLE["files"])

# ---- Option files ----


def options_of(number: str) -> dict[str, Any]:
    """Return the options of the file with this number, e.g. "003", by their dotted keys."""
    (name,) = [name for name in NAMES if name.startswith(number)]
    own = dict(TABLE["files"][name])
    without = own.pop("without", [])  # keys of "base" that the file lacks
    options = TABLE["base"] | own
    return {key: value for key, value in options.items() if key not in without}


def write_file(path: Path, options: dict[str, Any]) -> Path:
    """Write an option file in KAIR's form: // comments, and a comma at the start of a line."""
    tree: dict[str, Any] = {}
    for key, value in options.items():
        *sections, last = key.split(".")  # e.g. "netG.depths" -> ["netG"], "depths"
        section = tree
        for name in sections:
            if name not in section:
                section[name] = {}
            section = section[name]
        section[last] = value
    path.write_text(f"{_object(tree, 2)}\n", encoding="utf-8")
    return path


def _object(tree: dict[str, Any], indent: int) -> str:
    """Return an object of an option file as text.

    indent: number of spaces before its keys.
    """
    lines = ["{"]
    for number, (key, value) in enumerate(tree.items()):
        comma = ", " if number else ""
        # KAIR's files have comments behind values. One comment is enough for the tests.
        note = "  // [8, 64, 64] | null" if key == "img_size" else ""
        if isinstance(value, dict):
            shown = _object(value, indent + 2)
        else:
            shown = json.dumps(value)
        lines.append(f'{" " * indent}{comma}"{key}": {shown}{note}')
    lines.append(" " * (indent - 2) + "}")
    return "\n".join(lines)


def paths_in_folder(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the paths of data and results below `folder`.

    options: dotted key -> value, as `options_of` returns them.
    """
    names_of_paths = ("dataroot_", "meta_info_file", "path.root", "pretrained_net")
    changed = {}
    for key, value in options.items():
        is_path = isinstance(value, str) and any(name in key for name in names_of_paths)
        changed[key] = str(folder / value) if is_path else value
    return changed


def shrink_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with a tiny network, small crops, and two steps.

    All other keys stay as they are.
    """
    frames = options["netG.img_size"][0]
    layers = len(options["netG.depths"])
    window_frames = options["netG.window_size"][0]
    pa_frames = options["netG.pa_frames"]
    changes = {
        "netG.img_size": [frames, 16, 16],
        "netG.window_size": [window_frames, 2, 2],
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
    # The number of groups must divide pa_frames / 2 * embed_dims (models/vrt/check_arguments.py).
    # Here embed_dims is 8, so this is 4 * pa_frames, which pa_frames itself divides.
    if pa_frames:
        changes["netG.deformable_groups"] = pa_frames
    return options | changes


# ---- Data sets ----


def picture(
    seed: int, frame: int, height: int, width: int, extension: str = "png", contrast: int = 100
) -> bytes:
    """Return an encoded picture of smooth shapes, which move to the right by 2 pixels per frame.

    seed: chooses the shapes. The pictures of a clip have the same seed.
    frame: number of the frame.
    extension: format of the file, e.g. "png".
    contrast: half the range of the values, which lie around 128. E.g. with 100 the values lie from
        28 to 228.
    """
    y, x = np.mgrid[:height, :width] / 16
    x = x - frame / 8  # 2 pixels per frame, because a pixel is 1 / 16
    channels = []
    for channel in range(3):
        waves = np.sin(x * (1 + channel / 3) + seed) * np.cos(y + channel)
        channels.append(128 + contrast * waves)
    bgr = np.stack(channels, axis=2).round().astype(np.uint8)
    _, encoded = cv2.imencode(f".{extension}", bgr)
    return encoded.tobytes()


def clip_pictures(
    clips: list[str],
    stems: list[str],
    size: tuple[int, int],
    extension: str = "png",
    contrast: int = 100,
) -> dict[str, bytes]:
    """Return the pictures of clips by their path, e.g. "001/00000000.png".

    clips: names of the clips. The number of a clip is its seed.
    stems: names of the frames of each clip.
    size: height and width.
    extension: format of the files, e.g. "png".
    contrast: half the range of the values, 0 to 127.
    """
    pictures = {}
    for seed, clip in enumerate(clips):
        for frame, stem in enumerate(stems):
            path = f"{clip}/{stem}.{extension}"
            pictures[path] = picture(seed, frame, *size, extension, contrast)
    return pictures


def write_files(root: Path, files: dict[str, bytes]) -> None:
    """Write files as an LMDB in KAIR's layout if `root` ends in .lmdb, otherwise in folders."""
    if root.suffix == ".lmdb":
        _write_lmdb(root, files)
        return
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def _write_lmdb(root: Path, files: dict[str, bytes]) -> None:
    """Write an LMDB whose keys are the names without extension, and its meta_info.txt."""
    root.mkdir(parents=True)
    # map_size is the largest size of the database in bytes, 32 MiB. These data sets are smaller.
    with (
        lmdb.open(str(root), map_size=1 << 25) as environment,
        environment.begin(write=True) as transaction,
    ):
        for name, content in files.items():
            key, _, _ = name.rpartition(".")
            transaction.put(key.encode(), content)
    # Readers take only the names from these lines. So the size, here always (64,64,3), may be
    # wrong.
    lines = [f"{name} (64,64,3) 1\n" for name in files]
    (root / "meta_info.txt").write_text("".join(lines))


def write_data(folder: Path, options: dict[str, Any], side: int = 64) -> None:
    """Write what the paths of the options name: two training clips and two test clips.

    side: height of the sharp frames; their width is side + 16.
    """
    _write_split(folder, options, "train", count=6, side=side)
    _write_split(folder, options, "test", count=3, side=side)


def _write_split(folder: Path, options: dict[str, Any], split: str, count: int, side: int) -> None:
    """Write the clips of a split, and its meta file if it has one.

    split: "train" or "test".
    count: number of frames of a clip. Clips of Vimeo always have seven: im1 to im7.
    side: height of the sharp frames. Their width is side + 16.
    """
    key = f"datasets.{split}."
    is_vimeo = "Vimeo" in options[f"{key}dataset_type"]
    if is_vimeo:
        clips = ["00001/0266", "00002/0008"]
        stems = [f"im{number}" for number in range(1, 8)]
    else:
        clips = ["001", "002"]
        template = options.get("datasets.train.filename_tmpl", "08d")
        stems = [format(number, template) for number in range(count)]
    extension = options.get(f"{key}filename_ext", "png")
    width = side + 16

    gt = options[f"{key}dataroot_gt"]
    lq = options[f"{key}dataroot_lq"]
    write_files(folder / gt, clip_pictures(clips, stems, (side, width), extension))
    # The data set of a denoiser has one folder for both, because the program adds the noise itself.
    if lq != gt:
        size = (side // options["scale"], width // options["scale"])
        write_files(folder / lq, clip_pictures(clips, stems, size, extension, contrast=80))

    # A line of the meta file has the clip, its number of frames, their shape, and the name of the
    # first frame. The meta file of Vimeo lacks this name.
    meta = options.get(f"{key}meta_info_file")
    if meta:
        first = "" if is_vimeo else f" {stems[0]}"
        lines = [f"{clip} {len(stems)} ({side},{width},3){first}\n" for clip in clips]
        (folder / meta).parent.mkdir(parents=True, exist_ok=True)
        (folder / meta).write_text("".join(lines))
