"""Train a Video Restoration Transformer on RGB + spike clips.

    python main_train_vrt.py --opt options/vrt/000_train_vrt_sample_rgbspike.json
    python main_train_vrt.py --opt FILE --batch_size 2 train.total_iter=1000 logging.use_wandb=true
    ./launch_train.sh 4 FILE --use_amp

The same command resumes an interrupted run. All options: docs/options.md. One process, or one of many started by
torchrun, a cloud platform or SLURM: docs/ddp.md.
"""

import gc
import itertools
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from data.alignment_check import warning_of
from data.clip_dataset import check_clips
from data.clip_reader import dataset_clips
from data.loader import TrainLoader
from data.preflight import preflight
from data.select_dataset import DATASETS, build_dataset
from models.losses import LOSSES, check_loss
from models.model_vrt import define_Model, weights_hash
from models.optim import lr_floor
from models.restore.tiling import Tiling, scored_clips
from models.restore.validation import validate
from models.select_network import NETWORKS, check_options
from utils import utils_dist
from utils.contract import input_spec
from utils.dist import gpu, process, state, watchdog
from utils.errors import DataError
from utils.logger import setup_logging
from utils.options.load import load_options, parse_command_line
from utils.options.models import Options
from utils.options.section import redact
from utils.run.checkpoint import Progress, find_checkpoint, left_to_do, planned_steps, restore_progress
from utils.run.measure import Health, StepTimer, measured
from utils.run.progress import RunProgress, open_progress
from utils.run.writers import WRITERS, Experiment, build_writers, only_run_in, write_environment

logger = logging.getLogger(__name__)

PARTS = {"netG": NETWORKS, "datasets": DATASETS, "train": LOSSES}


def main(argv: list[str]) -> int:
    """Exit code of the run: 0 finished, 2 options or launch, 3 data, 4 numbers, 70 stall, 75 start again, 1 else."""
    with utils_dist.ranks():
        with utils_dist.all_ranks_or_none():
            opt = read_options(argv)
        utils_dist.begin(opt.watchdog, opt.dist_timeout_s, opt.digest(), opt.kept)
        utils_dist.stop_on(*utils_dist.STOP_SIGNALS)
        with only_run_in(opt.folder):
            with utils_dist.all_ranks_or_none():  # the others wait here as long as files are checked
                if utils_dist.is_main_process():
                    setup_logging(0, opt.folder / "log" / "train.log")
                    opt.save(opt.folder / "options")
                    preflight(opt.datasets, opt.kept, partial(open_progress, opt.logging.progress))
            with utils_dist.all_ranks_or_none():
                run = Training(opt)
            return train(run)


def read_options(argv: list[str]) -> Options:
    file, overrides = parse_command_line(argv, __doc__)
    checks = [
        lambda opt: check_options(opt.netG, opt.datasets, opt.val, opt.scale),
        lambda opt: check_loss(opt.train, opt.datasets.train, opt.netG),
        lambda opt: [WRITERS.resolve(section, "logging.writers") for section in opt.logging.writers],
    ]
    opt = load_options(file, overrides, parts=PARTS, check=checks)
    gpu.choose_gpus(opt.gpu_ids, opt.opt_path)
    return opt


def train(run: "Training") -> int:
    """Step until the planned end, with logs, saves and validations. Exit code. Collective."""
    utils_dist.stop_on(signal.SIGINT)  # before the first step nothing is lost: KeyboardInterrupt ends the run
    with utils_dist.closed_after_report(run.begin()) as experiment, state.answering(run.opt.folder):
        # A validation that was interrupted comes first; `finish` has that of the last step.
        if run.at_start == "validation" and run.progress.step < run.total_iter and not run.validate():
            return run.stop_early()
        with RunProgress(run.opt.logging.progress, run.total_iter, run.timer, run.every) as run.shown:
            while run.progress.step < run.total_iter:
                for micro_batches in run.steps_of_epoch():
                    if not run.step(micro_batches):
                        return run.stop_early()
                if run.progress.batch == 0:
                    experiment.log_epoch(run.progress.epoch, run.model.epoch_log(), run.timer)
        return run.finish()


class Training:
    """What a run trains on what, where it stands (`progress`), and what comes in which order."""

    def __init__(self, opt: Options) -> None:
        """Model, loader, test clips (None without a test split) and position. The checkpoint is not kept in memory."""
        self.opt = opt
        resumed = find_checkpoint(opt.path.resume, opt.folder)
        self.loader, self.clips = build_data(opt)
        if utils_dist.is_main_process() and (warning := warning_of(self.loader.dataset, opt.opt_path)):
            logger.warning("%s", warning)
        order, self.progress = self.loader.order(), Progress()
        if resumed is not None:
            self.progress = restore_progress(resumed, opt.folder, redact(opt.plain()), opt.train, order)
        self.model = define_Model(opt)
        if self.clips is not None:
            # Refuse impossible tiles, and clips too short to score, before the first step.
            Tiling.of(opt.val, input_spec(self.model.netG))
            scored_clips(dataset_clips(self.clips), input_spec(self.model.netG))
        self.model.init_train(resumed.state if resumed is not None else None)
        self.origin = f"resumed from {resumed.path} at iter {resumed.state['step']}" if resumed else "fresh start"
        self.total_iter = planned_steps(opt.train, order.steps, self.progress)
        test_every = opt.train.checkpoint_test if self.clips is not None else 0
        self.every = {"validation": test_every, "save": opt.train.checkpoint_save}
        self.at_start = left_to_do(self.progress, self.total_iter, test_every)

    def begin(self) -> Experiment:
        """Log every rank, what is trained on what and where training starts; open what the run writes. Collective."""
        opt, train, loader, progress = self.opt, self.opt.train, self.loader, self.progress
        if (warning := opt.note_on_totals(utils_dist.get_world_size())) and utils_dist.is_main_process():
            logger.warning("%s", warning)
        of_epochs = planned_steps(train.model_copy(update={"total_iter": None}), loader.steps_per_epoch, progress)
        if train.epochs is not None and self.total_iter < of_epochs:
            logger.info(
                "train.total_iter = %d ends the run before train.epochs = %d; --epochs on the command line, or "
                "total_iter null, lets the epochs decide", self.total_iter, train.epochs,
            )  # fmt: skip
        loader.sampler.seek(progress.epoch, progress.batch)
        state.tell(
            device=str(self.model.device), samples=loader.steps_per_epoch * loader.sampler.batch_size,
            first=[index for _, index in itertools.islice(loader.sampler, 3)],
            loss_is_finite=True, weights=weights_hash(self.model.netG), weights_step=progress.step,
        )  # fmt: skip
        logger.info("%s", "\n".join(utils_dist.gather_objects(state.status_line())))
        for name, text in self.overview().items():
            logger.info("%-9s %s", f"{name}:", text)
        logger.info(
            "%s: starting at iter %d of %d, epoch %d, batch %d",
            self.origin, progress.step, self.total_iter, progress.epoch + 1, progress.batch,
        )  # fmt: skip
        options, writers, self.timer = redact(opt.plain()), [], StepTimer()
        if self.at_start != "nothing" and utils_dist.is_main_process():  # nothing where the run was finished before
            write_environment(opt.folder, sum(p.numel() for p in self.model.netG.parameters()))
            writers = build_writers(opt.logging, opt.folder, options, progress)
        health = Health(opt.folder, train, opt.datasets, self.total_iter)
        health.planned(lr_floor(train, self.total_iter))
        if progress.validation_stops > 1:
            logger.warning("the validation at iter %d was stopped twice: it is left out", progress.step)
        self.experiment = Experiment(opt.folder, options, loader.order(), health, writers)
        return self.experiment

    def overview(self) -> dict[str, str]:
        """Task and results, ranks, data, batch, network and schedule in words. Collective."""
        opt, train, section, loader = self.opt, self.opt.train, self.opt.datasets.train, self.loader
        places = utils_dist.gather_objects((socket.gethostname(), gpu.device_name(self.model.device)))
        ranks, hosts, devices = len(places), len({host for host, _ in places}), [device for _, device in places]

        values, channels = section.plain(), opt.spike_channels
        spike = values.get("spike")
        kind = spike.get("representation") if isinstance(spike, dict) else None
        name = kind["type"] if isinstance(kind, dict) else kind
        spikes = f"spikes as {channels} channels" + (f" ({name})" if name else "") if channels else "no spikes"
        frames, crop = values.get("num_frame"), values.get("gt_size")
        size = f" of {frames} frames, {crop} x {crop}" if frames and crop else ""
        test = f"{len(self.clips)} test clips" if self.clips is not None else "no test clips"
        batch, accumulated = section.dataloader_batch_size, train.accumulation_steps
        epochs = -(-self.total_iter // loader.steps_per_epoch)
        warmup = f" after {train.G_warmup_iter:,} steps of warm-up" if train.G_warmup_iter else ""
        validate = f"validate every {train.checkpoint_test:,}, " if self.clips is not None else ""
        return {
            "Task": f"{opt.task} ({opt.opt_path}), results in {opt.folder}",
            "Ranks": f"{ranks} on {hosts} host{'s' * (hosts > 1)}: "
            + ", ".join(f"{devices.count(device)} x {device}" for device in dict.fromkeys(devices)),
            "Data": f"{loader.sampler.dataset_len:,} samples an epoch{size}; {spikes}; {test}",
            "Batch": f"{batch} a rank x {ranks} ranks x {accumulated} accumulated = {batch * ranks * accumulated}; "
            f"{section.dataloader_num_workers * ranks} loader workers in all",
            "Network": self.model.describe(),
            "Schedule": f"{self.total_iter:,} steps, {epochs:,} epochs of {loader.steps_per_epoch:,}; "
            f"{train.G_optimizer_type} lr {train.G_optimizer_lr:g}{warmup}, {train.G_scheduler_type}; "
            f"log every {train.checkpoint_print:,}, {validate}save every {train.checkpoint_save:,}",
        }

    def steps_of_epoch(self) -> Iterator[list[dict[str, Any]]]:
        """The steps of the current epoch from `progress.batch` on; then `progress` moves to the next one. Collective.

        The order prevents the known deadlocks: all ranks finish the last epoch, clean up and start their workers; only
        then does rank 0 show its progress bar. Nothing in between can block a single rank.
        """
        progress, loader, timer = self.progress, self.loader, self.timer
        watchdog.phase("epoch turn", progress.step)
        utils_dist.barrier()
        gc.collect()
        if self.opt.train.empty_cache:
            torch.cuda.empty_cache()
        iterator = loader.start(progress.epoch, progress.batch)
        utils_dist.barrier()
        left = min(loader.steps_per_epoch - progress.batch, self.total_iter - progress.step)
        if left <= 0:
            raise RuntimeError(f"no step is left at {progress}, of {loader.steps_per_epoch} steps an epoch")
        self.shown.begin_epoch(progress.epoch, progress.step)
        for number in range(left):
            watchdog.phase("data", progress.step)
            # The first batch waits for new workers, which is no sign that they are too few.
            with timer.part("data"), nullcontext() if number else timer.part("epoch_start"):
                micro_batches = next(iterator)
            yield micro_batches
        if progress.batch == loader.steps_per_epoch:
            progress.next_epoch()

    def step(self, micro_batches: list[dict[str, Any]]) -> bool:
        """One optimizer step, and the log line, save and validation due then. False: a signal ends it. Collective."""
        train, debug, progress = self.opt.train, self.opt.debug, self.progress
        is_stop = utils_dist.stop_vote()
        with self.timer.part("compute"):
            self.model.optimize_parameters(progress.step + 1, micro_batches)
        progress.step, progress.batch, progress.validation_stops = progress.step + 1, progress.batch + 1, 0
        self.timer.step_done()
        if debug.every:
            self.model.print_debug_lines(progress.step, micro_batches, debug.every)
        if progress.step % train.checkpoint_print == 0:
            steps, model_log = self.timer.line.steps, self.model.current_log()
            own = measured(steps, model_log, self.timer.read())
            if own.gpu:
                state.tell(gpu=gpu.describe(own.gpu))
            ranks, eta = utils_dist.gather_objects(own), self.shown.eta(progress.step)
            self.experiment.log_training(progress, ranks, model_log["grad_norms"], eta)
        self.shown.update(progress.step, self.experiment.last_values)
        if debug.compare_every and progress.step % debug.compare_every == 0:
            watchdog.phase("compare weights", progress.step)
            found = weights_hash(self.model.netG)
            state.tell(weights=found, weights_step=progress.step)
            utils_dist.check_same_on_all_ranks(  # nothing else detects that they differ
                f"the weights after iteration {progress.step}", found,
                "resume from a checkpoint before this iteration; run scripts/doctor.py on these hosts: memory, GPU or "
                "network of the odd one may be faulty",
            )  # fmt: skip
        if is_stop():
            return False
        if progress.step == self.total_iter:
            return True  # `finish` saves and validates
        if progress.step % train.checkpoint_save == 0:
            with self.timer.part("save"):
                self.save()
                self.experiment.health.saved(progress.step)
        if left_to_do(progress, self.total_iter, self.every["validation"]) == "validation":
            return self.validate()
        return True

    def validate(self) -> bool:
        """Validate, and save checkpoint_best if it is the best so far. False: a signal ended it. Collective.

        The steps so far are saved first: a run that is stopped or killed here loses none, and validates again.
        """
        progress, experiment = self.progress, self.experiment
        with self.timer.part("validation"):
            if progress.saved != progress.step:
                self.save(with_weights=False)
            validation = validate(self.model, dataset_clips(self.clips))
            if validation is None:
                progress.validation_stops += 1
                self.save(with_weights=False)
                return False
            progress.validation_stops = 0
            experiment.log_validation(progress, validation.scalars, validation.panels)
            experiment.table, progress.validated = validation.table, progress.step
            psnr, best = validation.scalars["val/psnr"], progress.best_psnr
            watchdog.phase("save", progress.step)
            if math.isfinite(psnr) and (best is None or psnr > best):
                progress.best_psnr, progress.best_step = psnr, progress.step
                experiment.save("best", self.model.training_state, progress)
            utils_dist.barrier()
            return True

    def save(self, with_weights: bool = True) -> None:
        """Save the bare weights, then the checkpoint to resume from. Collective: all ranks wait for the save."""
        watchdog.phase("save", self.progress.step)
        if with_weights and utils_dist.is_main_process():
            self.model.save_weights(self.opt.folder / "models", self.progress.step)
        self.experiment.save("latest", self.model.training_state, self.progress)
        utils_dist.barrier()

    def stop_early(self) -> int:
        """After a signal: save what an exact resume needs. Gives the exit code for "start again". Collective."""
        if self.progress.saved != self.progress.step:
            self.save()
        logger.info("stopped by a signal at iter %d; the same command resumes here", self.progress.step)
        process.write_exit_file(utils_dist.PREEMPTED)
        return utils_dist.PREEMPTED

    def finish(self) -> int:
        """The last save and validation, and the table of scores. Exit code. Collective.

        A run that was finished before is validated again; its checkpoints, curves and images stay as they are.
        """
        progress, experiment = self.progress, self.experiment
        if self.at_start != "nothing":
            self.save()
            if self.clips is not None:
                if not self.validate():
                    return self.stop_early()
                self.save(with_weights=False)  # with the validation on record, the run is finished
        else:
            logger.info("already finished at iter %d: nothing is trained", progress.step)
            if self.clips is not None and progress.validated == progress.step:
                validation = validate(self.model, dataset_clips(self.clips))
                if validation is None:
                    return self.stop_early()
                experiment.table = validation.table
        experiment.close()
        if experiment.table:
            logger.info("test split after %d iterations:\n%s", progress.step, experiment.table)
        logger.info("Finished at iter %d. Results are in %s", progress.step, experiment.folder)
        return 0


def build_data(opt: Options) -> tuple[TrainLoader, Any]:
    """The training loader of this rank, and the test dataset (None where the options have no test split)."""
    seed, sections = opt.train.manual_seed, opt.datasets
    dataset = build_dataset(sections.train, "train", seed)
    clips = build_dataset(sections.test, "test", seed) if sections.test else None
    for split, data in (("train", dataset), ("test", clips)):
        check_clips(data, split, opt.scale, getattr(opt.netG, "out_instants", 1))
    loader = TrainLoader(dataset, sections.train, opt.train.accumulation_steps, seed, opt.watchdog.stall_s)
    if clips is not None and (without := [clip.name for clip in clips.clips if not clip.gt]):
        what = f"{len(without)} test clips have no sharp frames to validate against, {without[0]} among them"
        do = "set datasets.test.dataroot_gt, or leave datasets.test out and test with main_test_vrt.py"
        raise DataError(what, "datasets.test.dataroot_gt", "a sharp frame for each test frame", do)
    return loader, clips


if __name__ == "__main__":
    gc.freeze()  # what libraries made on import stays: no collection searches it, no forked loader process copies it
    process.end(main(sys.argv[1:]))
