"""The videos and photographs from which the clips are made, and how they are divided.

What must stay: VIDEOS and PHOTOS, because they are part of the digest of the data. Another value
makes all results of finished runs invalid, also the results in docs/benchmarks/quality. Nothing may
be trained on the videos "choose" and "report".
test_a_folder_without_the_videos_of_the_real_suite_is_refused reads the message about missing
videos. Free to change: the folders in which a file is searched.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

# Part -> its videos, by file name without suffix. The videos were divided into parts before any
# network was trained on them.
VIDEOS = {
    "train": ("bedroom", "blocks", "cups", "juggle", "karma", "kick", "laptop"),
    "choose": ("coffee", "walker"),
    "report": ("camel", "park"),
}
# Python package -> its photographs in the public domain or under CC0.
PHOTOS = {
    "skimage": (
        "astronaut.png",
        "chelsea.png",
        "coffee.png",
        "hubble_deep_field.jpg",
        "retina.jpg",
        "rocket.jpg",
    ),
    "matplotlib": ("grace_hopper.jpg",),
}


def link_sources(out: Path, videos_folder: Path | None) -> dict[str, Path]:
    """Collect what the clips are made from. Returns part -> a folder with links.

    The parts are "train", "choose" and "report", with videos, and "photos". Ends the program if a
    video is missing.
    """
    # First look for the videos of all parts, so that one message names all missing videos.
    all_names: list[str] = []
    for names in VIDEOS.values():
        all_names += names
    video_files(videos_folder, all_names)
    files = {part: video_files(videos_folder, names) for part, names in VIDEOS.items()}
    files["photos"] = photographs()
    folders = {}
    for part, files_of_part in files.items():
        folders[part] = out / "sources" / part
        link_files(files_of_part, folders[part])
    return folders


def photographs() -> list[Path]:
    """Return the files of PHOTOS in the installed packages. Ends the program if one is missing."""
    files = []
    for package, photos in PHOTOS.items():
        for photo in photos:
            files.append(package_file(package, photo))
    return files


def package_file(package: str, name: str) -> Path:
    """Return a file of an installed package by its name. Ends the program if it is missing.

    The whole package is searched, because each package has its photographs in a different folder.
    The result is the first file with this name.
    """
    found = list(_folder_of(package).rglob(name))
    if not found:
        sys.exit(f"the package {package} has no {name}")
    return found[0]


def _folder_of(package: str) -> Path:
    """Return the folder of an installed package. Ends the program if it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        sys.exit(f"the package {package}, whose photographs are used, is not installed")
    return Path(spec.origin).parent


def video_files(folder: Path | None, names: Sequence[str]) -> list[Path]:
    """Return the files of some videos. Ends the program if one is missing.

    folder: the folder of --videos.
    names: file names without their endings.
    """
    if names and folder is None:
        sys.exit(f"give --videos, a folder with {', '.join(sorted(set(names)))}")
    files = {}  # name -> file
    if folder:
        files = {path.stem: path for path in sorted(folder.iterdir())}
    missing = sorted(set(names) - files.keys())
    if missing:
        sys.exit(f"--videos {folder} has no {', '.join(missing)}")
    return [files[name] for name in names]


def link_files(files: Sequence[Path], folder: Path) -> None:
    """Make a folder with a link to each file. Links that already exist are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        link = folder / file.name
        if not link.exists():
            link.symlink_to(file.resolve())
