"""Restore clips with a trained network, and score them if there are sharp frames to compare with.

    python main_test_vrt.py --opt FILE [--weights FILE] [section.key=value ...]
    python main_test_vrt.py --weights FILE --input FOLDER|VIDEO --output DIR \\
        [--spike FOLDER|FILE --spike-size H W] [--gt FOLDER|VIDEO] [spike.key=value ...]
    python main_test_vrt.py --method tfp|tfi|tfstp|exposure --opt FILE [method.key=value ...]
    python main_test_vrt.py --method NAME --spike PATH [--input PATH] --output DIR \\
        [--gt PATH] [method.key=value ...]
    python main_test_vrt.py --method joint [--weights FILE] --input PATH --spike PATH \\
        --output DIR [--gt PATH]

Examples:
    python main_test_vrt.py --opt options/vrt/000_train_vrt_sample_rgbspike.json --save comparison
    python main_test_vrt.py --weights models/500_G.pth --input blur.mp4 --spike clip.dat \\
        --output restored

The first form tests on `datasets.test`. The second form restores your own frames or video. With
--method, a reconstruction from the spikes takes the place of the network. `joint` begins with the
formula `exposure`, or with the output of a network if --weights is given. launch_test.sh starts
several processes. See docs/testing.md.
"""

import logging
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from data.alignment_check import warning_of
from data.cameras.spike_source import SPIKE_SOURCES
from data.clips.clip_reader import section_and_info, user_clips
from data.motion.finder import finder_of
from data.motion.joint.equations import Solver
from data.motion.joint_method import JointMethod, JointOptions, joint_options
from data.motion.learned_method import LearnedMotion, LearnedParts
from data.network_fit import check_clips
from data.reconstruct import (
    SET_BY_METHOD,
    Reconstruction,
    method_options,
    refuse_channels,
    section_for,
    spike_clip,
    spike_section,
)
from data.select_dataset import DATASETS, build_dataset
from models.fusion.fusion_motion import motion_of
from models.losses import LOSSES
from models.metrics import check_metrics
from models.portable import read_saved
from models.restore.job import Job
from models.restore.network_method import (
    find_weights,
    network_for_own_clips,
    network_for_test_set,
)
from models.restore.outputs import Outputs
from models.restore.own_spikes import changed_spikes, spikes_for_network
from models.restore.report import write_report
from models.restore.request import TestRequest, read_request
from models.restore.run_job import restore_clips
from models.restore.tiles.gaps import InterpolatedClip, scored_clips
from models.saved_network import SavedNetwork
from models.select_network import NETWORKS, check_options
from utils import utils_dist
from utils.contract import ClipReader, Method, picture_names
from utils.dist import process
from utils.dist.gpu import choose_gpus
from utils.errors import OptionError, SpikeVRTError
from utils.files import refuse_overlap
from utils.options.load import load_options
from utils.options.models import LoaderOptions, MetricOptions, Options

logger = logging.getLogger(__name__)

# Section of the option file -> the registry of the parts that it may name.
PARTS = {"netG": NETWORKS, "datasets": DATASETS, "train": LOSSES}


@dataclass(frozen=True)
class MethodRequest:
    """What --method asks for, in one of four cases:

    no --method               formula None, joint None: the frames of a network
    --method tfp              formula set, joint None: the frames of the formula
    --method joint            both set: the joint solution, begun with the formula `exposure`
    ... with --weights FILE   formula None, joint set: the same, begun with a network
    """

    # The formula of the frames or first estimates. None if a network makes them.
    formula: Reconstruction | None
    # The options of the joint solution. None if nothing improves the frames.
    joint: JointOptions | None


# The program in its order:
#
#     read_request        the command line, as a `TestRequest`
#     read_method         what --method asks for, as a `MethodRequest`
#     read_options        the option file, if there is one
#     job_on_test_set     a `Job`: method, clips and outputs, for the clips of datasets.test
#     job_on_own_clips    the same for a user's own clips
#     restore_clips       restores and scores the clips of the job (models/restore/run_job.py)
#     write_report        the tables and the page of results
#
# A *formula* is a reconstruction without a network (data/reconstruct.py), e.g. tfp or exposure.
#
# What must stay: the restored frames and the scores
# (test_the_numbers_equal_the_numbers_of_a_restoration_by_hand), and the keys of scores
# (`keys_of_scores`), by which a continued test knows its own results
# (test_results_of_other_settings_are_not_taken_over). A refusal comes before the first frame is
# restored (test_bad_input_ends_with_one_message).
# Free to change: titles and notes of the report. A new method is a new branch in `read_method`.
# Tests: tests/stories/test_main_test.py, test_reconstruct.py, test_joint.py, test_bad_input.py


def main(argv: list[str]) -> int:
    """Restore and score what the command line asks for.

    Every rank (process of the test) runs this function. If one rank has an error within
    `all_ranks_or_none`, all ranks end, with one message. So every rank must enter these blocks, and
    a new refusal belongs inside a block, before the first frame is restored.

    Returns the exit code: 0 done, 2 options or launch, 3 data or weights, 70 stall, 1 anything
    else.

    argv: the arguments without the name of the program.
    """
    with utils_dist.ranks():
        # Read the command line and the option file, before the ranks know of each other.
        with utils_dist.all_ranks_or_none():
            request = read_request(argv, __doc__)
            method_request = read_method(request)
            opt = read_options(request)
        # Join the ranks. The digest is a checksum of all options: if it differs between two ranks,
        # the test ends. `checks_folder` has what earlier runs found in the data. Without an option
        # file there is no digest and no folder, and the time limits are the defaults.
        if opt is None:
            utils_dist.begin()
        else:
            utils_dist.begin(opt.watchdog, opt.dist_timeout_s, opt.digest(), opt.checks_folder)
        # Read weights and clips. Then restore the clips: each rank takes a part of them.
        with utils_dist.all_ranks_or_none():
            if opt is None or request.is_of_own_clips:
                job = job_on_own_clips(request, method_request, opt)
            else:
                job = job_on_test_set(request, method_request, opt)
        restore_clips(job)
        if utils_dist.is_main_process():
            write_report(job)
    return 0


def read_method(request: TestRequest) -> MethodRequest:
    """Return what --method asks for, with its options checked. Raises OptionError."""
    if request.method is None:
        return MethodRequest(formula=None, joint=None)
    # A formula: tfp, tfi, tfstp or exposure. The first three make grey frames.
    center_frame_only = request.tiles.center_frame_only
    if not request.is_joint:
        formula = Reconstruction(method_options(request.method), center_frame_only)
        if formula.is_grey and request.lpips:
            refuse_lpips_of_grey(request)
        return MethodRequest(formula, joint=None)
    # The joint solution, begun with a network if there are --weights, else with a formula.
    joint = joint_options(request.method)
    if request.needs_weights:
        return MethodRequest(formula=None, joint=joint)
    start = Reconstruction(method_options({"type": "exposure"}), center_frame_only)
    return MethodRequest(start, joint)


def read_options(request: TestRequest) -> Options | None:
    """Read the option file, and check it against the registered parts.

    Returns None without --opt.
    """
    if request.opt is None:
        return None
    checks = [
        lambda opt: check_options(opt.netG, opt.datasets, opt.val, opt.scale),
        lambda opt: check_metrics(opt.metric),
    ]
    # With --input, the overrides are spike.key=value. They change how the user's spikes are read,
    # not the option file, so `changed_spikes` takes them.
    overrides = () if request.is_of_own_clips else request.overrides
    opt = load_options(request.opt, overrides, parts=PARTS, check=checks)
    choose_gpus(opt.gpu_ids, opt.opt_path)
    return opt


# ---- The clips of datasets.test --------------------------------------------------------------


class MethodOfTestSet(NamedTuple):
    """What restores the clips of datasets.test, and how the clips are read."""

    method: Method
    # The network with its weights. None if a formula makes the frames.
    saved: SavedNetwork | None
    # The section datasets.test. In the option file, the keys that say how spikes become a picture
    # (SET_BY_METHOD) are meant for a network. So a formula replaces their values by its own.
    section: LoaderOptions


def method_of_test_set(
    request: TestRequest, method_request: MethodRequest, opt: Options
) -> MethodOfTestSet:
    """Return the method for the clips of datasets.test. Reads the weights of a network."""
    section = section_of_test_set(opt)
    # `start` makes the frames. With --method joint, they are the first estimates of the solution.
    start: Method
    if method_request.formula is not None:
        saved = None
        section = section_for(method_request.formula, section, opt.opt_path, opt.scale)
        start = method_request.formula
    else:
        weights_file = find_weights(opt.path, opt.folder, request.weights)
        saved = read_saved(weights_file, opt.portable())
        start = network_for_test_set(saved, request, opt.val, section)
    method = with_improvement(start, method_request.joint, saved)
    if method is not start:  # what improves the frames reads spike files
        refuse_channels(section, opt.opt_path)
    return MethodOfTestSet(method, saved, section)


def job_on_test_set(request: TestRequest, method_request: MethodRequest, opt: Options) -> Job:
    """Return the job to restore the clips of datasets.test by a network or a formula.

    A network cuts the clips into tiles as the options `val` say. Reads weights and clips, and
    writes nothing.

    request: the command line. method_request: what its --method asks for. opt: the option file.
    """
    method, saved, section = method_of_test_set(request, method_request, opt)

    # The clips. Refuse clips that do not fit the network, e.g. clips with one sharp frame for each
    # blurry frame, if the network restores three. A formula takes any clips (None).
    dataset: Any = build_dataset(section, "test", opt.train.manual_seed)
    instants = method.instants if saved is not None else None
    check_clips(dataset, "test", opt.scale, instants)
    clips = dataset.readers()
    if saved is not None:
        # A network that interpolates gets every second frame of a clip, and is scored on frames
        # between them. For other networks the clips stay as they are.
        clips = scored_clips(clips, saved.spec)

    folder = output_folder(request, method_request, opt)
    refuse_output_among_data(folder, dataset)
    forms = forms_of_test_set(request, opt)
    # The title of the report: "Test of TASK", or "Test of tfp on the test set of TASK".
    title = f"Test of {request.method_name or opt.task}"
    if method_request.formula is not None:
        title += f" on the test set of {opt.task}"
    return Job(
        method=method,
        clips=clips,
        outputs=outputs_of(request, folder, forms, method, opt.metric),
        lpips=request.lpips,
        overwrite=request.overwrite,
        title=title,
        expected=count_of_expected_clips(dataset, clips),
        # If one of these values changes, results in the folder are refused, not continued
        # (test_results_of_other_settings_are_not_taken_over).
        reading_options={
            "datasets.test": keys_of_scores(section),
            "train.manual_seed": opt.train.manual_seed,
        },
        frames_note=frames_of_test_set(section, saved),
    )


def refuse_output_among_data(folder: Path, dataset: Any) -> None:
    """Raise OptionError if the output folder is, contains or lies in a folder of the test set."""
    # A dataset class of a user's own may lack `sources`. Then nothing is checked.
    for source in getattr(dataset, "sources", ()):
        refuse_overlap(folder, source.roots())


def count_of_expected_clips(dataset: Any, clips: Sequence[ClipReader]) -> int:
    """Return the number of clips in the data folder, of which `clips` may be a part.

    datasets.test.meta_info_file may list only some clips of the folder. All are counted, so that
    the report says that its averages leave clips out
    (test_a_meta_file_that_leaves_clips_out_makes_the_average_incomplete).
    """
    if not hasattr(dataset, "count_folders"):  # a dataset class of a user's own
        return len(clips)
    return max(len(clips), dataset.count_folders())  # count_folders() is 0 if it cannot count


def forms_of_test_set(request: TestRequest, opt: Options) -> Sequence[str]:
    """Return the forms in which the results are saved, e.g. ("frames", "video").

    --save names the forms. Without --save, the option val.save_img says whether frames are saved.
    """
    if request.save:
        return request.save
    if opt.val.save_img:
        return ("frames",)
    return ()


def section_of_test_set(opt: Options) -> LoaderOptions:
    """Return datasets.test, to be read without a cache. Raises OptionError if it is missing."""
    section = opt.datasets.test
    if section is None:
        raise OptionError(
            what="datasets.test is missing",
            where=opt.opt_path,
            expected="the clips to test on",
            do="add the section",
        )
    # A cache would keep all frames of all clips in memory. It would save no time, because each
    # frame is read once or twice.
    if hasattr(section, "cache_data"):
        section = section.model_copy(update={"cache_data": False})
    return section


def output_folder(request: TestRequest, method_request: MethodRequest, opt: Options) -> Path:
    """Return --output, or the default: a folder in the folder of the run."""
    if request.output:
        return Path(request.output)
    # A formula has a folder of its own, so that it does not replace the results of the network.
    if method_request.formula is not None:
        return opt.folder / f"test_{request.method_name}"
    return opt.folder / "test"


def keys_of_scores(section: LoaderOptions) -> dict[str, Any]:
    """Return the options of datasets.test on which the scores depend.

    Results with other values are not continued in the same folder. How the clips are loaded does
    not change a score, so these keys are left out, e.g. dataloader_num_workers.
    """
    values = {}
    for key, value in section.plain().items():
        if not key.startswith(("dataloader_", "cache_data")):
            values[key] = value
    return values


def frames_of_test_set(section: LoaderOptions, saved: SavedNetwork | None) -> str:
    """Return which frames of a clip are restored, in words for the report, e.g. "all"."""
    # num_frame: -1 is all frames. A data set that a user has registered may lack the key.
    num_frame = getattr(section, "num_frame", -1)
    frames = f"the first {num_frame} of each clip" if num_frame > 0 else "all"
    # The report scores the input beside the result. An interpolated frame has no blurry frame of
    # its own, so the mean of the two frames around it is scored as its input.
    if saved is not None and saved.spec.interpolates:
        return f"made between every second of {frames}; input: mean of both neighbours"
    return frames


# ---- A user's own clips ----------------------------------------------------------------------


def job_on_own_clips(
    request: TestRequest, method_request: MethodRequest, opt: Options | None
) -> Job:
    """Return the job to restore a user's own clips, or spikes by a formula.

    Reads weights and clips, and writes nothing.

    request: the command line. method_request: what its --method asks for.
    opt: the option file, which describes the network. None without --opt: then the weights file
    describes its network.
    """
    # `read_request` has refused a command line without --output. This assertion, and the others
    # below, tell the type checker what `read_request` has refused.
    assert request.output is not None
    with naming_spike_size_flag():  # errors in the block name the flag --spike-size
        own_method = method_of_own_clips(request, method_request, opt)
        clips, frames_note = own_clips(request, method_request, own_method)

    # The title of the report: the folder of several clips, or the name of the only clip.
    if request.input is not None and len(clips) > 1:
        title = Path(request.input).name
    else:
        title = clips[0].name
    metric = opt.metric if opt is not None else MetricOptions()
    forms = forms_of_own_clips(request, clips, own_method.method)
    return Job(
        method=own_method.method,
        clips=clips,
        outputs=outputs_of(request, Path(request.output), forms, own_method.method, metric),
        lpips=request.lpips,
        overwrite=request.overwrite,
        title=title,
        expected=len(clips),
        reading_options={"spike": own_method.spike},
        frames_note=frames_note,
    )


class MethodOfOwnClips(NamedTuple):
    """What restores a user's own clips, and how their spikes are read."""

    method: Method
    # The network with its weights. None if a formula makes the frames.
    saved: SavedNetwork | None
    # The spike section as plain values, for the reader and the report. None without spikes.
    spike: dict[str, Any] | None
    # The same section as an object with typed fields. Only a formula needs it (`own_clips`), so it
    # is None for a network.
    typed_spike: Any


def method_of_own_clips(
    request: TestRequest, method_request: MethodRequest, opt: Options | None
) -> MethodOfOwnClips:
    """Return the method for a user's own clips. Reads the weights of a network."""
    # `start` makes the frames, or the first estimates of the joint solution.
    start: Method
    if method_request.formula is not None:
        saved = None
        start = method_request.formula
        typed_spike = spikes_for_formula(request, method_request.formula)
        spike = typed_spike.plain()
    else:
        network = opt.portable() if opt is not None else None
        assert request.weights is not None
        saved = read_saved(request.weights, network)
        typed_spike = None
        spike = spikes_for_network(saved, request)
        start = network_for_own_clips(saved, request)
    method = with_improvement(start, method_request.joint, saved)
    return MethodOfOwnClips(method, saved, spike, typed_spike)


class OwnClips(NamedTuple):
    """A user's own clips."""

    clips: Sequence[ClipReader]
    frames_note: str  # which of their frames are restored, in words for the report


def own_clips(
    request: TestRequest, method_request: MethodRequest, own_method: MethodOfOwnClips
) -> OwnClips:
    """Return the clips: blurry frames, or spikes alone for a formula that makes grey frames.

    Raises OptionError if the method needs blurry frames and there is no --input.
    """
    if request.input is not None:
        clips = clips_with_frames(request.input, request, own_method.spike, own_method.saved)
        return OwnClips(clips, frames_note="all")
    if method_request.formula is not None and method_request.formula.is_grey:
        assert request.spike is not None
        # One frame is restored for each exposure that the option spike.exposure names. Without this
        # option, one frame is restored for each spike file.
        source = "exposure" if own_method.typed_spike.exposure else "spike file"
        return OwnClips(
            clips=[spike_clip(request.spike, request.gt, own_method.typed_spike)],
            frames_note=f"one for each {source}; the input beside it is the mean of all planes of "
            f"the {source}",
        )
    raise OptionError(
        what=f"--method {request.method_name} needs the blurry frames",
        where="--input",
        expected="the frames of the exposures",
        do="add --input PATH, or use another method",
    )


def forms_of_own_clips(
    request: TestRequest, clips: Sequence[ClipReader], method: Method
) -> Sequence[str]:
    """Return the forms in which the results are saved, e.g. ("video", "comparison").

    They are as --save says. Without --save they follow from the input: a film gives a film, and a
    folder of frames gives frames.
    """
    if request.save:
        return request.save
    kind = "video" if clips[0].fps is not None else "frames"
    if method.instants > 1:
        return (kind, "comparison", "slowmotion")
    return (kind, "comparison")


def spikes_for_formula(request: TestRequest, formula: Reconstruction) -> Any:
    """Return the spike section of a user's spikes, as a formula reads them.

    The user cannot change the keys in SET_BY_METHOD, because the formula needs them as they are.
    """
    # The defaults of spike files of the type "dat", with the changes of the command line.
    changed = changed_spikes({"type": "dat"}, request, SET_BY_METHOD)
    section = SPIKE_SOURCES.resolve(changed, "spike")
    assert request.spike is not None
    _, info = section_and_info(section, Path(request.spike))  # what the nearest dataset.json says
    return spike_section(section, formula, info.rate)


def clips_with_frames(
    path: str, request: TestRequest, spike: dict[str, Any] | None, saved: SavedNetwork | None
) -> Sequence[ClipReader]:
    """Return the clips of --input. Rank 0 warns if spikes and frames do not show the same.

    path: --input.
    spike: the spike section, or None if no spikes are read.
    saved: the network, or None for a formula.
    """
    if saved is not None:
        scale = saved.scale
        training_spikes = saved.spike_data  # what the weights say of the spikes of their training
    else:
        scale = 1
        training_spikes = None
    clips = user_clips(path, request.spike, request.gt, spike, scale, training_spikes)
    # Whether spikes and frames show the same place and time is measured once, not by each rank.
    warning = warning_of(clips) if utils_dist.is_main_process() else None
    if warning:
        logger.warning("%s", warning)
    # A network that makes frames between the frames has another number of frames to restore.
    if saved is not None and saved.spec.interpolates:
        return [InterpolatedClip(clip) for clip in clips]
    return clips


@contextmanager
def naming_spike_size_flag() -> Generator[None]:
    """Let an error about the unknown size of a spike plane name the flag, not the option.

    The functions that read spikes know only the keys spike.h and spike.w. But a user who gave
    --spike types --spike-size.
    """
    try:
        yield
    except SpikeVRTError as e:
        # These two texts are written where the size is missing, in data/spike and data/cameras.
        if e.where.startswith("spike.h") or "spike height and width" in e.do:
            shows = "scripts/spike_tool.py info FILE --picture FRAME shows which sizes fit"
            e.do = f"give --spike-size H W; {shows}"
        raise


# ---- For a test set and for a user's own clips -----------------------------------------------


def with_improvement(
    start: Method, joint: JointOptions | None, saved: SavedNetwork | None
) -> Method:
    """Return `start`, or a method that improves the frames of `start`.

    Two things can improve the frames, but never both: the joint solution if --method joint asks for
    it, else the learned steps if the network has the fusion "motion".

    joint: the options of the joint solution, or None without --method joint.
    saved: the network of `start`. None if `start` is a formula.
    """
    if joint is None:
        if saved is None:
            return start
        return with_motion(start, saved)
    if saved is not None:
        refuse_other_frames(saved)
    return JointMethod(joint, start)


def with_motion(start: Method, saved: SavedNetwork) -> Method:
    """Return the method of a network, with the learned steps if its fusion is "motion"."""
    # On the device "meta" tensors have shapes and no memory. The shapes are enough to see which
    # fusion the network has.
    with torch.device("meta"):
        fusion = motion_of(saved.network())
    if fusion is None:
        return start

    def parts(device: torch.device) -> LearnedParts:
        """Return the learned parts of the fusion on a device. Reads the weights anew."""
        net = motion_of(saved.build())
        assert net is not None  # the network on "meta" had the fusion, too
        net = net.to(device).eval()
        # `find` is a function that estimates the motion within an exposure.
        find = finder_of(net.motion_by, net.motion_net, device)
        # Some weights have further steps for dim light, where spikes are few. Other weights use the
        # same steps in any light.
        few_steps = net.few_steps if net.few_steps else net.steps
        return LearnedParts(net.steps, few_steps, find)

    solver = Solver(
        groups=fusion.groups, linearisations=fusion.linearisations, steps=fusion.proposal_steps
    )
    return LearnedMotion(start, parts, solver, fusion.motion_by)


def outputs_of(
    request: TestRequest,
    folder: Path,
    forms: Sequence[str],
    method: Method,
    metric: MetricOptions,
) -> Outputs:
    """Return what is written to `folder`. forms: names such as "frames", "video", in any order."""
    return Outputs(
        folder,
        save=tuple(sorted(forms)),  # sorted, because a continued test compares them
        fps=request.fps,
        instants=method.instants,
        metric=metric,
        pictures=picture_names(method),
    )


def refuse_other_frames(saved: SavedNetwork) -> None:
    """Raise OptionError for weights with which the joint solution cannot begin.

    It needs one sharp frame in colour for each blurry frame, in the size of the blurry frame.
    """
    spec = saved.spec
    # Words for the message -> whether they are true of these weights.
    is_true_of_weights = {
        "take no spikes": not spec.spike_channels,
        "enlarge the frames": spec.scale != 1,
        "make frames between the frames": spec.interpolates,
        "restore several instants of each exposure": spec.out_instants != 1,
        "restore grey frames": spec.image_channels != 3,
    }
    faults = [words for words, is_true in is_true_of_weights.items() if is_true]
    if faults:
        raise OptionError(
            what=f"--method joint with weights that {', and '.join(faults)}",
            where=str(saved.path),
            expected="weights that restore each blurry frame from RGB and spikes, in its size",
            do="give other weights, such as weights/operator.pth, or leave out --weights",
        )


def refuse_lpips_of_grey(request: TestRequest) -> None:
    """Raise OptionError: LPIPS compares frames in colour, and this formula makes grey frames."""
    raise OptionError(
        what=f"--lpips with --method {request.method_name}, whose frames are grey",
        where="--lpips",
        expected="frames in colour: LPIPS has no luma form",
        do="remove it, or use --method exposure",
    )


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
