"""The one table of option keys: every key that is not a parameter of a registered part, with type,
range and meaning.

A registered part is a network, a dataset or a loss. A key that only one part has is a parameter of
its constructor: utils/options/section.py reads it there.

docs/options.md is generated from these models (lab/make_options_doc.py). KAIR is the program in
which VRT was published. A key that KAIR has, too, has KAIR's name here, so that its option files
can be read. In these names G is the trained network, and E is its averaged copy.

What must stay: keys and their defaults, because old option files rely on both
(test_keys_that_the_file_leaves_out_have_their_defaults). Free to change: a description, and a new
key whose default changes nothing. Then run lab/make_options_doc.py
(test_the_pages_of_options_are_up_to_date).

Tests: tests/parts/utils/test_option.py, tests/parts/utils/test_option_files.py
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from utils import VERSION
from utils.errors import OptionError
from utils.files import write_whole
from utils.options.secrets import redact
from utils.options.section import Section

# Types of keys. `ge` means "greater or equal". Other numbers give their range in their own Field.
Count = Annotated[int, Field(ge=0)]  # 0, 1, 2, ...
Positive = Annotated[int, Field(ge=1)]  # 1, 2, 3, ...


# ---- The sections of an option file ------------------------------------------------------------
#
# One class is one section, and one field is one key. The first paragraphs of the class docstrings
# and the descriptions of the fields are printed in docs/options.md and in options/schema.json.
# After a change of a docstring or a description, run lab/make_options_doc.py: a test compares the
# two files with these models.


class LoaderOptions(Section):
    """Keys of `datasets.train` and `datasets.test` that configure the loader; the others belong to
    the dataset.
    """

    name: str = Field("", description="A name for messages; no effect.")
    dataloader_shuffle: bool = Field(
        True, description="Draw a new order in each epoch (training only)."
    )
    dataloader_num_workers: int = Field(
        2, ge=0, description="Loader processes per GPU; 0 loads in the main process."
    )
    dataloader_batch_size: int = Field(
        1, ge=1, description="Clips per GPU and step (the log says the total)."
    )
    dataloader_persistent_workers: bool = Field(
        False, description="Keep the loader processes from epoch to epoch."
    )
    dataloader_prefetch_factor: int = Field(
        2, ge=1, description="Batches that each loader process prepares ahead."
    )
    dataloader_timeout_s: float | None = Field(
        None,
        gt=0,
        description="Seconds; a batch that takes longer stops the run. null: 4/5 of "
        "watchdog.stall_s.",
    )
    dataloader_epoch_repeat: int = Field(
        1, ge=1, description="Passes over the dataset that count as one epoch."
    )

    @property
    def spike_channels(self) -> int:
        """Return S, the number of spike channels of a sample, e.g. 12. It is 0 for RGB alone."""
        # `constructor` is the class of the data set that `dataset_type` names. A data set without
        # spikes need not have the function.
        dataset_class = self.constructor
        if not hasattr(dataset_class, "spike_channels"):
            return 0
        return dataset_class.spike_channels(self)

    @property
    def spike_data(self) -> dict[str, Any] | None:
        """Return what a user of the weights must know of the spikes of the training data.

        `ClipSources.spike_data` (data/clip_sources.py) says which keys there are. Returns None for
        a data set without spikes. Reads the file dataset.json beside the spikes.
        """
        dataset_class = self.constructor
        if not hasattr(dataset_class, "spike_data"):
            return None
        return dataset_class.spike_data(self)


class PathOptions(Section):
    root: str = Field("experiments", min_length=1, description="Folder of all runs.")
    # A path, or the name of published weights of VRT. vrt/001 to vrt/009 are such names.
    pretrained_netG: str | None = Field(
        None,
        description="Weights to start from: a file, or vrt/001 to vrt/009. A run that has a "
        "checkpoint goes on from the checkpoint instead.",
    )
    pretrained_netE: str | None = Field(
        None, description="Weights of the averaged network (E_decay); null: the weights of netG."
    )
    resume: str | None = Field(
        "auto",
        description='"auto": go on from the newest checkpoint of this run; null: start a new '
        "run; a path: go on from this file.",
    )


class AmpOptions(Section):
    # Mixed precision: 16-bit numbers where they are exact enough. The small range of float16 would
    # turn small gradients into 0, so the loss is multiplied by a factor (gradient scaling).
    enable: bool = Field(False, description="Mixed precision.")
    dtype: Literal["auto", "bfloat16", "float16"] = Field(
        "auto",
        description="auto: bfloat16 if all devices compute in it, else float16 with gradient "
        "scaling.",
    )


class TrainOptions(Section):
    """Keys of `train`. The loss that `G_lossfn_type` names adds its own keys."""

    # The defaults of optimizer, schedule and intervals are the values of VRT's published option
    # files (tests/data/kair_options.json).
    manual_seed: int = Field(0, ge=0, description="All randomness of a run follows from it.")
    total_iter: int | None = Field(
        300000,
        ge=1,
        description="Optimizer steps of the whole run; null: the key epochs alone says when "
        "the run ends.",
    )
    epochs: int | None = Field(
        None,
        ge=1,
        description="Epochs after which the run stops, if total_iter does not stop it earlier.",
    )
    accumulation_steps: int = Field(1, ge=1, description="Batches per optimizer step.")

    G_lossfn_weight: float = Field(1.0, gt=0, description="Factor of the loss.")
    G_optimizer_type: Literal["adam", "adamw"] = Field("adam", description="Optimizer.")
    # "Full": after the warm-up has raised the rate, and before the scheduler lowers it.
    G_optimizer_lr: float = Field(4e-4, gt=0, description="Full learning rate.")
    G_optimizer_betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        [0.9, 0.99], min_length=2, max_length=2, description="Decay of the first and second moment."
    )
    G_optimizer_wd: float = Field(0.0, ge=0, description="Weight decay.")
    G_optimizer_clipgrad: float | None = Field(
        None, gt=0, description="Largest gradient norm; null: no clipping."
    )

    G_scheduler_type: Literal["MultiStepLR", "CosineAnnealingWarmRestarts"] = Field(
        "CosineAnnealingWarmRestarts", description="Course of the learning rate."
    )
    G_scheduler_milestones: list[Positive] = Field(
        [], description="MultiStepLR: steps at which the rate drops."
    )
    G_scheduler_gamma: float = Field(
        0.5, gt=0, le=1, description="MultiStepLR: factor of each drop."
    )
    G_scheduler_periods: Positive | list[Positive] = Field(
        300000,
        description="Cosine: steps of each period; after the last period the rate is eta_min.",
    )
    # A period begins with the rate eta_min + factor * (full rate - eta_min). A list has a factor
    # for each period.
    G_scheduler_restart_weights: float | list[float] = Field(
        1.0, description="Cosine: height of each restart."
    )
    G_scheduler_eta_min: float = Field(1e-7, ge=0, description="Cosine: lowest learning rate.")
    G_warmup_iter: int = Field(0, ge=0, description="Steps of linear warm-up.")

    # E.g. 0.999: after each step, average = 0.999 * average + 0.001 * weights.
    E_decay: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay of the averaged weights (EMA); 0: the weights are not averaged.",
    )
    # The next three keys are for parts that are trained already. E.g. VRT's files freeze its
    # optical flow and its alignment (fix_keys ["spynet", "deform"]) for 20000 steps. Then these
    # parts learn at 1/8 of the learning rate.
    fix_iter: int | None = Field(
        0,
        ge=-1,
        description="Steps at the start in which the parameters of fix_keys are frozen; null, "
        "0 or -1: they are never frozen.",
    )
    fix_lr_mul: float = Field(
        1.0,
        ge=0,
        description="Factor of the learning rate of these parameters after the frozen steps.",
    )
    fix_keys: list[str] = Field(
        [],
        description="Parts of names, e.g. spynet: they choose the parameters for fix_iter and "
        "fix_lr_mul.",
    )

    G_param_strict: bool = Field(
        False,
        description="true: every tensor of pretrained_netG must match the network; false: 90 "
        "% of the tensors.",
    )

    amp: AmpOptions = AmpOptions()
    compile: bool = Field(False, description="torch.compile the network.")
    tf32: bool | None = Field(
        None,
        description="Compute float32 products on a GPU in TF32: faster, with 10 bits of "
        "precision. null: only in convolutions, as torch does.",
    )
    empty_cache: bool = Field(
        False, description="Give unused GPU memory back at the start of each epoch; costs time."
    )
    max_nonfinite_steps: int = Field(
        10, ge=1, description="Number of steps in a row with NaN or Inf that stops the run."
    )

    checkpoint_test: int = Field(5000, ge=1, description="Steps between validations.")
    checkpoint_save: int = Field(5000, ge=1, description="Steps between checkpoints.")
    checkpoint_print: int = Field(200, ge=1, description="Steps between log lines.")
    keep_checkpoints: int = Field(
        1,
        ge=1,
        description="Number of former versions that are kept, of the latest checkpoint and of "
        "the best one.",
    )


class ValOptions(Section):
    # The memory of a network grows with the clip. So a clip is restored in parts of some frames,
    # and each part in spatial tiles. Parts and tiles overlap, so that no seam is visible.
    save_img: bool = Field(
        False,
        description="Write restored frames. In training, these are the frames of the clips "
        "that rank 0 validates, in images/.",
    )
    pad_seq: bool = Field(False, description="Repeat the last frame once before restoring.")
    flip_seq: bool = Field(
        False, description="Restore the clip followed by its time-reversed copy, and average."
    )
    center_frame_only: bool = Field(False, description="Keep the middle frame only.")
    num_frame_testing: Literal["auto"] | Count = Field(
        "auto",
        description='Frames restored at a time; "auto": 12; 0: the whole clip, however long.',
    )
    num_frame_overlapping: int = Field(2, ge=0, description="Frames shared by neighbouring parts.")
    size_patch_testing: Literal["auto"] | Count = Field(
        "auto",
        description='Side of a spatial tile; "auto": 256, halved if memory is short. 0: the '
        "whole frame.",
    )
    size_patch_overlapping: int = Field(
        20, ge=0, description="Pixels shared by neighbouring tiles."
    )
    batch_tiles: int = Field(
        1, ge=1, description="Spatial tiles that go through the network at once."
    )


class MetricOptions(Section):
    """How tests and validations score. To compare with a published number, use its own protocol."""

    values: Literal["uint8", "clamped", "float"] = Field(
        "uint8",
        description="Which values are scored. uint8: clamped to 0..1 and rounded to 8 bits; "
        "clamped: clamped to 0..1; float: as the network gives them.",
    )
    mean: Literal["clips", "frames"] = Field(
        "clips",
        description="How scores are averaged. clips: over the frames of each clip, then over "
        "the clips; frames: over all frames.",
    )
    more: list[str | dict[str, Any]] = Field(
        [], description="Further metrics of your own; see docs/extending.md."
    )


class LoggingOptions(Section):
    progress: Literal["bar", "line", "none"] = Field(
        "bar",
        description="bar: a bar on a terminal, else lines; line: a line at each tenth; none: "
        "nothing. TQDM_DISABLE=1 has the effect of none.",
    )
    use_tensorboard: bool = Field(True, description="Write tb_logger/.")
    writers: list[str | dict[str, Any]] = Field(
        [], description="Further writers of your own; see docs/extending.md."
    )
    use_wandb: bool = Field(
        False,
        description="Report to Weights & Biases; offline into wandb/, for a later `wandb sync`.",
    )
    wandb_project: str = Field("spikevrt", min_length=1, description="W&B project.")
    wandb_entity: str | None = Field(None, description="W&B team or user.")
    wandb_api_key: str | None = Field(
        None,
        description="W&B key. It is saved nowhere. It is safer in the environment, as "
        "WANDB_API_KEY.",
    )


class DebugOptions(Section):
    every: int = Field(
        0,
        ge=0,
        description="Steps between two lines that each rank prints of itself; 0: no such lines.",
    )
    compare_every: int = Field(
        500,
        ge=0,
        description="Steps between two comparisons of the ranks' weights; 0: no comparisons.",
    )


# Key of the limit of a slow phase -> the factor by which watchdog.stall_s is multiplied if the key
# is null. E.g. stall_s 400 gives start_s 1200. After a change, correct the descriptions of the keys
# below, which name these factors, and test_the_limits_of_time_follow_from_one_number.
SLOW_LIMIT_FACTORS = {"start_s": 3, "validate_s": 5, "save_s": 3}
# A user may set a short stall_s to hear of a slow batch soon, but this makes no start and no
# validation faster. So in the product a stall_s below 300 s counts as 300 s. E.g. stall_s 100 gives
# start_s 900.
LEAST_STALL_S_TO_MULTIPLY = 300.0
# Phase of a run -> key of its limit. All other phases have the limit stall_s.
LIMIT_OF_PHASE = {
    "start": "start_s",
    "first step": "start_s",
    "validate": "validate_s",
    "restore": "validate_s",
    "score": "validate_s",
    "save": "save_s",
}


class WatchdogOptions(Section):
    """A rank that stays longer in one phase ends the run, and the error names the rank.

    A rank that sends no beat for stall_s ends the run, too (utils/dist/beats.py). Set stall_s; the
    other limits follow from it.
    """

    stall_s: float = Field(
        300, ge=1, description="Seconds for any phase: a batch, a step, a barrier."
    )
    start_s: float | None = Field(
        None, ge=1, description="Seconds for start and first step. null: 3 stall_s, at least 900."
    )
    validate_s: float | None = Field(
        None,
        ge=1,
        description="Seconds for a tile of a test, or scores of a frame. null: 5 stall_s, at "
        "least 1500.",
    )
    save_s: float | None = Field(
        None, ge=1, description="Seconds for a checkpoint. null: 3 stall_s, at least 900."
    )

    def limit(self, name: str) -> float:
        """Return a limit in seconds.

        name: a key of this section, "stall_s" or a key of SLOW_LIMIT_FACTORS. A key that is null
            follows from stall_s.
        """
        limit_s = getattr(self, name)
        if limit_s is None:
            limit_s = SLOW_LIMIT_FACTORS[name] * max(LEAST_STALL_S_TO_MULTIPLY, self.stall_s)
        return limit_s

    def limit_of_phase(self, name: str) -> float:
        """Return how many seconds a rank may stay in a phase. This is stall_s or more.

        name: the phase as the watchdog writes it, with the phases around it and perhaps a clip,
            e.g. "load in validate: clip_01". The outermost phase decides, here "validate".
        """
        # In the example, first leave out the clip: "load in validate". The outermost phase is then
        # the text behind the last " in ", "validate", or the whole text if there is no " in ".
        phases = name.partition(":")[0]
        outermost = phases.rpartition(" in ")[2]
        if outermost not in LIMIT_OF_PHASE:
            return self.stall_s
        # A limit that the user sets below stall_s counts as stall_s.
        return max(self.stall_s, self.limit(LIMIT_OF_PHASE[outermost]))

    def timeout_s(self, least_s: float) -> float:
        """Return the time-out of the process group of the ranks, in seconds.

        The process group is torch's connection of the ranks. The time-out must come after each
        limit of the watchdog, because the watchdog can name the rank that stands still and the
        process group cannot. So the time-out is at least 20 % longer than the longest limit. E.g.
        the longest default limit is validate_s, 1500 s: the time-out is at least 1800 s. Tests:
        tests/faults/test_startup.py.

        least_s: what the user asks for (dist_timeout_s). The result is never shorter.
        """
        slow_limits_s = [self.limit(name) for name in SLOW_LIMIT_FACTORS]
        longest_s = max(self.stall_s, *slow_limits_s)
        return max(least_s, 1.2 * longest_s)


class DatasetsOptions(Section):
    """The clips of training and of tests, or null if there are none.

    Each section has the keys of its dataset and the keys of the loader.
    """

    train: LoaderOptions | None = Field(None, description="The training clips.")
    test: LoaderOptions | None = Field(None, description="The clips for validation and testing.")


class Options(Section):
    """The whole option file.

    `netG`, `datasets.*` and `train` also hold the keys of the registered part that they name.

    Two fields are no options. opt_path is the option file. kair_totals is empty unless the file
    comes from KAIR. Then it names the keys of datasets.train whose values are totals over all GPUs
    in KAIR, without the keys that the command line changes.
    """

    # The pattern lets through the name of one folder below path.root: no "/", and not "." or "..".
    task: str = Field(
        pattern=r"^\.*[\w\-][\w.\-]*$",
        description="Name of the run; its folder is <path.root>/<task>.",
    )
    model: Literal["vrt"] = Field("vrt", description="The training procedure.")
    gpu_ids: list[Count] | None = Field(
        None,
        description="GPUs that a single process sees; it computes on the first one. No effect "
        "if CUDA_VISIBLE_DEVICES is set, or with several ranks.",
    )
    dist: bool = Field(
        False,
        description="A note for the reader, without effect: the launcher says how many "
        "processes there are.",
    )
    # Both are false for the networks here. A network of your own needs the first if a step does not
    # use all parameters, and the second if a step uses a parameter twice (docs/troubleshooting.md).
    find_unused_parameters: bool = Field(False, description="Passed to DistributedDataParallel.")
    use_static_graph: bool = Field(False, description="Passed to DistributedDataParallel.")
    dist_timeout_s: float = Field(
        1800,
        gt=0,
        description="Seconds after which a collective of the ranks times out. NCCL_TIMEOUT in "
        "the environment takes precedence.",
    )
    scale: int = Field(1, ge=1, description="Size of the output over size of the input.")
    n_channels: int = Field(3, ge=1, description="Channels of the picture.")
    path: PathOptions = PathOptions()
    datasets: DatasetsOptions = DatasetsOptions()
    netG: Section = Field(description="The network.")
    train: TrainOptions = TrainOptions()
    val: ValOptions = ValOptions()
    metric: MetricOptions = MetricOptions()
    logging: LoggingOptions = LoggingOptions()
    debug: DebugOptions = DebugOptions()
    watchdog: WatchdogOptions = WatchdogOptions()
    # No keys of a file: `read_options` of utils/options/typed.py fills these fields. `exclude`
    # keeps them out of what is saved and compared.
    opt_path: str = Field("", exclude=True)  # the option file, e.g. "options/vrt/000_train.json"
    kair_totals: list[str] = Field([], exclude=True)  # e.g. ["dataloader_batch_size"]

    # ---- What other modules ask of the options ----

    @property
    def spike_channels(self) -> int:
        """Return S of the training data, or of the test data if there are no training data.

        S is the number of spike channels that go into the network. It is 0 for RGB alone.
        """
        dataset = self.datasets.train or self.datasets.test
        return dataset.spike_channels if dataset else 0

    def portable(self) -> dict[str, Any]:
        """Return what a weights file says of its network, as plain JSON.

        The keys are part of the file format: models/portable.py reads them from old files, too. No
        path of the training data is among them, because weights are given to others.
        """
        dataset = self.datasets.train or self.datasets.test
        # Only data sets with spikes have the key `spike`, a nested section.
        spike_options = None
        if hasattr(dataset, "spike"):
            spike_section: Any = dataset.spike
            spike_options = spike_section.plain()
        return {
            "scale": self.scale,
            "netG": self.netG.plain(),
            "spike_channels": self.spike_channels,
            "spike": spike_options,
            "spike_data": dataset.spike_data if dataset else None,
        }

    @property
    def folder(self) -> Path:
        """Return the folder of the run, <path.root>/<task>, e.g. experiments/000_sample."""
        return Path(self.path.root) / self.task

    @property
    def checks_folder(self) -> Path:
        """Return the folder of what the checks found in the data, <path.root>/.preflight.

        All runs below the same path.root share the folder, so that a data file is checked once.
        """
        return Path(self.path.root) / ".preflight"

    def save(self, folder: Path) -> Path:
        """Write the options with all defaults and without secrets to a new file. Return its path.

        The file is <folder>/<name of the option file>_<time>.json, e.g. 000_251106_100000.json.
        """
        name = f"{Path(self.opt_path).stem}_{time.strftime('%y%m%d_%H%M%S')}"
        # A run that was started twice within one second gets "_2" behind the time.
        earlier_starts = sum(path.name.startswith(name) for path in folder.glob("*.json"))
        if earlier_starts:
            name += f"_{earlier_starts + 1}"
        target = folder / f"{name}.json"
        options = {"$version": VERSION, **redact(self.plain())}
        text = json.dumps(options, indent=2)
        write_whole(target, f"{text}\n".encode())
        return target

    def digest(self) -> str:
        """Return 12 hex digits that are equal if all options are equal. Secrets do not count.

        The ranks compare their digests at the start of a run, so that no rank trains with another
        option file. A digest is not saved, so its form may change.
        """
        text = json.dumps(redact(self.plain()), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def note_on_totals(self, ranks: int) -> str:
        """Return the warning for an option file of KAIR on several ranks. "" if there is none.

        In KAIR the numbers of the loader are totals of all GPUs. Here they are numbers per GPU. So
        with 4 ranks, a batch of 8 becomes 32 clips a step, and the warning names the override
        datasets.train.dataloader_batch_size=2, with which the total is 8 again.

        ranks: number of processes.
        """
        # One rank: a total and a number per GPU are the same.
        if ranks == 1 or not self.kair_totals:
            return ""
        totals = []  # e.g. "dataloader_batch_size 8 x 4 ranks = 32 in all, in KAIR 8"
        overrides = []  # e.g. "datasets.train.dataloader_batch_size=2": with it the total is 8
        indivisible = []  # e.g. "a batch of 9 cannot be divided evenly among 4 ranks"
        for key in self.kair_totals:
            value = getattr(self.datasets.train, key)
            totals.append(
                f"{key} {value} x {ranks} ranks = {value * ranks} in all, in KAIR {value}"
            )
            if key == "dataloader_batch_size" and value % ranks:
                indivisible.append(
                    f"a batch of {value} cannot be divided evenly among {ranks} ranks"
                )
            else:
                # At least 1 worker per rank is left if KAIR had any: 0 would read the samples in
                # the training process. A value of 0 in the file stays 0.
                value_per_rank = max(1, value // ranks) if value else 0
                overrides.append(f"datasets.train.{key}={value_per_rank}")
        return (
            "This option file has keys that only KAIR has. KAIR divides the loader's numbers among "
            f"the GPUs; here they are per GPU: {'; '.join(totals)}. For the published totals: "
            f"{' '.join([*overrides, *indivisible])}"
        )

    # ---- Values that contradict one another ----

    @model_validator(mode="after")
    def _check_conflicts(self) -> "Options":
        """Raise OptionError for values that contradict one another, or the file system.

        pydantic calls this function after each key has been checked by itself. The first
        contradiction is raised. A contradiction that needs the network or the data is found later,
        where they are. A new check may be added at the end. Tests: test_option.py.
        """
        self._refuse_task()
        self._refuse_static_graph()
        self._refuse_endless_run()
        self._refuse_slow_loader()
        self._refuse_milestones()
        # VRT has its scale as a parameter of its own. A network without the parameter passes.
        upscale = getattr(self.netG, "upscale", self.scale)
        if upscale != self.scale:
            raise OptionError(
                what=f"netG.upscale is {upscale}, scale is {self.scale}",
                where="netG.upscale",
                expected="the same number",
                do="correct one of them",
            )
        return self

    def _refuse_task(self) -> None:
        """Raise OptionError if `task` cannot be the name of the folder of a run."""
        try:
            # ".preflight" is the name of `checks_folder`. File systems take at most 255 bytes a
            # name, and a Chinese character has 3 bytes in UTF-8.
            is_no_folder = self.task == ".preflight" or len(os.fsencode(self.task)) > 255
        except UnicodeEncodeError:  # the locale has no such character, e.g. an ASCII locale
            is_no_folder = True
        if is_no_folder:
            # The message shows 80 characters, so that it stays on one line.
            dots = "..." if len(self.task) > 80 else ""
            raise OptionError(
                what=f"task is {self.task[:80]}{dots}",
                where="task",
                expected="a folder name: at most 255 bytes in the locale's encoding, "
                f"{sys.getfilesystemencoding()}, and not .preflight, which has the data checks",
                do="choose another name",
            )

    def _refuse_static_graph(self) -> None:
        """Raise OptionError if use_static_graph is set with an option that DDP cannot join."""
        if not self.use_static_graph:
            return
        if self.find_unused_parameters:
            raise OptionError(
                what="use_static_graph and find_unused_parameters are both true",
                where="find_unused_parameters",
                expected="one of them: a static graph already copes with unused parameters",
                do="set find_unused_parameters to false",
            )
        # pytorch #143580: no_sync() with static_graph crashes, or silently misses reductions.
        steps = self.train.accumulation_steps
        if steps > 1:
            raise OptionError(
                what=f"train.accumulation_steps is {steps} and use_static_graph is true",
                where="use_static_graph",
                expected="false with accumulation: DDP cannot skip the reduction of a static graph",
                do="set use_static_graph to false",
            )

    def _refuse_endless_run(self) -> None:
        """Raise OptionError if neither a number of steps nor a number of epochs ends the run."""
        if self.train.total_iter is None and self.train.epochs is None:
            raise OptionError(
                what="train.total_iter and train.epochs are both null",
                where="train.total_iter",
                expected="steps or epochs",
                do="set one of them",
            )

    def _refuse_slow_loader(self) -> None:
        """Raise OptionError if the time-out of the loader does not come before the watchdog.

        A time-out of null is not checked, because it becomes 4/5 of stall_s.
        """
        loader = self.datasets.train
        timeout_s = loader.dataloader_timeout_s if loader else None
        stall_s = self.watchdog.stall_s
        if timeout_s is not None and timeout_s >= stall_s:
            raise OptionError(
                what=f"datasets.train.dataloader_timeout_s is {timeout_s:g}, "
                f"watchdog.stall_s {stall_s:g}",
                where="datasets.train.dataloader_timeout_s",
                expected="less than watchdog.stall_s: the loader can name the samples, the "
                "watchdog cannot",
                do="lower or remove it, or raise watchdog.stall_s",
            )

    def _refuse_milestones(self) -> None:
        """Raise OptionError if MultiStepLR has no milestones, or milestones that do not rise."""
        # Milestones rise if sorting them and removing repetitions changes nothing: [10, 20]
        # rises, [20, 10] and [10, 10] do not.
        steps = self.train.G_scheduler_milestones
        are_rising = bool(steps) and steps == sorted(set(steps))
        if self.train.G_scheduler_type == "MultiStepLR" and not are_rising:
            raise OptionError(
                what=f"train.G_scheduler_milestones is {steps}",
                where="train.G_scheduler_milestones",
                expected="rising steps, at least one",
                do="correct them, or choose CosineAnnealingWarmRestarts",
            )


# ---- Keys of KAIR without effect ---------------------------------------------------------------

# Reasons that several keys share.
_FOLDER = "the folder is <path.root>/<task>"
_SPLIT = "datasets.train is for training, datasets.test for testing"
_INIT = "the network is initialized as VRT is"
_REGULARIZER = "there is no such regularizer"
# Key of datasets.train and of datasets.test -> the reason why it has no effect.
_DATASET = {
    "val_partition": "only VideoRecurrentTrainDataset leaves clips out",
    "test_mode": _SPLIT, "phase": _SPLIT,
    "spike_channels": "it follows from the representation",
    "spike_data": "it follows from the spikes",
}  # fmt: skip
# Section -> key -> the reason why the key has no effect here. The keys come from option files of
# KAIR, and from files that former versions of this project saved. `drop_without_effect` of
# utils/options/typed.py removes the keys with one warning, unless a registered part (such as a
# network) has a parameter of this name. docs/options.md prints the reasons. A key may be added, but
# none removed: an old file with this key would be refused. tests/stories/test_kair_files.py reads
# each of them.
KAIR_ONLY = {
    "path": {
        "task": _FOLDER, "log": _FOLDER, "models": _FOLDER, "images": _FOLDER, "options": _FOLDER,
        "pretrained_optimizerG": "states of other programs cannot be resumed",
    },
    "train": {
        "G_optimizer_reuse": "a resumed run always continues with its optimizer",
        "G_optimizer_momentum": "Adam has betas instead",
        "G_regularizer_orthstep": _REGULARIZER, "G_regularizer_clipstep": _REGULARIZER,
        "E_param_strict": "path.pretrained_netE is matched as G_param_strict says",
        "F_lossfn_type": "there is no feature loss", "F_lossfn_weight": "there is no feature loss",
    },
    "datasets.train": _DATASET,
    "datasets.test": _DATASET,
    "netG": {
        "init_type": _INIT, "init_bn_type": _INIT, "init_gain": _INIT,
        "recal_all_flows": "it never had an effect",
    },
}  # fmt: skip
# The keys of KAIR_ONLY that former versions of this project saved. A file with these keys alone
# does not come from KAIR, so the numbers of its loader are per GPU.
FORMERLY_OURS = {"spike_channels", "spike_data"}
