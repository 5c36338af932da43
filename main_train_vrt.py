"""Train a Video Restoration Transformer on RGB + spike clips.

    python main_train_vrt.py --opt options/vrt/000_train_vrt_sample_rgbspike.json
    python main_train_vrt.py --opt FILE --batch_size 2 train.total_iter=1000 logging.use_wandb=true
    ./launch_train.sh 4 FILE --use_amp

The same command resumes an interrupted run. All options: docs/options.md. One process, or one of many started by
torchrun, a cloud platform or SLURM: docs/ddp.md.
"""

from __future__ import annotations

import gc
import itertools
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from data.clip_dataset import check_scale
from data.clip_reader import dataset_clips
from data.first_look import warning_of
from data.instants import check_instants
from data.loader import TrainLoader
from data.preflight import preflight
from data.select_dataset import DATASETS, build_dataset
from models.ddp import weights_hash
from models.debug_lines import print_debug_lines
from models.losses import LOSSES, check_loss
from models.model_vrt import ModelVRT
from models.optim import lr_floor
from models.restore.interpolate import scored_clips
from models.restore.tiling import Tiling
from models.restore.validation import validate
from models.select_model import define_Model
from models.select_network import NETWORKS, check_options
from utils import utils_dist
from utils.contract import input_spec
from utils.dist import preempt, process, status, watchdog
from utils.dist.gpu import choose_gpus, device_name
from utils.errors import DataError
from utils.options.file import parse_command_line
from utils.options.load import load_options, save_options
from utils.options.models import Options, note_on_totals
from utils.run import boot
from utils.run.environment import write_environment
from utils.run.experiment import Experiment, is_better
from utils.run.health import Health
from utils.run.lock import only_run_in
from utils.run.logger import setup_logging
from utils.run.measure import StepTimer, measured
from utils.run.overview import RunLength, overview
from utils.run.progress import open_progress
from utils.run.resume import Progress, find_checkpoint, left_to_do, plan_notes, planned_steps, restore_progress
from utils.run.run_progress import RunProgress
from utils.run.writers import check_writers

logger = logging.getLogger(__name__)

PARTS = {"netG": NETWORKS, "datasets": DATASETS, "train": LOSSES}


def main(argv: list[str]) -> int:
    """Exit code of the run: 0 finished, 2 options or launch, 3 data, 4 numbers, 70 stall, 75 start again, 1 else."""
    with boot.ranks():
        with utils_dist.all_ranks_or_none():
            opt = read_options(argv)
        boot.begin(opt)
        preempt.install()
        with only_run_in(opt.folder):
            return train(opt)


def read_options(argv: list[str]) -> Options:
    command = parse_command_line(argv, __doc__)
    checks = [partial(choose_gpus, utils_dist.get_launch()), check_options, check_loss, check_writers]
    return load_options(command.opt_path, command.overrides, parts=PARTS, check=checks)


def train(opt: Options) -> int:
    """Build, resume, then step until the planned end, with logs, saves and validations. Exit code. Collective."""
    with utils_dist.all_ranks_or_none():
        model, loader, clips, progress, origin = build(opt)
    preempt.save_on_interrupt()
    total_iter = planned_steps(opt.train, loader.steps_per_epoch, progress)
    announce(opt, model, loader, clips, progress, total_iter, origin)

    timer = StepTimer()
    every = {"validation": opt.train.checkpoint_test if clips is not None else 0, "save": opt.train.checkpoint_save}
    left = left_to_do(progress, total_iter, every["validation"])
    if left != "nothing":
        write_environment(opt.folder)
    health = Health(opt, total_iter)
    health.planned(lr_floor(opt.train, total_iter))
    run = Experiment(opt, progress, loader.order(), health, is_finished=left == "nothing")
    with utils_dist.closed_after_report(run) as experiment, status.answering(opt.folder):
        if progress.validation_stops > 1:
            logger.warning("the validation at iter %d was stopped twice: it is left out", progress.step)
        # A validation that was interrupted comes first; `finish` has that of the last step.
        if left == "validation" and progress.step < total_iter:
            with timer.paused("validation"):
                is_stopped = not run_validation(model, clips, experiment, progress)
            if is_stopped:
                return stop_early(model, experiment, progress)
        with RunProgress(opt.logging.progress, total_iter, timer, every) as shown:
            while progress.step < total_iter:
                for micro_batches in steps_of_epoch(opt, loader, progress, shown):
                    if not step(opt, model, clips, micro_batches, experiment, progress, shown):
                        return stop_early(model, experiment, progress)
                if progress.batch == 0:
                    experiment.log_epoch(progress.epoch, model.epoch_log(), timer)
        return finish(model, clips, experiment, progress, is_finished=left == "nothing")


def step(
    opt: Options, model: ModelVRT, clips: Any, micro_batches: list[dict[str, Any]], experiment: Experiment,
    progress: Progress, shown: RunProgress,
) -> bool:  # fmt: skip
    """One optimizer step, and the log line, save and validation due then. False: a signal ends the run. Collective."""
    train, timer = opt.train, shown.timer
    vote = preempt.StopVote()
    with timer.part("compute"):
        model.optimize_parameters(progress.step + 1, micro_batches)
    progress.advance()
    timer.step_done()
    if opt.debug.every:
        print_debug_lines(model, progress.step, micro_batches, opt.debug.every)
    if progress.step % train.checkpoint_print == 0:
        log_steps(model, experiment, progress, shown)
    shown.update(progress.step, experiment.last_values)
    if opt.debug.compare_every and progress.step % opt.debug.compare_every == 0:
        compare_weights(model, progress)
    if vote.is_stop():
        return False
    if progress.step == shown.total_iter:
        return True  # `finish` saves and validates
    if progress.step % train.checkpoint_save == 0:
        with timer.paused("save"):
            save(model, experiment, progress)
            experiment.health.saved(progress.step)
    if left_to_do(progress, shown.total_iter, shown.every["validation"]) == "validation":
        with timer.paused("validation"):
            return run_validation(model, clips, experiment, progress)
    return True


def build(opt: Options) -> tuple[ModelVRT, TrainLoader, Any, Progress, str]:
    """Model, training loader, test clips, position of the run and its origin. The checkpoint is not kept in memory."""
    rank = utils_dist.get_rank()
    if rank == 0:
        setup_logging(rank, opt.folder / "log" / "train.log")
        save_options(opt, opt.folder / "options")
        preflight(opt.datasets, opt.folder.parent / ".preflight", partial(open_progress, opt.logging.progress))
    resumed = find_checkpoint(opt.path.resume, opt.folder)
    loader, clips = build_data(opt)
    if rank == 0 and (warning := warning_of(loader.dataset, opt.opt_path)):
        logger.warning("%s", warning)
    progress = Progress()
    if resumed is not None:
        progress = restore_progress(resumed, opt, loader.order())
    model = define_Model(opt)
    if clips is not None:
        # Refuse impossible tiles, and clips too short to score, before the first step.
        Tiling.of(opt.val, input_spec(model.netG))
        scored_clips(dataset_clips(clips), input_spec(model.netG))
    model.init_train(resumed.state if resumed is not None else None)
    origin = f"resumed from {resumed.path} at iter {resumed.state['step']}" if resumed else "fresh start"
    return model, loader, clips, progress, origin


def build_data(opt: Options) -> tuple[TrainLoader, Any]:
    """The training loader of this rank, and the test dataset (None where the options have no test split)."""
    seed, sections = opt.train.manual_seed, opt.datasets
    dataset = build_dataset(sections.train, "train", seed)
    clips = build_dataset(sections.test, "test", seed) if sections.test else None
    for split, data in (("train", dataset), ("test", clips)):
        check_scale(data, opt.scale, split)
        check_instants(data, getattr(opt.netG, "out_instants", 1), split)
    loader = TrainLoader(
        dataset,
        sections.train,
        accumulation_steps=opt.train.accumulation_steps,
        seed=seed,
        rank=utils_dist.get_rank(),
        world_size=utils_dist.get_world_size(),
        stall_s=opt.watchdog.stall_s,
    )
    if clips is not None and (without := [clip.name for clip in clips.clips if not clip.gt]):
        raise DataError(
            f"{len(without)} test clips have no sharp frames to validate against, {without[0]} among them",
            "datasets.test.dataroot_gt", "a sharp frame for each test frame",
            "set datasets.test.dataroot_gt, or leave datasets.test out and test with main_test_vrt.py",
        )  # fmt: skip
    return loader, clips


def announce(
    opt: Options, model: ModelVRT, loader: TrainLoader, clips: Any, progress: Progress, total_iter: int, origin: str
) -> None:
    """Log the line of every rank, what is trained on what, and where training starts. Collective.

    origin: the checkpoint that the run resumes from, or that it is fresh.
    """
    world = utils_dist.get_world_size()
    if (warning := note_on_totals(opt, world)) and utils_dist.is_main_process():
        logger.warning("%s", warning)
    for note in plan_notes(opt.train, loader.steps_per_epoch, progress, total_iter):
        logger.info("%s", note)
    loader.seek(progress.epoch, progress.batch)
    status.tell(
        device=str(model.device), samples=loader.steps_per_epoch * loader.sampler.batch_size,
        first=[index for _, index in itertools.islice(loader.sampler, 3)],
        loss_is_finite=True, weights=weights_hash(model.netG), weights_step=progress.step,
    )  # fmt: skip
    logger.info("%s", "\n".join(utils_dist.gather_objects(status.own_line())))
    devices = utils_dist.gather_objects((socket.gethostname(), device_name(model.device)))
    length = RunLength(total_iter, loader.steps_per_epoch, loader.sampler.dataset_len)
    for line in overview(opt, devices, model.describe(), length, len(clips) if clips is not None else 0):
        logger.info("%s", line)
    logger.info(
        "%s: starting at iter %d of %d, epoch %d, batch %d",
        origin, progress.step, total_iter, progress.epoch + 1, progress.batch,
    )  # fmt: skip


def steps_of_epoch(
    opt: Options, loader: TrainLoader, progress: Progress, shown: RunProgress
) -> Iterator[list[dict[str, Any]]]:
    """The steps of the current epoch from `progress.batch` on; then `progress` moves to the next epoch. Collective.

    The order prevents the known deadlocks: all ranks finish the last epoch, clean up and start their workers; only then
    does rank 0 show its progress bar. Nothing in between can block a single rank.
    """
    watchdog.phase("epoch turn", progress.step)
    utils_dist.barrier()
    gc.collect()
    if opt.train.empty_cache:
        torch.cuda.empty_cache()
    iterator = loader.start(progress.epoch, progress.batch)
    utils_dist.barrier()
    left = min(loader.steps_per_epoch - progress.batch, shown.total_iter - progress.step)
    if left <= 0:
        raise RuntimeError(f"no step is left at {progress}, of {loader.steps_per_epoch} steps an epoch")
    shown.begin_epoch(progress.epoch, progress.step)
    for number in range(left):
        watchdog.phase("data", progress.step)
        # The first batch waits for new workers, which is no sign that they are too few.
        first = nullcontext() if number else shown.timer.part("epoch_start")
        with shown.timer.part("data"), first:
            micro_batches = next(iterator, None)
        if micro_batches is None:
            raise DataError(
                f"no step {progress.batch + 1} in epoch {progress.epoch + 1}", "datasets.train",
                f"{loader.steps_per_epoch} steps an epoch", "the dataset must keep its length within a run",
            )  # fmt: skip
        yield micro_batches
    if progress.batch == loader.steps_per_epoch:
        progress.next_epoch()


def log_steps(model: ModelVRT, experiment: Experiment, progress: Progress, shown: RunProgress) -> None:
    """The log line of the steps since the last one, and warnings of what slows the run down. Collective."""
    steps, model_log = shown.timer.line.steps, model.current_log()
    own = measured(steps, model_log, shown.timer.read())
    if own.gpu:
        status.tell(gpu=own.gpu)
    ranks = utils_dist.gather_objects(own)
    experiment.log_training(progress, ranks, model_log["grad_norms"], shown.eta(progress.step))


def compare_weights(model: ModelVRT, progress: Progress) -> None:
    """Raises DistError where the weights of the ranks differ: nothing else detects that. Collective."""
    watchdog.phase("compare weights", progress.step)
    found = weights_hash(model.netG)
    status.tell(weights=found, weights_step=progress.step)
    utils_dist.check_same_on_all_ranks(
        f"the weights after iteration {progress.step}", found,
        "resume from a checkpoint before this iteration; run scripts/doctor.py on these hosts: memory, GPU or network "
        "of the odd one may be faulty",
    )  # fmt: skip


def run_validation(model: ModelVRT, clips: Any, experiment: Experiment, progress: Progress) -> bool:
    """Validate, and save checkpoint_best if it is the best so far. False: a signal ended it. Collective.

    The steps so far are saved first: a run that is stopped or killed here loses none, and validates again.
    """
    if progress.saved != progress.step:
        save(model, experiment, progress, with_weights=False)
    validation = validate(model, dataset_clips(clips), preempt.is_stop_requested)
    if validation is None:
        progress.validation_stops += 1
        save(model, experiment, progress, with_weights=False)
        return False
    progress.validation_stops = 0
    experiment.log_validation(progress, validation.scalars() | validation.clip_scalars(), validation.panels)
    experiment.table, progress.validated = validation.table(), progress.step
    psnr = validation.scalars()["val/psnr"]
    watchdog.phase("save", progress.step)
    if is_better(psnr, progress.best_psnr):
        progress.best_psnr, progress.best_step = psnr, progress.step
        experiment.save("best", model.training_state, progress)
    utils_dist.barrier()
    return True


def save(model: ModelVRT, experiment: Experiment, progress: Progress, with_weights: bool = True) -> None:
    """Save the bare weights, then the checkpoint to resume from. Collective: all ranks wait for the save."""
    watchdog.phase("save", progress.step)
    if with_weights and utils_dist.is_main_process():
        model.save_weights(experiment.folder / "models", progress.step)
    experiment.save("latest", model.training_state, progress)
    utils_dist.barrier()


def stop_early(model: ModelVRT, experiment: Experiment, progress: Progress) -> int:
    """After a signal: save what an exact resume needs. Gives the exit code for "start again". Collective."""
    if progress.saved != progress.step:
        save(model, experiment, progress)
    logger.info("stopped by a signal at iter %d; the same command resumes here", progress.step)
    utils_dist.write_exit_file(preempt.PREEMPTED)
    return preempt.PREEMPTED


def finish(model: ModelVRT, clips: Any, experiment: Experiment, progress: Progress, is_finished: bool) -> int:
    """The last save and validation, and the table of scores. Exit code. Collective.

    A run that was finished before is validated again; its checkpoints, curves and pictures stay as they are.
    """
    if not is_finished:
        save(model, experiment, progress)
        if clips is not None:
            if not run_validation(model, clips, experiment, progress):
                return stop_early(model, experiment, progress)
            save(model, experiment, progress, with_weights=False)  # with the validation on record, the run is finished
    else:
        logger.info("already finished at iter %d: nothing is trained", progress.step)
        if clips is not None and progress.validated == progress.step:
            validation = validate(model, dataset_clips(clips), preempt.is_stop_requested)
            if validation is None:
                return stop_early(model, experiment, progress)
            experiment.table = validation.table()
    experiment.close()
    if experiment.table:
        logger.info("test split after %d iterations:\n%s", progress.step, experiment.table)
    logger.info("Finished at iter %d. Results are in %s", progress.step, experiment.folder)
    return 0


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
