"""Restore clips with a trained network, and score them where there is a sharp reference.

    python main_test_vrt.py --opt FILE [--weights FILE] [section.key=value ...]
    python main_test_vrt.py --weights FILE --input FOLDER|VIDEO --output DIR \\
        [--spike FOLDER|FILE.dat --spike-size H W] [--gt FOLDER|VIDEO] [spike.key=value ...]

The first form tests on `datasets.test`; the second takes anyone's frames or video. One process or many: launch_test.sh.
See docs/testing.md.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.clip_reader import ClipReader, dataset_clips, user_clips
from data.frame_io import read_bgr
from data.select_dataset import DATASETS, build_dataset
from models.losses import LOSSES
from models.model_vrt import tile_options
from models.portable import SavedNetwork, read_saved
from models.restore.interpolate import InterpolatedClip, Interpolator
from models.restore.lpips import Lpips
from models.restore.outputs import Outputs, claim_folder, finish_clip
from models.restore.report import MAX_PICTURES, build_report
from models.restore.restorer import Restorer, describe_tiling
from models.restore.results import clip_file, collect, json_bytes, load_clip, save_clip, text_table
from models.restore.setup import asked_tiles, check_inputs, direct_tiling, find_weights, settings_of
from models.restore.test_args import TestArgs, parse_test_args
from models.restore.tiling import Tiling
from models.select_network import NETWORKS, check_options
from utils import utils_dist
from utils.dist import process, watchdog
from utils.dist.gpu import choose_gpus
from utils.dist.launch import read_launch
from utils.errors import OptionError
from utils.files import refuse_overlap
from utils.metrics import PROTOCOL, tensor_to_uint8
from utils.options.file import Sources, apply_override
from utils.options.load import load_options
from utils.options.models import Options, WatchdogOptions
from utils.run.logger import setup_logging
from utils.run.progress import open_progress

logger = logging.getLogger(__name__)

PARTS = {"netG": NETWORKS, "datasets": DATASETS, "train": LOSSES}


@dataclass(frozen=True)
class Job:
    """All that a test needs.

    clips: readers, in order of names. expected: clips that there should be; an average over fewer is marked.
    tile_is_auto: halve the tiles where memory is short. section: resolved options of what is read and how.
    frames_note: which frames of a clip, for the protocol.
    """

    saved: SavedNetwork
    clips: list[ClipReader]
    tiling: Tiling
    tile_is_auto: bool
    outputs: Outputs
    args: TestArgs
    title: str
    expected: int
    section: dict[str, Any]
    frames_note: str


@dataclass(frozen=True)
class Work:
    """A run of frames of one clip, for one rank."""

    clip: int
    frames: range
    is_whole: bool


def main(argv: list[str]) -> int:
    """Exit code: 0 done, 2 options or launch, 3 data or weights, 70 stall, 1 anything else."""
    with utils_dist.one_door():
        launch = read_launch(os.environ, torch.cuda.device_count())
        setup_logging(launch.rank)
        utils_dist.join(launch)
        with utils_dist.all_ranks_or_none():
            args = parse_test_args(argv, __doc__)
            opt = read_options(args) if args.opt else None
            job = direct_job(args, opt) if args.is_direct else dataset_job(args, opt)
        utils_dist.init_dist(launch, *([opt.dist_timeout_s] if opt else []))
        if opt or launch.world_size > 1:  # a single process without options keeps nobody waiting, however slow it is
            utils_dist.watch(opt.watchdog if opt else WatchdogOptions())
        test(job)
    return 0


# ---- what to do ------------------------------------------------------------------------------------------------------


def read_options(args: TestArgs) -> Options:
    """The option file; its overrides only in the form that tests on its dataset."""
    overrides = () if args.is_direct else args.overrides
    checks = [partial(choose_gpus, utils_dist.get_launch()), check_options]
    return load_options(args.opt, overrides, parts=PARTS, check=checks)


def dataset_job(args: TestArgs, opt: Options) -> Job:
    """The clips of datasets.test with the tiles of `val`."""
    section = opt.datasets.test
    if section is None:
        raise OptionError("datasets.test is missing", args.opt, "the clips to test on", "add the section")
    saved = read_saved(find_weights(opt.path, opt.folder, args.weights), opt)
    # Each frame is read once or twice and not kept: memory must not grow with the length of a clip.
    section = section.model_copy(update={"cache_data": False}) if hasattr(section, "cache_data") else section
    seed = opt.train.manual_seed
    dataset = build_dataset(section, "test", seed)
    clips = dataset_clips(dataset)
    flags = {key: True for key in ("flip_seq", "pad_seq", "center_frame_only") if getattr(args, key)}
    tiling = Tiling(
        **{**tile_options(opt.val, saved.spec), "blend": args.blend or "kair", **flags, **asked_tiles(args)}
    )
    folder = Path(args.output or opt.folder / "test")
    refuse_overlap(folder, dataset.roots)
    save = args.save or (("frames",) if opt.val.save_img else ())
    outputs = Outputs(folder, tuple(sorted(save)), args.fps)
    first = getattr(section, "num_frame", -1)
    note = "the middle one" if tiling.center_frame_only else f"the first {first} of each clip" if first > 0 else "all"
    expected = max(len(clips), dataset.count_folders())
    title = f"Test of {opt.task}"
    read = {key: value for key, value in section.plain().items() if not key.startswith(("dataloader_", "cache_data"))}
    signed = {"datasets.test": read, "train.manual_seed": seed}
    return Job(saved, clips, tiling, args.tile == "auto", outputs, args, title, expected, signed, note)


def direct_job(args: TestArgs, opt: Options | None) -> Job:
    """A user's own clips. The weights file says what network it is for."""
    saved = read_saved(args.weights, opt)
    check_inputs(saved, args)
    options = None
    if args.spike and saved.spike is not None:
        options = spike_options(saved, args)
    clips = user_clips(args.input, args.spike, args.gt, options, saved.scale, saved.spike_data)
    if saved.spec.interpolates:
        clips = [InterpolatedClip(clip) for clip in clips]
    video = clips[0].fps is not None
    save = args.save or (("video", "comparison") if video else ("frames", "comparison"))
    outputs = Outputs(Path(args.output), tuple(sorted(save)), args.fps)
    fit = args.tile in (None, "auto")
    title = clips[0].name if len(clips) == 1 else Path(args.input).name
    tiling, section = direct_tiling(saved, args), {"spike": options}
    note = "the middle one" if tiling.center_frame_only else "all"
    return Job(saved, clips, tiling, fit, outputs, args, title, len(clips), section, note)


def spike_options(saved: SavedNetwork, args: TestArgs) -> dict[str, Any]:
    """The spike section that the network was trained with, as the command line changes it."""
    table = {"spike": {"type": saved.spike} if isinstance(saved.spike, str) else dict(saved.spike)}
    if saved.spike_data is not None and table["spike"].get("rate") != "match":
        table["spike"] |= {"rate": None, "light": None}  # of the training data, not of the user's
    if args.spike_size:
        table["spike"] |= dict(zip(("h", "w"), args.spike_size, strict=True))
    for override in args.overrides:
        if not override.startswith("spike."):
            raise OptionError(
                f"cannot set {override}", "the command line", "spike.key=value in the form with --input",
                "use --tile, --blend, --flip-seq, ..., or the form with --opt alone",
            )  # fmt: skip
        apply_override(table, override, Sources(args.weights))
    return table["spike"]


# ---- doing it --------------------------------------------------------------------------------------------------------


def test(job: Job) -> None:
    """Restore what is missing, finish each clip, report on all. Collective."""
    with utils_dist.all_ranks_or_none():
        if utils_dist.is_main_process():
            prepare_folder(job)
        restorer = build_restorer(job)
        lpips = Lpips.load(job.args.lpips).to(utils_dist.get_device()) if job.args.lpips else None
    plan = utils_dist.gather_objects(plan_work(job) if utils_dist.is_main_process() else None)[0]
    mine = plan[utils_dist.get_rank() :: utils_dist.get_world_size()]
    with utils_dist.all_ranks_or_none():
        restore_all(job, restorer, mine, lpips)
    with utils_dist.all_ranks_or_none():
        split = sorted({work.clip for work in plan if not work.is_whole})
        for index in split[utils_dist.get_rank() :: utils_dist.get_world_size()]:
            finish(job, restorer, index, lpips)
    if utils_dist.is_main_process():
        watchdog.phase("report")
        write_report(job)


def build_restorer(job: Job) -> Restorer:
    """The network with its tiles on this rank's device."""
    options = {"dtype": job.args.dtype, "noise_sigma": job.args.sigma, "fit": job.tile_is_auto}
    net, device = job.saved.build(), utils_dist.get_device()
    if job.saved.spec.interpolates:
        return Interpolator(net, job.tiling, device, length=job.saved.spec.least_frames, **options)
    return Restorer(net, job.tiling, device, **options)


def prepare_folder(job: Job) -> None:
    """Make sure that the folder is this job's and that nobody else's files are in the way."""
    watchdog.phase("check results")  # reads every result that is there already, and goes on with each
    tile = describe_tiling(job.tiling) + (", halved where memory is short" if job.tile_is_auto else "")
    settings = settings_of(job.saved, tile, job.args, job.outputs.save, job.section)
    stems = {clip.name: [clip.stems[k] for k in frames_of(job, clip)] for clip in job.clips}
    inputs = {}
    for clip in job.clips:
        inputs[clip.name] = clip.digest()
        watchdog.go_on()
    claim_folder(job.outputs, settings, inputs, stems, job.args.overwrite)
    watchdog.phase("start")


def frames_of(job: Job, clip: ClipReader) -> range:
    """The frames that are asked for: all, or the one in the middle."""
    count = len(clip.stems)
    return range(count // 2, count // 2 + 1) if job.tiling.center_frame_only else range(count)


def is_finished(job: Job, clip: ClipReader) -> bool:
    """Whether the clip has its mark and all files that are wanted of it."""
    stems = [clip.stems[k] for k in frames_of(job, clip)]
    files = [clip_file(job.outputs.folder, clip.name), *job.outputs.results(clip.name, stems)]
    return all(path.exists() for path in files)


def plan_work(job: Job) -> list[Work]:
    """What is still to be restored, longest first, so that the ranks end together; ranks take every n-th piece.

    With fewer clips than ranks, clips are cut in time: the frames are the same, bit for bit, however they are cut.
    """
    todo = [i for i, clip in enumerate(job.clips) if not is_finished(job, clip)]
    done = len(job.clips) - len(todo)
    if done:
        logger.info("%d of %d clips are finished already", done, len(job.clips))
    can_cut = job.tiling.num_frame_testing and not job.tiling.flip_seq and not job.tiling.center_frame_only
    pieces = -(-utils_dist.get_world_size() // len(todo)) if todo and can_cut else 1
    plan = []
    for index in todo:
        clip = job.clips[index]
        missing = [k for k in frames_of(job, clip) if not job.outputs.frame_file(clip.name, clip.stems[k]).exists()]
        left = range(missing[0], missing[-1] + 1) if missing else range(0)
        size = -(-len(left) // pieces) or 1
        cuts = [left[i : i + size] for i in range(0, len(left), size)] or [left]
        plan += [Work(index, cut, len(cuts) == 1) for cut in cuts]
    return sorted(plan, key=lambda work: (-len(work.frames), work.clip, work.frames.start))


def restore_all(job: Job, restorer: Restorer, mine: Sequence[Work], lpips: Lpips | None) -> None:
    """This rank's share, each frame on disk as soon as it is restored."""
    total = sum(len(work.frames) for work in mine)
    seconds, count = 0.0, 0
    with open_progress("bar", total, "restoring", unit="frame") as bar:
        for work in mine:
            clip, begin = job.clips[work.clip], time.perf_counter()
            watchdog.phase(f"restore: {clip.name}", count)
            for index, frame in zip(work.frames, restorer.frames(clip, work.frames), strict=True):
                job.outputs.write_image(job.outputs.frame_file(clip.name, clip.stems[index]), tensor_to_uint8(frame))
                bar.update()
                count += 1
                watchdog.phase(f"restore: {clip.name}", count)
            seconds += time.perf_counter() - begin
            pace = seconds / max(count, 1)
            if work.is_whole:
                finish(job, restorer, work.clip, lpips, pace if work.frames else None)
            logger.info(
                "%s: frames %d to %d restored; %.3f s/frame on %s, %.0f s left", clip.name, work.frames.start + 1,
                work.frames.stop, pace, device_name(), pace * (total - count),
            )  # fmt: skip


def finish(job: Job, restorer: Restorer, index: int, lpips: Lpips | None, pace_s: float | None = None) -> None:
    """Scores, strips and videos of a clip whose frames are all there; then its mark."""
    clip, outputs = job.clips[index], job.outputs
    watchdog.phase(f"score: {clip.name}")

    def read_restored(k: int) -> np.ndarray:
        return np.ascontiguousarray(read_bgr(str(outputs.frame_file(clip.name, clip.stems[k])))[..., ::-1])

    entry = finish_clip(clip, frames_of(job, clip), outputs, read_restored, lpips.score if lpips else None)
    save_clip(outputs.made, {**entry, "s_per_frame": pace_s, "tile": describe_tiling(restorer.tiling)})
    if "frames" not in outputs.save:
        outputs.made.remove(outputs.frame_file(clip.name, stem) for stem in clip.stems)


# ---- telling of it ---------------------------------------------------------------------------------------------------


def write_report(job: Job) -> None:
    """metrics.json, table.txt and report.html over all clips of the folder's job; the table to the log."""
    folder = job.outputs.folder
    entries = [entry for clip in job.clips if (entry := load_clip(folder, clip.name)) is not None]
    results = {"protocol": protocol(job, entries), **collect(entries, job.expected)}
    made = job.outputs.made
    made.write(folder / "metrics.json", json_bytes(results))
    table = text_table(results)
    told = "\n".join(f"{key}: {value}" for key, value in results["protocol"].items())
    made.write(folder / "table.txt", f"{table}\n\n{told}\n".encode())
    shown = {entry["name"]: example_pictures(job, entry) for entry in entries[:MAX_PICTURES]}
    made.write(folder / "report.html", build_report(job.title, results, shown).encode())
    logger.info("%s\n%s\n%s", job.title, table, told)
    logger.info("results are in %s (open report.html)", folder)


def protocol(job: Job, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How the numbers came about; it stands beside them everywhere."""
    paces = [entry["s_per_frame"] for entry in entries if entry.get("s_per_frame")]
    roots = {
        kind: describe_places([clip.origin[kind] for clip in job.clips if kind in clip.origin])
        for kind in ("input", "gt", "spike")
    }
    return {
        "weights": f"{job.saved.path} (sha256 {job.saved.sha256()[:12]}), network from {job.saved.known_from}",
        **{kind: place for kind, place in roots.items() if place},
        "frames": job.frames_note, "crop": "none", "border": "none left out",
        "tile": ", or ".join(sorted({entry["tile"] for entry in entries})),
        "dtype": job.args.dtype,
        "metrics": PROTOCOL + ("; LPIPS: AlexNet, version 0.1" if job.args.lpips else ""),
        "device": device_name(),
        **({"speed": f"{np.mean(paces):.3f} s/frame per process"} if paces else {}),
    }  # fmt: skip


def describe_places(paths: list[str]) -> str:
    return f"{paths[0]} and {len(paths) - 1} like it" if len(paths) > 1 else "".join(paths)


def example_pictures(job: Job, entry: dict[str, Any]) -> dict[str, np.ndarray]:
    """blurry, restored and sharp of the clip's example frame."""
    clip = next(c for c in job.clips if c.name == entry["name"])
    item = clip.frame(list(clip.stems).index(entry["example"]))
    restored = read_bgr(str(job.outputs.example_file(clip.name)))[..., ::-1]
    pictures = {"blurry": tensor_to_uint8(item["lq"][:3]), "restored": np.ascontiguousarray(restored)}
    return pictures | ({"sharp": tensor_to_uint8(item["gt"])} if "gt" in item else {})


def device_name() -> str:
    device = utils_dist.get_device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
