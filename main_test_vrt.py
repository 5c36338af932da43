"""Restore clips with a trained network, and score them where there are sharp frames.

    python main_test_vrt.py --opt FILE [--weights FILE] [section.key=value ...]
    python main_test_vrt.py --weights FILE --input FOLDER|VIDEO --output DIR \\
        [--spike FOLDER|FILE --spike-size H W] [--gt FOLDER|VIDEO] [spike.key=value ...]

The first form tests on `datasets.test`; the second restores your own frames or video. Several processes:
launch_test.sh. See docs/testing.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from data.clip_reader import dataset_clips, user_clips
from data.select_dataset import DATASETS, build_dataset
from models.losses import LOSSES
from models.portable import portable_options, read_saved
from models.restore.interpolate import InterpolatedClip, scored_clips
from models.restore.job import Job, restore_clips
from models.restore.outputs import Outputs
from models.restore.report import write_report
from models.restore.setup import automatic_tiles, check_inputs, find_weights, spike_options, tiling_of
from models.restore.test_args import TestArgs, parse_test_args
from models.select_network import NETWORKS, check_options
from utils import utils_dist
from utils.contract import InputSpec
from utils.dist import process
from utils.dist.gpu import choose_gpus
from utils.errors import OptionError
from utils.files import refuse_overlap
from utils.options.load import load_options
from utils.options.models import Options
from utils.run import boot

PARTS = {"netG": NETWORKS, "datasets": DATASETS, "train": LOSSES}


def main(argv: list[str]) -> int:
    """Exit code: 0 done, 2 options or launch, 3 data or weights, 70 stall, 1 anything else."""
    with boot.ranks():
        with utils_dist.all_ranks_or_none():
            args = parse_test_args(argv, __doc__)
            # With --input, the overrides are those of the spikes, see spike_options.
            opt = read_options(args.opt, () if args.is_direct else args.overrides) if args.opt else None
            job = direct_job(args, opt) if args.is_direct else dataset_job(args, opt)
        boot.begin(opt)
        restore_clips(job)
        if utils_dist.is_main_process():
            write_report(job)
    return 0


def read_options(path: str, overrides: Sequence[str] = ()) -> Options:
    checks = [partial(choose_gpus, utils_dist.get_launch()), check_options]
    return load_options(path, overrides, parts=PARTS, check=checks)


def dataset_job(args: TestArgs, opt: Options) -> Job:
    """The clips of datasets.test with the tiles of `val`."""
    section = opt.datasets.test
    if section is None:
        raise OptionError("datasets.test is missing", args.opt, "the clips to test on", "add the section")
    saved = read_saved(find_weights(opt.path, opt.folder, args.weights), portable_options(opt))
    # Each frame is read once or twice: without a cache, memory does not grow with the length of a clip.
    section = section.model_copy(update={"cache_data": False}) if hasattr(section, "cache_data") else section
    seed = opt.train.manual_seed
    dataset = build_dataset(section, "test", seed)
    clips = scored_clips(dataset_clips(dataset), saved.spec)
    folder = Path(args.output or opt.folder / "test")
    refuse_overlap(folder, dataset.roots)
    save = args.save or (("frames",) if opt.val.save_img else ())
    first = getattr(section, "num_frame", -1)
    val = opt.val.model_copy(update={"pad_seq": True}) if getattr(section, "pad_sequence", False) else opt.val
    read = {key: value for key, value in section.plain().items() if not key.startswith(("dataloader_", "cache_data"))}
    return Job(
        saved=saved,
        clips=clips,
        tiling=tiling_of(val, saved.spec, args, blend="kair"),
        halve_tiles=args.tile == "auto",
        outputs=Outputs(folder, tuple(sorted(save)), args.fps),
        args=args,
        title=f"Test of {opt.task}",
        expected=max(len(clips), dataset.count_folders()),
        section={"datasets.test": read, "train.manual_seed": seed},
        frames_note=_frames_note(saved.spec, first),
        noise_sigma=getattr(section, "sigma", None) if saved.spec.noise_map else None,
    )


def _frames_note(spec: InputSpec, first: int) -> str:
    """Which frames of a clip are scored. first: how many of them are read; below 1: all."""
    read = f"the first {first} of each clip" if first > 0 else "all"
    return f"made between every second of {read}; input: mean of both neighbours" if spec.interpolates else read


def direct_job(args: TestArgs, opt: Options | None) -> Job:
    """A user's own clips. Without `opt`, the weights file says which network it belongs to."""
    saved = read_saved(args.weights, portable_options(opt) if opt else None)
    check_inputs(saved, args)
    spike = spike_options(saved, args) if args.spike and saved.spike is not None else None
    clips = user_clips(args.input, args.spike, args.gt, spike, saved.scale, saved.spike_data)
    if saved.spec.interpolates:
        clips = [InterpolatedClip(clip) for clip in clips]
    save = args.save or ("video" if clips[0].fps is not None else "frames", "comparison")
    return Job(
        saved=saved,
        clips=clips,
        tiling=tiling_of(automatic_tiles(saved, args), saved.spec, args, blend="smooth"),
        halve_tiles=args.tile in (None, "auto"),
        outputs=Outputs(Path(args.output), tuple(sorted(save)), args.fps),
        args=args,
        title=clips[0].name if len(clips) == 1 else Path(args.input).name,
        expected=len(clips),
        section={"spike": spike},
        noise_sigma=args.sigma,
    )


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
