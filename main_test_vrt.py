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

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.chosen_method import ChosenMethod, choose_method
from data.formula_spikes import SET_BY_METHOD, refuse_channels, section_for
from data.motion.joint_method import JointMethod
from data.motion.joint_options import JointOptions
from data.motion.learned_method import learned_motion
from data.network_fit import check_clips
from data.own_clips import (
    clip_of_spikes,
    clips_with_frames,
    naming_spike_size_flag,
    spikes_for_formula,
)
from data.reconstruct import Reconstruction
from data.scored_set import (
    count_of_expected_clips,
    frames_of_test_set,
    keys_of_scores,
    refuse_output_among_data,
    section_of_test_set,
)
from data.select_dataset import DATASETS, build_dataset
from models.fusion.fusion_motion import motion_of
from models.losses import LOSSES
from models.metrics import check_metrics
from models.portable import read_saved
from models.restore.find_weights import find_weights
from models.restore.job import Job
from models.restore.network_method import (
    network_for_own_clips,
    network_for_test_set,
    refuse_other_frames,
)
from models.restore.outputs import Outputs
from models.restore.own_spikes import changed_spikes, spikes_for_network
from models.restore.report import write_report
from models.restore.request import (
    NetworkFlags,
    OwnFiles,
    TestRequest,
    read_request,
)
from models.restore.run_job import restore_clips
from models.restore.tiles.gaps import InterpolatedClip, scored_clips
from models.saved_network import SavedNetwork
from models.select_network import NETWORKS, check_options
from utils import utils_dist
from utils.contract import ClipReader, Method, picture_names
from utils.dist import process
from utils.dist.gpu import choose_gpus
from utils.errors import OptionError
from utils.options.load import load_options
from utils.options.loader_options import LoaderOptions
from utils.options.models import Options
from utils.options.val_options import MetricOptions

# Section of the option file -> the registry of the classes that the section may name. E.g. the
# section netG names the network by netG.net_type "vrt".
PARTS = {"netG": NETWORKS, "datasets": DATASETS, "train": LOSSES}


# Words of this file:
#
#     method    what restores the frames of a clip: an object that fulfils `Method`
#               (utils/contract.py). There are four kinds:
#
#                   network           restores frames with trained weights
#                   formula           computes frames from the spikes, without weights, e.g. tfp
#                   joint solution    improves the frames of a network or formula: solves equations
#                                     of the blurry frame and its spikes
#                   learned steps     improve the frames of a network by further weights of the same
#                                     weights file (its netG.fusion is "motion")
#
#     reader    an object that reads one clip, frame by frame: a `ClipReader` (utils/contract.py)
#     Job       a record of what one command does: the method, the readers of the clips, the folder
#               of the results, and which results are saved (models/restore/job.py)
#
# How one command passes through the program, if the film clip.mp4 has 14 frames:
#
#     python main_test_vrt.py --input clip.mp4 --spike clip.dat --spike-size 250 400 \
#         --output out spike.calibration=auto
#
# 1. `read_request` (models/restore/request.py) reads the flags into named fields. Without --weights
#    it takes weights/motion.pth:
#
#     TestRequest(own_files=OwnFiles(input="clip.mp4", spike="clip.dat", spike_size=(250, 400),
#                                    overrides=("spike.calibration=auto",), ...),
#                 network=NetworkFlags(weights=".../weights/motion.pth", ...),
#                 results=ResultFlags(output="out", save=(), fps=25.0, ...), ...)
#
# 2. There is no --method and no --opt, so `choose_method` and `read_options` choose nothing. The
#    clips are restored by the network of the weights file.
#
# 3. `job_on_own_clips` reads the weights, opens the clips, and returns the `Job`. It calls
#
#     read_saved              reads motion.pth, and returns a `SavedNetwork`: weights and options
#     spikes_for_network      returns the section `spike` with which the network was trained, with
#                             the values of the command line in place:
#                             {"type": "dat", "h": 250, "w": 400, "calibration": "auto", ...}
#     network_for_own_clips   returns a `NetworkMethod`, which restores a clip in tiles
#     with_improvement        returns the method, a `LearnedMotion`. It takes the frames of the
#                             `NetworkMethod`, and improves them by the learned steps of motion.pth
#     clips_with_frames       opens clip.mp4 and clip.dat, and returns one reader. `frame(0)` of the
#                             reader returns the first frame and its spikes. With calibration
#                             "auto", clips_with_frames also finds where the spike pixels lie on the
#                             frames
#
# 4. `restore_clips` (models/restore/run_job.py) restores the 14 frames by the method. It calls
#
#     LearnedMotion.restorer    makes a `MotionRestorer` (data/motion/restorer.py)
#       NetworkMethod.restorer  makes the `start` of the MotionRestorer: a `Restorer`
#                               (models/restore/tiles/restorer.py)
#     MotionRestorer.frames     yields the frames. For each frame it finds the motion and sets up
#                               the equations of both cameras
#       Restorer.frames         yields the first estimates z_0, by the network in tiles
#       after_steps             takes the learned steps (data/motion/learned_method.py)
#
# It writes
#
#     out/run.json                      before the first frame: settings, and names of the results
#     out/.work/clip/000000.png ...     each frame, as soon as it is restored. These files are
#                                       removed at the end, because the result of a film is a film
#     out/clip.mp4, out/clip_comparison.mp4, out/strips/clip/*.png, out/clips/clip.png
#                                       after the last frame
#     out/clips/clip.json               last of all: the scores. A clip with this file is finished,
#                                       and a repeated command does not restore it again
#
# 5. `write_report` (models/restore/report.py) writes the results of all clips: out/metrics.json,
#    out/table.txt and out/report.html.
#
# Other commands differ as follows. If --input is a folder of images, e.g. street, the frames are
# saved as images: out/street/000000.png. With --method, a formula or the joint solution is the
# method of the job. With --opt and without --input, `job_on_test_set` makes the job.
#
# What must stay, and which test notices:
#
#     the restored frames and the scores
#         test_the_numbers_equal_the_numbers_of_a_restoration_by_hand
#     the keys of `Job.reading_options`, because a repeated command continues an earlier restoration
#     only with the same settings
#         test_results_of_other_settings_are_not_taken_over
#     every refusal comes before the first frame is restored
#         test_bad_input_ends_with_one_message
#
# Free to change: titles and notes of the report. A new method is a new branch in `choose_method`.
# Tests: tests/stories/test_main_test.py, test_reconstruct.py, test_joint.py, test_bad_input.py


def main(argv: list[str]) -> int:
    """Restore and score what the command line asks for.

    Every rank (process of the restoration) runs this function. If one rank has an error within
    `all_ranks_or_none`, all ranks end, with one message. So every rank must enter these blocks, and
    a new refusal belongs inside a block, before the first frame is restored.

    Returns the exit code:

        0     done
        1     any other error
        2     wrong options or launch
        3     bad data or weights
        70    a rank got stuck

    argv: the arguments without the name of the program.
    """
    with utils_dist.ranks():  # from here an error on one rank ends all ranks
        # Read the command line and the option file, before the ranks know of each other.
        with utils_dist.all_ranks_or_none():
            request = read_request(argv, __doc__)
            # `chosen` is what --method asks for: a formula, the options of the joint solution, or
            # both. Without --method, the formula and the options are None.
            chosen = choose_method(
                request.formula,
                request.joint,
                center_frame_only=request.network.tiles.center_frame_only,
                has_lpips=bool(request.results.lpips),
            )
            opt = read_options(request.opt, request.overrides)
        # Join the ranks. The program ends if the digest, a checksum of all options, differs between
        # two ranks. `budgets` are the time limits of a rank. `checks_folder` holds the data checks
        # of earlier runs.
        if opt is None:
            # Without an option file there is no digest and no checks_folder, and the time limits
            # have their defaults.
            utils_dist.begin()
        else:
            utils_dist.begin(
                budgets=opt.watchdog,
                timeout_s=opt.dist_timeout_s,
                digest=opt.digest(),
                checks_folder=opt.checks_folder,
            )
        # Read weights and clips. Then restore the clips. Each rank takes a part of the clips.
        with utils_dist.all_ranks_or_none():
            if request.own_files is not None:
                job = job_on_own_clips(request.own_files, request, chosen, opt)
            else:
                assert opt is not None  # `read_request` has refused a command line without clips
                job = job_on_test_set(opt, request, chosen)
        restore_clips(job)
        if utils_dist.is_main_process():
            write_report(job)
    return 0


def read_options(path: str | None, overrides: Sequence[str]) -> Options | None:
    """Read the option file, check it, and choose the GPUs that it names.

    Returns None without --opt.

    path: the option file, the value of --opt.
    overrides: changes "section.key=value" of the file.
    """
    if path is None:
        return None
    # `load_options` calls the check with the typed options, and adds file and line to its error.
    opt = load_options(path, overrides, parts=PARTS, check=[check_network_and_metrics])
    choose_gpus(opt.gpu_ids, opt.opt_path)
    return opt


def check_network_and_metrics(opt: Options) -> None:
    """Raise OptionError if the network does not fit the data or tiles, or a metric is unknown."""
    check_options(opt.netG, opt.datasets, opt.val, opt.scale)
    check_metrics(opt.metric)


# ---- A user's own clips ----------------------------------------------------------------------


class OwnRestoration(NamedTuple):
    """A user's own clips, and what restores them. `job_on_own_clips` makes a `Job` of it."""

    method: Method
    clips: Sequence[ClipReader]
    frames_note: str  # which frames of the clips are restored, in words for the report
    # The section `spike`, by which the spikes are read, as a dict. None without spikes.
    spike_options: dict[str, Any] | None


def job_on_own_clips(
    files: OwnFiles, request: TestRequest, chosen: ChosenMethod, opt: Options | None
) -> Job:
    """Return the job to restore a user's own clips, or spikes by a formula. Writes nothing.

    files: the user's files, `request.own_files`.
    request: the command line.
    chosen: what --method asks for: the formula (it computes frames from the spikes, e.g. tfp) and
        the options of the joint solution (it solves equations of the blurry frame and its spikes).
        Each is None if --method does not ask for it.
    opt: the option file, which describes the network. None without --opt, because then the weights
        file describes its network.
    """
    with naming_spike_size_flag():  # errors in the block name the flag --spike-size
        if chosen.formula is None:
            own = own_clips_by_network(chosen.joint, files, request.network, opt)
        else:
            own = own_clips_by_formula(chosen.formula, chosen.joint, files, request.method_name)

    # The title of the report: the name of the folder --input if it holds several clips, else the
    # name of the clip.
    clips = own.clips
    title = clips[0].name
    if files.input is not None and len(clips) > 1:
        title = Path(files.input).name
    results = request.results
    save_forms: Sequence[str] = results.save  # () without --save
    if not save_forms:
        save_forms = forms_like_input(clips, own.method)
    metric = opt.metric if opt is not None else MetricOptions()
    assert results.output is not None  # `read_request` has refused clips without --output
    return Job(
        method=own.method,
        clips=clips,
        outputs=outputs_of(Path(results.output), save_forms, results.fps, own.method, metric),
        lpips=results.lpips,  # files of the weights of LPIPS. () leaves LPIPS out
        overwrite=results.overwrite,
        title=title,
        expected=len(clips),  # clips of a complete restoration
        # A repeated command continues the earlier restoration only if these options are the same.
        reading_options={"spike": own.spike_options},
        frames_note=own.frames_note,
    )


def own_clips_by_network(
    joint: JointOptions | None, files: OwnFiles, network: NetworkFlags, opt: Options | None
) -> OwnRestoration:
    """Return the clips of `files`, to be restored by a network. Reads its weights.

    joint: the options of the joint solution, which improves the frames of the network by equations
        of the blurry frame and its spikes. None without --method joint.
    files: the user's files.
    network: what the command line says of the network.
    opt: the option file. If it is None, the weights file describes its network.
    """
    # `read_request` has refused a network without weights and without frames.
    assert network.weights is not None
    assert files.input is not None
    # What the option file says of the network: a dict, e.g. with its section netG. If it is None,
    # `read_saved` takes the description that the weights file holds.
    description = opt.portable() if opt is not None else None
    saved = read_saved(network.weights, description)  # a `SavedNetwork`, not built yet
    # The section `spike` of the training, with the user's changes. None if no spikes are read.
    spike_options = spikes_for_network(saved, files, network)
    network_method = network_for_own_clips(saved, network)
    method = with_improvement(network_method, joint, saved)
    opened = clips_with_frames(
        files.input,
        files.spike,
        files.gt,
        spike_options,
        scale=saved.scale,
        training_spikes=saved.spike_data,  # what the weights say of the spikes of their training
    )
    clips = opened.clips  # readers: `frame(0)` of a reader returns the tensors of the first frame
    # A network that interpolates makes a new frame between two neighbouring frames. E.g. an
    # `InterpolatedClip` of 3 frames is a clip of 5 frames, of which two are made by the network.
    if saved.spec.interpolates:
        clips = [InterpolatedClip(clip) for clip in clips]
    return OwnRestoration(method, clips, opened.frames_note, spike_options)


def own_clips_by_formula(
    formula: Reconstruction, joint: JointOptions | None, files: OwnFiles, method_name: str | None
) -> OwnRestoration:
    """Return the clips of `files`, to be restored by a formula, or by the joint solution.

    formula: computes the frames from the spikes, without weights, e.g. tfp.
    joint: the options of the joint solution, which improves these frames by equations of the blurry
        frame and its spikes. None without --method joint.
    files: the user's files.
    method_name: the name after --method, for errors.

    Raises OptionError if the method needs blurry frames and there is no --input.
    """
    assert files.spike is not None  # `read_request` has refused a formula without --spike
    # What the command line says of the spikes, e.g. {"type": "dat", "h": 250, "w": 400}. "dat"
    # stands for spike files that hold binary pictures (planes), packed or as arrays.
    asked = changed_spikes(
        {"type": "dat"}, files, keys_of_method=SET_BY_METHOD, method_name=method_name
    )
    # The checked section `spike`, with the values that the formula sets, e.g. its representation.
    section = spikes_for_formula(formula, files.spike, asked)
    spike_options = section.plain()  # a dict of all keys
    if files.input is not None:
        opened = clips_with_frames(files.input, files.spike, files.gt, spike_options)
    elif formula.is_grey:
        opened = clip_of_spikes(files.spike, files.gt, section)
    else:
        raise OptionError(
            what=f"--method {method_name} needs the blurry frames",
            where="--input",
            expected="the frames of the exposures",
            do="add --input PATH, or use another method",
        )
    # With `joint`, the frames of the formula are the first estimates of the joint solution.
    method = with_improvement(formula, joint, saved=None)
    return OwnRestoration(method, opened.clips, opened.frames_note, spike_options)


def forms_like_input(clips: Sequence[ClipReader], method: Method) -> Sequence[str]:
    """Return the forms in which the results are saved without --save, e.g. ("video", "comparison").

    The results of a video are a video, and the results of a folder of frames are frames. If the
    method makes sharp frames of several instants (moments) of each blurry frame, there is a
    slow-motion video, too.
    """
    kind = "video" if clips[0].fps is not None else "frames"
    if method.instants > 1:
        return (kind, "comparison", "slowmotion")
    return (kind, "comparison")


# ---- The clips of datasets.test --------------------------------------------------------------


class MethodOnTestSet(NamedTuple):
    """What restores the clips of datasets.test."""

    method: Method
    saved: SavedNetwork | None  # the network, or None for a formula
    # The section datasets.test. Some of its keys say how spikes become channels of a network, e.g.
    # spike.representation. If the method is a formula, these keys have the values of the formula.
    section: LoaderOptions


def job_on_test_set(opt: Options, request: TestRequest, chosen: ChosenMethod) -> Job:
    """Return the job to restore the clips of datasets.test. Writes nothing.

    opt: the option file.
    request: the command line.
    chosen: what --method asks for: the formula (it computes frames from the spikes, e.g. tfp) and
        the options of the joint solution (it solves equations of the blurry frame and its spikes).
        Each is None if --method does not ask for it.
    """
    results = request.results
    method, saved, section = method_on_test_set(opt, request.network, chosen)
    dataset: Any = build_dataset(section, "test", opt.train.manual_seed)
    clips = clips_of_test_set(dataset, opt.scale, method, saved)

    folder = folder_of_test(opt, request, chosen)
    refuse_output_among_data(folder, dataset)

    interpolates = saved is not None and saved.spec.interpolates
    # Without --save, val.save_img says whether frames are saved.
    save_forms = results.save
    if not save_forms and opt.val.save_img:
        save_forms = ("frames",)
    return Job(
        method=method,
        clips=clips,
        outputs=outputs_of(folder, save_forms, results.fps, method, opt.metric),
        lpips=results.lpips,  # files of the weights of LPIPS. () leaves LPIPS out
        overwrite=results.overwrite,
        title=title_of_test(opt, request, chosen),
        expected=count_of_expected_clips(dataset, clips),  # clips of a complete restoration
        # A repeated command continues the earlier restoration only if these options are the same.
        reading_options={
            "datasets.test": keys_of_scores(section),
            "train.manual_seed": opt.train.manual_seed,
        },
        frames_note=frames_of_test_set(section, interpolates),
    )


def method_on_test_set(
    opt: Options, network: NetworkFlags, chosen: ChosenMethod
) -> MethodOnTestSet:
    """Return the method that restores the clips of datasets.test. Reads the weights of a network.

    A network restores a clip in tiles. The option section `val` gives their size.

    opt: the option file.
    network: what the command line says of a network.
    chosen: the formula and the joint solution, each None if --method does not ask for it.
    """
    section = section_of_test_set(opt)
    first_method: Method
    if chosen.formula is not None:
        saved = None
        # The spikes are read as the formula needs them.
        section = section_for(chosen.formula, section, opt.opt_path, opt.scale)
        first_method = chosen.formula
    else:
        weights_file = find_weights(opt.path, opt.folder, network.weights)
        saved = read_saved(weights_file, opt.portable())
        first_method = network_for_test_set(saved, network, opt.val, section)
    # The joint solution solves equations of the blurry frame and its spikes. The learned steps
    # improve a frame by such equations and by further weights. The equations need the planes of the
    # spike files. So refuse a test set that gives only ready channels for a network.
    method = with_improvement(first_method, chosen.joint, saved)
    is_improved = method is not first_method
    if is_improved:
        refuse_channels(section, opt.opt_path)
    return MethodOnTestSet(method, saved, section)


def clips_of_test_set(
    dataset: Any, scale: int, method: Method, saved: SavedNetwork | None
) -> Sequence[ClipReader]:
    """Return the clips of a test set, in the form in which the method is scored on them.

    dataset: the test set.
    scale: scale of the network.
    method: what restores the clips.
    saved: the network, or None for a formula.

    Raises DataError if the clips do not fit the network. E.g. a network that restores three
    instants of each blurry frame needs three sharp frames for each blurry frame.
    """
    if saved is None:
        # A formula takes clips with any number of sharp instants.
        check_clips(dataset, "test", scale, instants=None)
        return dataset.readers()
    check_clips(dataset, "test", scale, method.instants)
    # A network that interpolates is scored on every second frame. Its input lacks these frames.
    return scored_clips(dataset.readers(), saved.spec)


def folder_of_test(opt: Options, request: TestRequest, chosen: ChosenMethod) -> Path:
    """Return the folder of the results: --output, or else a folder in the folder of the run.

    The folder of a formula is e.g. test_tfp. The results of the network are in the folder test. So
    a formula does not replace them.
    """
    if request.results.output:
        return Path(request.results.output)
    if chosen.formula is not None:
        return opt.folder / f"test_{request.method_name}"
    return opt.folder / "test"


def title_of_test(opt: Options, request: TestRequest, chosen: ChosenMethod) -> str:
    """Return the title of the report, e.g. "Test of tfp on the test set of 000_sample".

    If a network restores, the title is "Test of joint" with --method joint. Without --method, the
    title has the name of the run, e.g. "Test of 000_sample".
    """
    if chosen.formula is not None:
        return f"Test of {request.method_name} on the test set of {opt.task}"
    return f"Test of {request.method_name or opt.task}"


# ---- For a test set and for a user's own clips -----------------------------------------------


def outputs_of(
    folder: Path, forms: Sequence[str], fps: float, method: Method, metric: MetricOptions
) -> Outputs:
    """Return what is written to `folder`.

    forms: what is saved, e.g. "frames", "video", in any order.
    fps: frames per second of a video that is made from single frames.
    method: what restores the clips.
    metric: how the frames are scored.
    """
    return Outputs(
        folder,
        save=tuple(sorted(forms)),  # sorted, because a continued restoration compares them
        fps=fps,
        instants=method.instants,
        metric=metric,
        pictures=picture_names(method),
    )


def with_improvement(
    first_method: Method, joint: JointOptions | None, saved: SavedNetwork | None
) -> Method:
    """Return `first_method`, or a method that improves the frames of `first_method`.

    With --method joint, the result is the joint solution. Without --method joint, the result is the
    learned steps if the network has the fusion "motion" (its option netG.fusion). In all other
    cases, the result is the object `first_method` itself. `method_on_test_set` relies on the
    identity of this object.

    first_method: a formula or a network.
    joint: the options of the joint solution, or None without --method joint.
    saved: the network of `first_method`. None if `first_method` is a formula.
    """
    if joint is not None:
        if saved is not None:
            refuse_other_frames(saved)
        return JointMethod(joint, first_method)
    if saved is None:
        return first_method
    # The empty network has no weights in memory, but shows which fusion the network has.
    fusion = motion_of(saved.empty_network)
    if fusion is None:
        return first_method

    def fusion_with_weights() -> Any:
        """Return the fusion with its weights, on the CPU. Called when a device is known."""
        return motion_of(saved.build())

    return learned_motion(first_method, fusion, build=fusion_with_weights)


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
