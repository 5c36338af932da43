#!/usr/bin/env python3
"""Make RGB + spike clips from fast video, in the layout that training reads.

    --source GOPRO_Large_all  --out trainsets/gopro        blur, blur_gamma, sharp and spikes from raw 240-fps clips
    --source clip.mp4         --out trainsets/mine         the same from any video
    --spikes-for GOPRO_Large  --out trainsets/gopro        spikes only, for frames that exist; their light between two
                                                           sharp frames is interpolated, or comes from --source

The source is only read. Clips that are there already are left alone, so an interrupted run goes on; other settings
need another --out. Everything is recorded in dataset.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np
from tqdm import tqdm

from data.raw_video import SPLITS, FolderFrames, LightPath, RawClip, exposures, find_raw_clips
from data.spike.simulate import IntegrateAndFire
from data.spike.stream import SpikeGeometry, write_dat
from data.spike_info import FILE_NAME, FORMAT
from utils.utils_errors import DataError, OptionError, SpikeVRTError
from utils.utils_image import imwrite_rgb, list_images

KINDS = ("blur", "blur_gamma", "sharp")


@dataclass(frozen=True)
class Recipe:
    """How clips are made; recorded in dataset.json."""

    average: int | None  # raw frames per exposure; None: from the clip's name, as in GOPR0372_07_00
    interpolate: int
    method: str
    ratio: int
    gamma: float
    light: str
    rate: float
    threshold: float
    initial_charge: float
    shot_noise: float
    dark_rate: float
    threshold_mismatch: float
    seed: int

    def average_of(self, clip: str) -> int:
        found = re.fullmatch(r"GOPR\d+_(\d\d)_\d\d", clip)
        return self.average or (int(found.group(1)) if found else 7)

    def planes_of(self, clip: str) -> int:
        return self.interpolate * self.average_of(clip)

    def gt_plane_of(self, clip: str) -> int:
        return self.interpolate * (self.average_of(clip) // 2)


@dataclass(frozen=True)
class Job:
    """One clip to make. raw: its fast frames, if there are any; sharp: its existing frames (--spikes-for), if any."""

    name: str
    split: str
    raw: RawClip | None
    sharp: Path | None


def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    try:
        return run(command)
    except SpikeVRTError as e:
        print(e, file=sys.stderr)
        return e.exit_code


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", type=Path, help="raw clips: folders of pictures or videos, below train/ and test/ or not"
    )
    parser.add_argument("--spikes-for", type=Path, metavar="DIR", help="an existing GOPRO_Large: make its spikes only")
    parser.add_argument("--out", type=Path, required=True, help="gets GOPRO_Large/ and GOPRO_Large_spike_seq/")
    parser.add_argument(
        "--test-share", type=float, default=0.2, help="share of test clips, where the source has no split"
    )
    parser.add_argument("--average", type=int, help="raw frames per exposure, odd; default: from GoPro names, else 7")
    parser.add_argument("--interpolate", type=int, default=8, help="spike planes per raw frame")
    parser.add_argument("--method", choices=("flow", "linear"), default="flow", help="between raw frames")
    parser.add_argument("--ratio", type=int, default=2, help="RGB pixels per spike pixel, each way")
    parser.add_argument("--gamma", type=float, default=2.2)
    parser.add_argument("--light", choices=("linear", "display"), default="linear", help="what the sensor integrates")
    parser.add_argument("--rate", type=float, default=0.5, help="spikes per plane at full light (gain / threshold)")
    parser.add_argument("--threshold", type=float, default=1.0, help="of the sensor; noise figures are relative to it")
    parser.add_argument("--initial-charge", type=float, default=1.0, help="largest first charge, in thresholds")
    parser.add_argument(
        "--shot-noise", type=float, default=0.0, help="deviation per plane at full light, in thresholds"
    )
    parser.add_argument("--dark-rate", type=float, default=0.0, help="spikes per plane without light")
    parser.add_argument("--threshold-mismatch", type=float, default=0.0, help="relative deviation between pixels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--dry-run", action="store_true", help="say what would be made, and how large it is")
    return parser.parse_args(arguments)


def run(command: argparse.Namespace) -> int:
    if not command.source and not command.spikes_for:
        raise OptionError("nothing to read", "--source, --spikes-for", "at least one of them", "see --help")
    recipe = Recipe(**{key: getattr(command, key) for key in Recipe.__dataclass_fields__})
    if recipe.average is not None and (recipe.average < 1 or recipe.average % 2 == 0):
        raise OptionError(
            f"--average is {recipe.average}", "--average", "an odd number of frames", "for instance 7 or 11"
        )
    jobs = find_jobs(command)
    todo = [job for job in jobs if not spike_folder(command.out, job).is_dir()]  # the spikes are put in place last
    sizes = {job: estimate(job, recipe) for job in todo}
    total = sum(sizes.values())
    print(f"{len(jobs)} clips, {len(jobs) - len(todo)} of them made already; about {total / 1e9:.2f} GB to write")
    if command.dry_run:
        for job in jobs:
            state = f"{sizes[job] / 1e6:9.1f} MB" if job in sizes else "     made"
            average, planes = recipe.average_of(job.name), recipe.planes_of(job.name)
            print(f"  {state}  {job.split}/{job.name}: {average} frames averaged, {planes} planes a file")
        return 0
    check_recipe(command.out, recipe)
    check_room(command.out, total)
    write_info(command.out, recipe, jobs)
    for _ in tqdm(make_clips(todo, recipe, command.out, command.workers), total=len(todo), unit=" clips", disable=None):
        pass
    print(f"made {command.out}; check it with scripts/check_data.py --opt FILE")
    return 0


def make_clips(jobs: list[Job], recipe: Recipe, out: Path, workers: int) -> Iterator[None]:
    """Make the clips, `workers` at a time; yields as each is done."""
    if workers <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield make_clip(job, recipe, out)
        return
    # spawn: OpenCV's threads do not survive a fork.
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(make_clip, job, recipe, out) for job in jobs]):
            yield done.result()


def find_jobs(command: argparse.Namespace) -> list[Job]:
    """Every clip to make, with its split. Raises DataError where --source lacks clips of --spikes-for."""
    raw = find_raw_clips(command.source) if command.source else []
    if not command.spikes_for:
        every = round(1 / command.test_share) if command.test_share > 0 else len(raw) + 1
        return [
            Job(c.name, c.split or ("test" if i % every == every - 1 else "train"), c, None) for i, c in enumerate(raw)
        ]
    jobs, by_name = [], {clip.name: clip for clip in raw}
    for split in SPLITS:
        for sharp in sorted(command.spikes_for.glob(f"{split}/*/sharp")):
            jobs.append(Job(sharp.parent.name, split, by_name.get(sharp.parent.name), sharp))
        for sharp in sorted(p for p in command.spikes_for.glob(f"{split}_GT/*") if p.is_dir()):
            jobs.append(Job(sharp.name, split, by_name.get(sharp.name), sharp))
    missing = [job.name for job in jobs if raw and job.raw is None]
    if missing or not jobs:
        what = (
            f"the raw video of {len(missing)} clips is missing: {', '.join(missing[:5])}"
            if missing
            else "no clip found"
        )
        where = str(command.source if missing else command.spikes_for)
        raise DataError(
            what, where, "<split>/<clip>/sharp or <split>_GT/<clip>, each with its raw clip", "correct the folders"
        )
    return jobs


def spike_folder(out: Path, job: Job) -> Path:
    return out / "GOPRO_Large_spike_seq" / job.split / job.name


def rgb_folder(out: Path, job: Job) -> Path:
    return out / "GOPRO_Large" / job.split / job.name


def estimate(job: Job, recipe: Recipe) -> int:
    """Bytes that a clip will take, from the size of its first frame as a PNG."""
    frames = FolderFrames(list_images(job.sharp)) if job.sharp else job.raw.open()
    first = frames.read(0)
    count = len(frames) if job.sharp else len(frames) // recipe.average_of(job.name)
    if count == 0:
        raise DataError(
            f"clip {job.name} has {len(frames)} frames", str(job.sharp or job.raw.path),
            f"at least {recipe.average_of(job.name)}, which make one exposure", "lower --average, or remove the clip",
        )  # fmt: skip
    pictures = 0 if job.sharp else len(KINDS) * len(cv2.imencode(".png", first)[1])
    planes = recipe.planes_of(job.name) * first.shape[0] * first.shape[1] // (8 * recipe.ratio**2)
    return count * (pictures + planes)


def check_room(out: Path, need: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free
    if need > 0.95 * free:
        raise DataError(
            f"about {need / 1e9:.1f} GB are needed", str(out), f"{free / 1e9:.1f} GB are free", "choose another disk"
        )


def info_path(out: Path) -> Path:
    return out / "GOPRO_Large_spike_seq" / FILE_NAME


def check_recipe(out: Path, recipe: Recipe) -> None:
    """Refuse to mix clips of two recipes in one folder."""
    path = info_path(out)
    made = json.loads(path.read_text(encoding="utf-8")).get("recipe") if path.is_file() else None
    if made is not None and made != asdict(recipe):
        differing = ", ".join(key for key in asdict(recipe) if made.get(key) != asdict(recipe)[key])
        raise DataError(
            f"{out} was made with other settings: {differing}", str(path), "the same settings",
            "choose another --out, or remove the folder",
        )  # fmt: skip


def write_info(out: Path, recipe: Recipe, jobs: list[Job]) -> None:
    """dataset.json: the geometry from the first clip, and planes per clip."""
    job = jobs[0]
    frames = FolderFrames(list_images(job.sharp)) if job.sharp else job.raw.open()
    height, width = spike_size(frames.read(0), recipe, job)
    clips = {j.name: {"planes": recipe.planes_of(j.name), "gt_plane": recipe.gt_plane_of(j.name)} for j in jobs}
    path = info_path(out)
    if path.is_file():
        clips = {**json.loads(path.read_text(encoding="utf-8"))["clips"], **clips}
    counts = Counter(clip["planes"] for clip in clips.values())
    common = next(clip for clip in clips.values() if clip["planes"] == counts.most_common(1)[0][0])
    about: dict[str, Any] = {
        "format": FORMAT, "h": height, "w": width, "flip": True, **common, "rate": recipe.rate,
        "light": recipe.light, "clips": clips,
        "recipe": asdict(recipe), "made_by": "scripts/prepare_gopro_spike.py",
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def spike_size(frame: np.ndarray, recipe: Recipe, job: Job) -> tuple[int, int]:
    height, width = (side // recipe.ratio for side in frame.shape[:2])
    if (height * recipe.ratio, width * recipe.ratio) != frame.shape[:2] or height * width % 8:
        raise DataError(
            f"frames of {frame.shape[0]} x {frame.shape[1]} do not divide by --ratio {recipe.ratio} into whole bytes",
            str(job.sharp or job.raw.path), "both sides divisible, and their product / ratio^2 by 8",
            "choose another --ratio, or crop the video",
        )  # fmt: skip
    return height, width


def make_clip(job: Job, recipe: Recipe, out: Path) -> None:
    """Write one clip; its folders appear when they are complete, the spikes last."""
    cv2.setNumThreads(1)
    rgb, spikes = rgb_folder(out, job), spike_folder(out, job)
    for folder in (rgb, spikes):
        shutil.rmtree(folder.with_name(f".{job.name}.tmp"), ignore_errors=True)
    if job.sharp is None and not rgb.is_dir():
        temporary = rgb.with_name(f".{job.name}.tmp")
        for number, pictures in enumerate(exposures(job.raw.open(), recipe.average_of(job.name), recipe.gamma)):
            for kind, picture in pictures.items():
                (temporary / kind).mkdir(parents=True, exist_ok=True)
                imwrite_rgb(temporary / kind / f"{number:06d}.png", picture)
        os.replace(temporary, rgb)
    temporary = spikes.with_name(f".{job.name}.tmp")
    (temporary / "spike").mkdir(parents=True)
    make_spikes(job, recipe, temporary / "spike", rgb / "sharp")
    os.replace(temporary, spikes)


def make_spikes(job: Job, recipe: Recipe, folder: Path, made_sharp: Path) -> None:
    """One .dat per sharp frame; from raw frames where there are any, else between the sharp frames."""
    average, planes = recipe.average_of(job.name), recipe.planes_of(job.name)
    sharp = list_images(job.sharp or made_sharp)
    frames = job.raw.open() if job.raw else FolderFrames(sharp)
    if job.raw and job.sharp:
        check_same_clip(job, frames, FolderFrames(sharp), average)
    size = spike_size(frames.read(0), recipe, job)
    light = LightPath(frames, size, recipe.gamma if recipe.light == "linear" else 1.0, recipe.method)
    rng = np.random.default_rng([recipe.seed, *job.name.encode()])
    sensor = IntegrateAndFire(
        *size, rate=recipe.rate, threshold=recipe.threshold, rng=rng, initial_charge=recipe.initial_charge,
        shot_noise=recipe.shot_noise, dark_rate=recipe.dark_rate, threshold_mismatch=recipe.threshold_mismatch,
    )  # fmt: skip
    for number, path in enumerate(sharp):
        if job.raw:
            times = [number * average + p / recipe.interpolate for p in range(planes)]
            # Nothing is known of the light after the last raw frame: the last file may be short.
            times = [time for time in times if time <= len(frames) - 1]
        else:
            times = [number + (p - recipe.gt_plane_of(job.name)) / planes for p in range(planes)]
        write_dat(folder / f"{path.stem}.dat", sensor.run(light.at(time) for time in times), SpikeGeometry(*size))


def check_same_clip(job: Job, raw: Any, sharp: FolderFrames, average: int) -> None:
    """The sharp frames must be the middle raw frames, or the spikes would belong to another moment."""
    middle = raw.read(average // 2).astype(np.int16)
    first = sharp.read(0).astype(np.int16)
    if len(raw) // average < len(sharp) or middle.shape != first.shape or np.abs(middle - first).mean() > 3.0:
        raise DataError(
            f"clip {job.name}: its first sharp frame is not frame {average // 2} of the raw clip "
            f"({len(raw)} raw, {len(sharp)} sharp frames, {average} averaged)",
            str(job.raw.path), "the raw clip that the sharp frames were taken from", "correct --source or --average",
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
