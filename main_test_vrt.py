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

import logging
import sys
from argparse import Namespace
from pathlib import Path

from data.alignment_check import warning_of
from data.cameras.spike_source import SPIKE_SOURCES
from data.clip_dataset import check_clips
from data.clips.clip_reader import described, user_clips
from data.reconstruct import (
    SET_BY_METHOD,
    Reconstruction,
    method_options,
    section_for,
    spike_clip,
    spike_section,
)
from data.select_dataset import DATASETS, build_dataset
from models.losses import LOSSES
from models.portable import read_saved
from models.restore import setup
from models.restore.job import Job, restore_clips, write_report
from models.restore.outputs import Outputs
from models.restore.tiling import InterpolatedClip, scored_clips
from models.select_network import NETWORKS, check_options
from utils import utils_dist
from utils.dist import process
from utils.dist.gpu import choose_gpus
from utils.errors import OptionError, SpikeVRTError
from utils.files import refuse_overlap
from utils.options.load import Sources, apply_override, load_options
from utils.options.models import MetricOptions, Options

logger = logging.getLogger(__name__)

PARTS = {"netG": NETWORKS, "datasets": DATASETS, "train": LOSSES}


def main(argv: list[str]) -> int:
    """Exit code: 0 done, 2 options or launch, 3 data or weights, 70 stall, 1 anything else."""
    with utils_dist.ranks():
        with utils_dist.all_ranks_or_none():
            args = setup.parse_test_args(argv, __doc__)
            formula = reconstruction(args) if args.method else None
            opt = None  # with --input, the overrides are those of the spikes, see spike_options
            if args.opt:
                checks = [lambda opt: check_options(opt.netG, opt.datasets, opt.val, opt.scale)]
                opt = load_options(
                    args.opt, () if args.is_direct else args.overrides, parts=PARTS, check=checks
                )
                choose_gpus(opt.gpu_ids, opt.opt_path)
        utils_dist.begin(
            *((opt.watchdog, opt.dist_timeout_s, opt.digest(), opt.kept) if opt else ())
        )
        with utils_dist.all_ranks_or_none():
            try:
                if args.is_direct:
                    known = (opt.portable(), opt.metric) if opt else (None, MetricOptions())
                    job = user_job(args, *known, formula)
                else:
                    job = dataset_job(args, opt, formula)
            except SpikeVRTError as e:
                if args.is_direct and (
                    e.where.startswith("spike.h") or "spike height and width" in e.do
                ):
                    shows = "scripts/spike_tool.py info FILE --picture FRAME shows which sizes fit"
                    e.do = f"give --spike-size H W; {shows}"
                raise
        restore_clips(job)
        if utils_dist.is_main_process():
            write_report(job)
    return 0


def dataset_job(args: Namespace, opt: Options, formula: Reconstruction | None) -> Job:
    """The clips of datasets.test with the tiles of `val`, or with a formula in the place of the network."""
    section = opt.datasets.test
    if section is None:
        raise OptionError(
            "datasets.test is missing", args.opt, "the clips to test on", "add the section"
        )
    # Each frame is read once or twice: without a cache, memory does not grow with the length of a clip.
    section = (
        section.model_copy(update={"cache_data": False})
        if hasattr(section, "cache_data")
        else section
    )
    if formula:
        method, section = formula, section_for(formula, section, args.opt, opt.scale)
    else:
        saved = read_saved(setup.find_weights(opt.path, opt.folder, args.weights), opt.portable())
        method = setup.NetworkMethod(saved, args, opt.val, section)
    seed = opt.train.manual_seed
    dataset = build_dataset(section, "test", seed)
    check_clips(dataset, "test", opt.scale, None if formula else method.instants)
    clips = dataset.readers() if formula else scored_clips(dataset.readers(), saved.spec)
    folder = Path(args.output or opt.folder / (f"test_{args.method}" if formula else "test"))
    # A test set of another kind need not have folders.
    for source in getattr(dataset, "sources", ()):
        refuse_overlap(folder, source.roots())
    save = args.save or (("frames",) if opt.val.save_img else ())
    first = getattr(section, "num_frame", -1)
    frames = f"the first {first} of each clip" if first > 0 else "all"
    if not formula and saved.spec.interpolates:
        frames = f"made between every second of {frames}; input: mean of both neighbours"
    read = {
        key: value
        for key, value in section.plain().items()
        if not key.startswith(("dataloader_", "cache_data"))
    }
    outputs = Outputs(folder, tuple(sorted(save)), args.fps, method.instants, opt.metric)
    title = f"Test of {args.method or opt.task}" + (
        f" on the test set of {opt.task}" if formula else ""
    )
    expected, settings = (
        max(len(clips), dataset.count_folders() if hasattr(dataset, "count_folders") else 0),
        {"datasets.test": read, "train.manual_seed": seed},
    )
    return Job(
        method, clips, outputs, args.lpips, args.overwrite, title, expected, settings, frames
    )


def user_job(
    args: Namespace,
    network: dict[str, object] | None,
    metric: MetricOptions,
    formula: Reconstruction | None,
) -> Job:
    """A user's own clips, or spikes for a formula, with the frames beside them where there are any.

    network: as --opt describes it; None: the weights file does.
    """
    frames, scale, trained = "all", 1, None
    if not formula:
        saved = read_saved(args.weights, network)
        spike, method = setup.spike_options(saved, args), setup.NetworkMethod(saved, args)
        scale, trained = saved.scale, saved.spike_data
    else:
        source = SPIKE_SOURCES.resolve(
            setup.changed_spikes({"type": "dat"}, args, SET_BY_METHOD), "spike"
        )
        _, info = described(source, Path(args.spike))
        source, method = spike_section(source, formula, info.rate), formula
        spike = source.plain()
    if args.input:
        clips = user_clips(args.input, args.spike, args.gt, spike, scale, trained)
        if utils_dist.is_main_process() and (warning := warning_of(clips)):
            logger.warning("%s", warning)
    elif formula.is_grey:
        clips = [spike_clip(args.spike, args.gt, source)]
        each = "exposure" if source.exposure else "spike file"
        frames = f"one for each {each}; the input beside it is the mean of all planes of the {each}"
    else:
        what, do = (
            f"--method {args.method} needs the blurry frames",
            "add --input PATH, or use another method",
        )
        raise OptionError(what, "--input", "the frames of the exposures", do)
    if not formula and saved.spec.interpolates:
        clips = [InterpolatedClip(clip) for clip in clips]
    slow = ("slowmotion",) if method.instants > 1 else ()
    save = args.save or ("video" if clips[0].fps is not None else "frames", "comparison", *slow)
    outputs = Outputs(Path(args.output), tuple(sorted(save)), args.fps, method.instants, metric)
    title = clips[0].name if len(clips) == 1 else Path(args.input).name
    return Job(
        method,
        clips,
        outputs,
        args.lpips,
        args.overwrite,
        title,
        len(clips),
        {"spike": spike},
        frames,
    )


def reconstruction(args: Namespace) -> Reconstruction:
    """The formula of --method, with the overrides method.key=value, which it takes from the arguments."""
    table = {"method": {"type": args.method}}
    mine = [override for override in args.overrides if override.startswith("method.")]
    for override in mine:
        if override.startswith("method.type="):
            what, do = (
                f"{override} with --method {args.method}",
                "give the name with --method alone",
            )
            raise OptionError(what, "the command line", "the name of the method once", do)
        apply_override(table, override, Sources(None))
    formula = Reconstruction(method_options(table["method"]), args.center_frame_only)
    if formula.is_grey and args.lpips:
        what, do = (
            f"--lpips with --method {args.method}, whose frames are grey",
            "remove it, or use --method exposure",
        )
        raise OptionError(what, "--lpips", "frames in colour: LPIPS has no luma form", do)
    args.overrides = tuple(override for override in args.overrides if override not in mine)
    return formula


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
