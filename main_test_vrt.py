"""Restore clips with a trained network, and score them where there are sharp frames.

    python main_test_vrt.py --opt FILE [--weights FILE] [section.key=value ...]
    python main_test_vrt.py --weights FILE --input FOLDER|VIDEO --output DIR \\
        [--spike FOLDER|FILE --spike-size H W] [--gt FOLDER|VIDEO] [spike.key=value ...]
    python main_test_vrt.py --method tfp|tfi|tfstp|exposure --opt FILE [method.key=value ...] python
    main_test_vrt.py --method NAME --spike PATH [--input PATH] --output DIR [--gt PATH]
    [method.key=value ...] python main_test_vrt.py --method joint [--weights FILE] --input PATH
    --spike PATH --output DIR [--gt PATH]

Examples:
    python main_test_vrt.py --opt options/vrt/000_train_vrt_sample_rgbspike.json --save comparison
    python main_test_vrt.py --weights models/500_G.pth --input blur.mp4 --spike clip.dat --output
    restored

The first form tests on `datasets.test`; the second restores your own frames or video; with
--method, a reconstruction from the spikes takes the place of the network. `joint` begins with the
formula `exposure`, or with the output of a network where there are --weights. Several processes:
launch_test.sh. See docs/testing.md.
"""

import logging
import sys
from argparse import Namespace
from pathlib import Path

from data.alignment_check import warning_of
from data.cameras.spike_source import SPIKE_SOURCES
from data.clip_dataset import check_clips
from data.clips.clip_reader import described, user_clips
from data.motion.method import NAME as JOINT
from data.motion.method import JointMethod, JointOptions, joint_options
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
from models.metrics import check_metrics
from models.portable import SavedNetwork, read_saved
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
            joint = joint_solution(args) if args.method == JOINT else None
            formula = reconstruction(args, joint) if args.method else None
            opt = None  # with --input, the overrides are those of the spikes, see spike_options
            if args.opt:
                checks = [
                    lambda opt: check_options(opt.netG, opt.datasets, opt.val, opt.scale),
                    lambda opt: check_metrics(opt.metric),
                ]
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
                    job = user_job(args, *known, formula, joint)
                else:
                    job = dataset_job(args, opt, formula, joint)
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


def dataset_job(
    args: Namespace, opt: Options, formula: Reconstruction | None, joint: JointOptions | None
) -> Job:
    """The clips of datasets.test, restored by a network with the tiles of `val`, or by a formula.

    joint: the options of --method joint, which begins with the frames of either.
    """
    section = opt.datasets.test
    if section is None:
        raise OptionError(
            "datasets.test is missing", args.opt, "the clips to test on", "add the section"
        )
    # Each frame is read once or twice: without a cache, memory does not grow with the length of a
    # clip.
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
    if joint:
        method = joint_method(joint, method, None if formula else saved)
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
    joint: JointOptions | None,
) -> Job:
    """A user's own clips, or spikes for a formula, with the frames beside them where there are any.

    network: as --opt describes it; None: the weights file does. joint: see `dataset_job`.
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
    if joint:
        method = joint_method(joint, method, None if formula else saved)
    if args.input:
        clips = user_clips(args.input, args.spike, args.gt, spike, scale, trained)
        if utils_dist.is_main_process() and (warning := warning_of(clips)):
            logger.warning("%s", warning)
    elif formula and formula.is_grey:
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


def reconstruction(args: Namespace, joint: JointOptions | None) -> Reconstruction | None:
    """The formula of --method, with the overrides method.key=value.

    joint: see `dataset_job`; it begins with the formula `exposure`. Returns None if it begins with
    weights.
    """
    if joint and args.weights:
        return None
    if joint:
        return Reconstruction(method_options({"type": "exposure"}), args.center_frame_only)
    formula = Reconstruction(method_options(method_section(args)), args.center_frame_only)
    if formula.is_grey and args.lpips:
        what, do = (
            f"--lpips with --method {args.method}, whose frames are grey",
            "remove it, or use --method exposure",
        )
        raise OptionError(what, "--lpips", "frames in colour: LPIPS has no luma form", do)
    return formula


def joint_solution(args: Namespace) -> JointOptions:
    """The options of --method joint, see `reconstruction`."""
    return joint_options(method_section(args))


def joint_method(
    joint: JointOptions, start: Reconstruction | setup.NetworkMethod, saved: SavedNetwork | None
) -> JointMethod:
    """--method joint, begun with the frames of `start`. saved: its network; None: it is a formula."""
    if saved:
        refuse_other_frames(saved)
    return JointMethod(joint, start)


def method_section(args: Namespace) -> dict[str, object]:
    """The section `method` of the command line. Its overrides are taken from the arguments."""
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
    args.overrides = tuple(override for override in args.overrides if override not in mine)
    return table["method"]


def refuse_other_frames(saved: SavedNetwork) -> None:
    """Refuse weights whose frames are not sharp ones of the blurry frames, one for each."""
    spec = saved.spec
    faults = {
        "take no spikes": not spec.spike_channels,
        "enlarge the frames": spec.scale != 1,
        "make frames between the frames": spec.interpolates,
        "restore several instants of each exposure": spec.out_instants != 1,
        "restore grey frames": spec.image_channels != 3,
    }
    found = [fault for fault, is_there in faults.items() if is_there]
    if found:
        raise OptionError(
            what=f"--method joint with weights that {', and '.join(found)}",
            where=str(saved.path),
            expected="weights that restore each blurry frame from RGB and spikes, in its size",
            do="give other weights, such as weights/operator.pth, or leave out --weights",
        )


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
