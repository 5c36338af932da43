"""The whole option file: `Options`, with one field for each section or key of the file.

Each section is a class, in a module of its own:

    datasets          loader_options.py; the keys of a dataset are in data/clip_options.py
    train             train_options.py
    val, metric       val_options.py
    logging, debug    log_options.py
    watchdog          watchdog_options.py
    path              here

A registered part is a network, a dataset or a loss. A key that only one part has is a parameter of
the constructor of this part, e.g. `depths` of the network "vrt". utils/options/registry.py reads
the key from the constructor.

One class is one section, and one field is one key. docs/options.md and options/schema.json show the
first paragraph of the docstring of each class, and the descriptions of the fields.

KAIR is the program in which VRT was published. If KAIR has the same key, the key has KAIR's name
here, so that option files of KAIR can be read (kair_keys.py).

What must stay, here and in these pages: keys and their defaults, because old option files rely on
keys and defaults (test_keys_that_the_file_leaves_out_have_their_defaults). Free to change: a
description may be changed, and a key may be added if its default changes nothing. Afterwards run
lab/make_options_doc.py (test_the_pages_of_options_are_up_to_date).

Tests: tests/parts/utils/test_option.py, tests/parts/utils/test_option_files.py
"""

import hashlib
import json
import math
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from utils import VERSION
from utils.files import write_whole
from utils.options import conflicts, kair_keys
from utils.options.loader_options import DatasetsOptions
from utils.options.log_options import DebugOptions, LoggingOptions
from utils.options.section import Count, Section
from utils.options.train_options import TrainOptions
from utils.options.val_options import MetricOptions, ValOptions
from utils.options.watchdog_options import WatchdogOptions
from utils.secrets import redact


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


class Options(Section):
    """The whole option file.

    `netG`, `datasets.*` and `train` also hold the keys of the registered part that they name.

    Two fields are not options. opt_path is the path of the option file. kair_totals is empty unless
    the file comes from KAIR. Then it names the keys of datasets.train whose values are totals over
    all GPUs in KAIR, apart from the keys that the command line sets.
    """

    # A text that fits the pattern is the name of one folder below path.root. E.g. "000_a" and
    # ".a.b" fit. "a/b", "." and ".." do not fit, because they lead to another folder.
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
    # The next two options are for networks of your own. Such a network needs find_unused_parameters
    # if a step uses only some of its parameters, and use_static_graph if a step uses a parameter
    # twice (docs/troubleshooting.md).
    find_unused_parameters: bool = Field(False, description="Passed to DistributedDataParallel.")
    use_static_graph: bool = Field(False, description="Passed to DistributedDataParallel.")
    # The default limits of the watchdog need a time-out of at least 1800 s
    # (`WatchdogOptions.timeout_s`). `utils_dist.begin` and `init_dist` (dist/group.py) have the
    # same default, for programs without an option file.
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
    # These two fields are not keys of a file: `read_options` of utils/options/typed.py sets them.
    # KAIR is the program in which VRT was published.
    # `exclude` leaves them out of what is saved and compared.
    opt_path: str = Field("", exclude=True)  # the option file, e.g. "options/vrt/000_train.json"
    kair_totals: list[str] = Field([], exclude=True)  # e.g. ["dataloader_batch_size"]

    # ---- What other modules ask of the options ----

    @property
    def spike_channels(self) -> int:
        """Return S, the number of spike channels that go into the network. S is 0 without spikes.

        S is read from the training data, or from the test data if there are no training data.
        """
        dataset = self.datasets.train or self.datasets.test
        return dataset.spike_channels if dataset else 0

    def portable(self) -> dict[str, Any]:
        """Return the options that a weights file holds, as a dict, e.g. to rebuild its network.

        The keys are part of the file format: models/portable.py reads them from old files, too.
        There is no path of the training data, because people share weights with others.
        """
        dataset = self.datasets.train or self.datasets.test
        # Only data sets with spikes have the key `spike`, a nested section. Any, because the key is
        # not a field of LoaderOptions: the class of the data set adds it.
        spike_options = None
        if hasattr(dataset, "spike"):
            spike_section: Any = dataset.spike
            spike_options = spike_section.plain()
        return {
            "scale": self.scale,
            "netG": self.netG.plain(),
            "spike_channels": self.spike_channels,
            "spike": spike_options,
            # "spike" has the options of the spikes, and "spike_data" has facts about the files,
            # e.g. the spikes per plane at full light.
            "spike_data": dataset.spike_data if dataset else None,
        }

    @property
    def folder(self) -> Path:
        """Return the folder of the run, <path.root>/<task>, e.g. experiments/000_sample."""
        return Path(self.path.root) / self.task

    @property
    def checks_folder(self) -> Path:
        """Return the folder with the results of the data checks, <path.root>/.preflight.

        All runs below the same path.root share this folder, so that a data file is checked once.
        `refuse_task` (conflicts.py) refuses a run of this name, so change both together.
        """
        return Path(self.path.root) / ".preflight"

    def save(self, folder: Path) -> Path:
        """Write the options with all defaults and without secrets to a new file. Return its path.

        The file is <folder>/<name of the option file>_<time>.json, e.g. 000_251106_100000.json.
        """
        name = f"{Path(self.opt_path).stem}_{time.strftime('%y%m%d_%H%M%S')}"
        # If several starts come within one second, they have the same `name`. The second file gets
        # "_2" after the time, and the third file "_3".
        earlier_files = [path for path in folder.glob("*.json") if path.name.startswith(name)]
        if earlier_files:
            name += f"_{len(earlier_files) + 1}"
        target = folder / f"{name}.json"
        options = {"$version": VERSION, **redact(self.plain())}
        if self.train.global_batch_size is not None:
            # `for_ranks` has computed accumulation_steps for the number of ranks of this start. A
            # later start with the saved options may have another number of ranks. So leave the key
            # out, and `for_ranks` computes its value again.
            del options["train"]["accumulation_steps"]
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
        """Return the warning for an option file of KAIR on several ranks, or "" if none is needed.

        ranks: number of processes.
        """
        return kair_keys.note_on_totals(self.kair_totals, self.datasets.train, ranks)

    def for_ranks(self, ranks: int) -> "Options":
        """Return the options with the accumulation_steps that train.global_batch_size needs.

        accumulation_steps is the number of batches of each rank in a step. If global_batch_size is
        set, accumulation_steps is chosen so that the number of samples of a step comes nearest to
        global_batch_size. E.g. for global_batch_size 8 and batches of 1 sample:

            3 ranks    3 batches: 9 samples
            4 ranks    2 batches: 8 samples
            16 ranks   1 batch: 16 samples

        Raises OptionError if the user has written another value of accumulation_steps, too.

        ranks: number of processes of the training.
        """
        wanted = self.train.global_batch_size
        loader = self.datasets.train
        if wanted is None or loader is None:
            return self
        samples_per_batch = ranks * loader.dataloader_batch_size
        # E.g. 8 wanted samples and 3 at once: 8 / 3 = 2.67, and ceil(2.67 - 0.5) = 3. Of two values
        # that are equally near, the smaller one is taken: ceil(2.5 - 0.5) = 2.
        nearest = math.ceil(wanted / samples_per_batch - 0.5)
        accumulation_steps = max(1, nearest)
        conflicts.refuse_other_accumulation(self.train, accumulation_steps, samples_per_batch)
        conflicts.refuse_static_graph(
            self.use_static_graph, self.find_unused_parameters, accumulation_steps, wanted
        )
        train = self.train.model_copy(update={"accumulation_steps": accumulation_steps})
        return self.model_copy(update={"train": train})

    # ---- Values that contradict one another ----

    @model_validator(mode="after")
    def _check_conflicts(self) -> "Options":
        """Raise OptionError for values that contradict one another, or the file system.

        pydantic first checks each key separately, and then calls this function. If several values
        contradict one another, the error names the first contradiction. A new check may be added at
        the end.
        """
        conflicts.refuse_task(self.task)
        conflicts.refuse_static_graph(
            self.use_static_graph, self.find_unused_parameters, self.train.accumulation_steps
        )
        conflicts.refuse_endless_run(self.train)
        conflicts.refuse_slow_loader(self.datasets.train, self.watchdog.stall_s)
        conflicts.refuse_milestones(self.train)
        # VRT has its scale as a parameter of its own. A network without the parameter passes.
        upscale = getattr(self.netG, "upscale", self.scale)
        conflicts.refuse_other_scale(upscale, self.scale)
        return self
