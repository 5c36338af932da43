"""Restore clips by all methods at once, and score them.

A method is the operator (weights/operator.pth), the shipped weights (weights/motion.pth), or the
learned steps of a run. The learned steps are small passes that improve the frame of the operator.

What must stay: a frame is restored as main_test_vrt.py restores it
(test_a_method_scores_as_the_test_program_with_its_weights), and the control does not see the motion
(test_the_control_does_not_see_the_motion).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from data.clips.readers import DatasetClip
from data.motion.finder import Finder, finder_of
from data.motion.joint.equations import Solver
from data.motion.learned_method import FEW_SPIKES, LEAST_AREA
from data.motion.restorer import AreaInputs, MotionRestorer
from lab.motion_runs.runs import PLAIN, TrainedRun
from lab.motion_steps.hidden_equations import HiddenEquations
from lab.motion_steps.made_samples import readers_of_set
from lab.motion_steps.network import OPERATOR_WEIGHTS, SHIPPED_WEIGHTS, network_of
from lab.motion_steps.sample import CPU
from models.fusion.fusion_motion import MotionFusion
from models.metrics import psnr
from models.portable import read_saved
from models.saved_network import SavedNetwork
from utils.contract import Tick
from utils.image import tensor_to_uint8

# Names of methods. The learned steps of a run have the name of the run.
OPERATOR_METHOD = "operator"
SHIPPED_METHOD = "shipped"  # the shipped weights
# Name of a method -> clip -> PSNR in dB, e.g.
# {"operator": {"park_00": 23.0}, "plain_seed0_800": {"park_00": 23.3}}.
Scores = dict[str, dict[str, float]]


class FirstEstimates:
    """Restores the frames of a clip with the operator, for `MotionRestorer`."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def frames(self, reader: DatasetClip, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield the frames (3, H, W). `MotionRestorer.frames` explains the arguments."""
        for index in wanted:
            frame = reader.frame(index)
            # A batch of one clip of one frame: (C, H, W) -> (1, 1, C, H, W), and back.
            yield self.net(frame["lq"][None, None], frame["spike"][None, None])[0, 0]
            tick(1.0)  # one frame is done


class AllMethods:
    """Restores a frame by all methods at once. `MotionRestorer` calls it as `improve`.

    A method is the operator, the shipped weights, or the steps of a run. `names` has their order.
    """

    def __init__(self, shipped: MotionFusion, trained_runs: Sequence[TrainedRun]) -> None:
        # The learned steps have two parts: "good" for much light, and "few" for few spikes. Weights
        # without steps for few spikes use the same steps in all light.
        few_steps = shipped.steps if shipped.few_steps is None else shipped.few_steps
        self.shipped = {"good": shipped.steps, "few": few_steps}
        self.trained_runs = trained_runs
        # The order of the frames that `__call__` returns.
        self.names = [OPERATOR_METHOD, SHIPPED_METHOD]
        for trained_run in trained_runs:
            self.names.append(trained_run.run.name)
        # Number of frames so far that need a part which was not trained. E.g. dark frames need the
        # part "few", but --parts good trains only the part "good". `scores_of` leaves out the clip
        # of such a frame.
        self.frames_without_steps = 0

    def __call__(self, z_0: Tensor, inputs: AreaInputs) -> Tensor:
        """Return the frame as each method restores it, (methods, 3, H, W).

        Where nothing moves, `MotionRestorer` keeps the pixels of z_0 in each of these frames.

        z_0: the first estimate, which is the frame of the operator, (3, H, W).
        inputs: the spikes and the equations of the frame.
        """
        # The light of the frame decides which part of the steps restores it.
        part = "few" if inputs.median_spikes < FEW_SPIKES else "good"
        if any(part not in trained_run.steps for trained_run in self.trained_runs):
            self.frames_without_steps += 1

        equations = inputs.equations
        proposal = equations.proposal(z_0)  # a frame that solves the equations along the motion
        # The PLAIN runs, i.e. the control, get equations that hide the motion, and the proposal of
        # these equations. The proposal is z_0 itself.
        hidden_equations = HiddenEquations(equations)
        hidden_proposal = hidden_equations.proposal(z_0)

        # `all_steps` returns the frame after each learned step. The last one is the restored frame.
        frames_of_shipped = self.shipped[part].all_steps(z_0, proposal, equations)
        # The frames are in the order of self.names, because `clip_scores` finds the method of a
        # frame by its place.
        restored = [z_0, frames_of_shipped[-1]]
        for trained_run in self.trained_runs:
            steps = trained_run.steps.get(part)
            if steps is None:
                # The part was not trained, so `scores_of` leaves the clip out. z_0 only fills the
                # place of this run in the result.
                frames = [z_0]
            elif trained_run.run.kind == PLAIN:
                frames = steps.all_steps(z_0, hidden_proposal, hidden_equations)
            else:
                frames = steps.all_steps(z_0, proposal, equations)
            restored.append(frames[-1])
        return torch.stack(restored).clamp(0, 1)


def scores_of(folder: Path, trained_runs: Sequence[TrainedRun]) -> Scores:
    """Restore the clips of a folder by all methods. Returns method -> clip -> PSNR in dB.

    A clip is left out if it has a frame for which a run has no trained steps. E.g. a frame has few
    spikes, and only the part "good" was trained.
    """
    operator = read_saved(OPERATOR_WEIGHTS)
    shipped = network_of(SHIPPED_WEIGHTS)
    # All runs use the solver of the equations and the motion finder of the shipped weights.
    solver = Solver(
        groups=shipped.groups,
        linearisations=shipped.linearisations,
        steps=shipped.proposal_steps,
    )
    # A finder is a function that finds the motion within an exposure.
    find_motion = finder_of(shipped.motion_by, shipped.motion_net, CPU)
    methods = AllMethods(shipped, trained_runs)
    scores: Scores = {name: {} for name in methods.names}
    for reader in readers_of_set(folder, "auto", operator):
        methods.frames_without_steps = 0
        scores_of_clip = clip_scores(
            reader, operator=operator, methods=methods, find_motion=find_motion, solver=solver
        )
        if methods.frames_without_steps:
            print(f"{reader.name} is left out: it needs steps that were not trained", flush=True)
            continue
        for name, psnr_of_clip in scores_of_clip.items():
            scores[name][reader.name] = psnr_of_clip
    return scores


def clip_scores(
    reader: DatasetClip,
    operator: SavedNetwork,
    methods: AllMethods,
    find_motion: Finder,
    solver: Solver,
) -> dict[str, float]:
    """Restore a clip by all methods. Returns method -> PSNR in dB, the mean over the frames.

    The frames are compared as main_test_vrt.py writes them, with values of 8 bits.

    find_motion: finds the motion within an exposure.
    solver: settings of the equations.
    """
    restorer = MotionRestorer(
        FirstEstimates(operator.build().eval()),
        find=find_motion,
        solver=solver,
        improve=methods,
        context=None,  # as many planes before and after an exposure as half an exposure has
        device=CPU,
        least_area=LEAST_AREA,
    )
    frame_count = len(reader.stems)
    psnr_of_frames: dict[str, list[float]] = {name: [] for name in methods.names}

    def ignore_progress(done: float) -> None:
        """Do nothing. The restorer calls this function with the work that it has done."""

    restored = restorer.frames(reader, range(frame_count), ignore_progress)
    for index, frames in enumerate(restored):
        # `frames` is (methods, 3, H, W). If a frame keeps its first estimate, it is equal by all
        # methods. Then the restorer gives it once, (3, H, W).
        all_frames = frames.expand(len(methods.names), *frames.shape[-3:])
        sharp = tensor_to_uint8(reader.frame(index)["gt"])
        for name, frame in zip(methods.names, all_frames, strict=True):
            psnr_of_frames[name].append(psnr(tensor_to_uint8(frame), sharp))
    return {name: float(np.mean(values)) for name, values in psnr_of_frames.items()}
