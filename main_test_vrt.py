"""Restore clips with a trained network, and score them where there are sharp frames.

    python main_test_vrt.py --opt FILE [--weights FILE] [section.key=value ...]
    python main_test_vrt.py --weights FILE --input FOLDER|VIDEO --output DIR \\
        [--spike FOLDER|FILE --spike-size H W] [--gt FOLDER|VIDEO] [spike.key=value ...]
    python main_test_vrt.py --method tfp|tfi|tfstp|exposure --opt FILE [method.key=value ...]
    python main_test_vrt.py --method NAME --spike PATH [--input PATH] --output DIR [--gt PATH] [method.key=value ...]

Examples:
    python main_test_vrt.py --opt options/vrt/000_train_vrt_sample_rgbspike.json --save comparison
    python main_test_vrt.py --weights models/500_G.pth --input blur.mp4 --spike clip.dat --output restored

The first form tests on `datasets.test`; the second restores your own frames or video; with --method, a
reconstruction from the spikes takes the place of the network. Several processes: launch_test.sh. See docs/testing.md.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data.clip_dataset import check_scale
from data.clip_reader import DatasetClip, dataset_clips, described, user_clips
from data.first_look import warning_of_clips
from data.instants import check_instants
from data.reconstruct import SET_BY_METHOD, Reconstruction, method_options, section_for, spike_clip, spike_section
from data.select_dataset import DATASETS, build_dataset
from data.spike_source import SPIKE_SOURCES
from models.losses import LOSSES
from models.restore.interpolate import InterpolatedClip, scored_clips
from models.restore.job import Job, restore_clips
from models.restore.method import NetworkMethod
from models.restore.outputs import Outputs
from models.restore.report import write_report
from models.restore.setup import (
    answered_by_flags,
    automatic_tiles,
    changed_spikes,
    check_inputs,
    saved_for,
    saved_network,
    spike_options,
    split_method,
    tiling_of,
)
from models.restore.test_args import TestArgs, parse_test_args
from models.select_network import NETWORKS, check_options
from utils import utils_dist
from utils.contract import ClipReader, InputSpec, Method
from utils.dist import process
from utils.dist.gpu import choose_gpus
from utils.errors import OptionError
from utils.files import refuse_overlap
from utils.options.load import load_options
from utils.options.models import Options
from utils.run import boot

logger = logging.getLogger(__name__)

PARTS = {"netG": NETWORKS, "datasets": DATASETS, "train": LOSSES}


def main(argv: list[str]) -> int:
    """Exit code: 0 done, 2 options or launch, 3 data or weights, 70 stall, 1 anything else."""
    with boot.ranks():
        with utils_dist.all_ranks_or_none():
            args = parse_test_args(argv, __doc__)
            formula, args = reconstruction(args) if args.method else (None, args)
            # With --input, the overrides are those of the spikes, see spike_options.
            opt = read_options(args.opt, () if args.is_direct else args.overrides) if args.opt else None
            if not args.is_direct:
                job = dataset_job(args, opt, formula)
            else:
                with answered_by_flags():
                    job = formula_job(args, formula) if formula else direct_job(args, opt)
        boot.begin(opt)
        restore_clips(job)
        if utils_dist.is_main_process():
            write_report(job)
    return 0


def read_options(path: str, overrides: Sequence[str] = ()) -> Options:
    checks = [partial(choose_gpus, utils_dist.get_launch()), check_options]
    return load_options(path, overrides, parts=PARTS, check=checks)


def dataset_job(args: TestArgs, opt: Options, formula: Reconstruction | None) -> Job:
    """The clips of datasets.test with the tiles of `val`, or with a formula in the place of the network."""
    section = opt.datasets.test
    if section is None:
        raise OptionError("datasets.test is missing", args.opt, "the clips to test on", "add the section")
    # Each frame is read once or twice: without a cache, memory does not grow with the length of a clip.
    section = section.model_copy(update={"cache_data": False}) if hasattr(section, "cache_data") else section
    method = formula or saved_network(args, opt, section)
    if formula:
        section = section_for(formula, section, args.opt, opt.scale)
    seed = opt.train.manual_seed
    dataset = build_dataset(section, "test", seed)
    check_scale(dataset, opt.scale, "test")
    if not formula:
        check_instants(dataset, method.instants, "test")
    spec = InputSpec() if formula else method.saved.spec
    clips = scored_clips(dataset_clips(dataset), spec)
    folder = Path(args.output or opt.folder / (f"test_{args.method}" if formula else "test"))
    refuse_overlap(folder, dataset.roots)
    save = args.save or (("frames",) if opt.val.save_img else ())
    first = getattr(section, "num_frame", -1)
    read = {key: value for key, value in section.plain().items() if not key.startswith(("dataloader_", "cache_data"))}
    return Job(
        method=method,
        clips=clips,
        outputs=outputs_of(folder, save, args, method),
        args=args,
        title=f"Test of {args.method or opt.task}" + (f" on the test set of {opt.task}" if formula else ""),
        expected=max(len(clips), dataset.count_folders()),
        section={"datasets.test": read, "train.manual_seed": seed},
        frames_note=_frames_note(spec, first),
    )


def _frames_note(spec: InputSpec, first: int) -> str:
    """Which frames of a clip are scored. first: how many of them are read; below 1: all."""
    read = f"the first {first} of each clip" if first > 0 else "all"
    return f"made between every second of {read}; input: mean of both neighbours" if spec.interpolates else read


def direct_job(args: TestArgs, opt: Options | None) -> Job:
    """A user's own clips. Without `opt`, the weights file says which network it belongs to."""
    saved = saved_for(args.weights, opt)
    check_inputs(saved, args)
    spike = spike_options(saved, args) if args.spike and saved.spike is not None else None
    clips = user_clips(args.input, args.spike, args.gt, spike, saved.scale, saved.spike_data)
    warn_of_geometry(clips)
    if saved.spec.interpolates:
        clips = [InterpolatedClip(clip) for clip in clips]
    is_halved = args.tile in (None, "auto")
    tiling = tiling_of(automatic_tiles(saved, args), saved.spec, args, blend="smooth", is_halved=is_halved)
    method = NetworkMethod(saved, tiling, args.dtype, args.sigma)
    return user_job(args, method, clips, {"spike": spike})


def formula_job(args: TestArgs, formula: Reconstruction) -> Job:
    """A user's spikes, with the frames beside them where there are any."""
    spike = SPIKE_SOURCES.resolve(changed_spikes({"type": "dat"}, args, SET_BY_METHOD), "spike")
    _, info = described(spike, Path(args.spike))
    spike = spike_section(spike, formula, info.rate)
    frames = "all"
    if args.input:
        clips = user_clips(args.input, args.spike, args.gt, spike.plain())
        warn_of_geometry(clips)
    elif formula.is_grey:
        clips = [spike_clip(args.spike, args.gt, spike)]
        source = "exposure" if spike.exposure else "spike file"
        frames = f"one for each {source}; the input beside it is the mean of all planes of the {source}"
    else:
        raise OptionError(
            f"--method {args.method} needs the blurry frames", "--input", "the frames of the exposures",
            "add --input PATH, or use another method",
        )  # fmt: skip
    return user_job(args, formula, clips, {"spike": spike.plain()}, frames)


def warn_of_geometry(clips: Sequence[DatasetClip]) -> None:
    """Rank 0 alone warns, as it alone looks, where spikes and frames do not show the same."""
    if utils_dist.is_main_process() and (warning := warning_of_clips(clips)):
        logger.warning("%s", warning)


def user_job(
    args: TestArgs, method: Method, clips: Sequence[ClipReader], section: dict[str, Any], frames_note: str = "all"
) -> Job:
    slow = ("slowmotion",) if method.instants > 1 else ()
    save = args.save or ("video" if clips[0].fps is not None else "frames", "comparison", *slow)
    return Job(
        method=method,
        clips=clips,
        outputs=outputs_of(Path(args.output), save, args, method),
        args=args,
        title=clips[0].name if len(clips) == 1 else Path(args.input).name,
        expected=len(clips),
        section=section,
        frames_note=frames_note,
    )


def outputs_of(folder: Path, save: Sequence[str], args: TestArgs, method: Method) -> Outputs:
    """The files of the test. Raises OptionError for a slow motion of a single instant."""
    if "slowmotion" in save and method.instants == 1:
        raise OptionError(
            "--save slowmotion, and one sharp frame is restored for each blurry one", "--save slowmotion",
            "a network with several instants of each exposure (netG.out_instants)", "leave out slowmotion",
        )  # fmt: skip
    return Outputs(folder, tuple(sorted(save)), args.fps, method.instants)


def reconstruction(args: TestArgs) -> tuple[Reconstruction, TestArgs]:
    """The formula of --method, and the arguments without its options."""
    section, args = split_method(args)
    formula = Reconstruction(method_options(section), args.center_frame_only)
    if formula.is_grey and args.lpips:
        raise OptionError(
            f"--lpips with --method {args.method}, whose frames are grey", "--lpips",
            "frames in colour: LPIPS has no luma form", "remove --lpips, or use --method exposure",
        )  # fmt: skip
    return formula, args


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
