"""A training run that is small enough for a test, and what it leaves.

`write_options` writes clips and an option file, and `train` runs main_train_vrt.py on them.
`latest_checkpoint`, `history` and `files_of_run` read the results of a run. A run takes seconds on
one core, because frames have 32 x 32 pixels, and the network has one block in most stages.

What must stay: the numbers of clips, frames and steps, because tests count them. A test that needs
other options gives them as arguments.

In the functions below, `options` is the path of an option file, and `task` is the name of a run,
which is also the name of its folder in experiments/.
"""

import json
from pathlib import Path
from typing import Any

import torch

from tests.dist.launching import RankResult, run_ranks
from tests.helpers.clip_files import data_section, write_clip, write_info

MAIN = "main_train_vrt.py"
# Keys of datasets.train for its loader.
LOADER = {"dataloader_num_workers": 1, "dataloader_batch_size": 1}

# ---- The files of a run ----


def write_options(folder: Path, instants: int = 0, **changes: Any) -> Path:
    """Write clips and an option file into `folder`. Returns the path of the option file.

    The two training clips have 4 frames each. The three test clips have 2, 3 and 4 frames.

    instants: number of sharp instants of each frame.
    changes: whole sections, which replace the sections of the option file below, e.g.
        netG={"net_type": "odd"}.
    """
    # Arguments of `write_clip` that are equal for all clips. h and w are the size of the spike
    # planes. Frames are twice as large: 32 x 32.
    shape: dict[str, Any] = {"h": 16, "w": 16, "instants": instants}
    for number in range(2):
        write_clip(folder, f"train{number}", frames=4, seed=number, **shape)
    for number in range(3):
        frames = 2 + number
        write_clip(folder, f"test{number}", split="test", frames=frames, seed=10 + number, **shape)
    write_info(folder, h=16, w=16)

    # The section datasets.train, which has two frames a sample, and crops that are flipped and
    # turned.
    crops = data_section(folder, num_frame=2, gt_size=32, use_hflip=True, use_rot=True)
    options: dict[str, Any] = {
        "task": "run",
        "path": {"root": str(folder / "experiments")},
        "datasets": {"train": crops | LOADER, "test": data_section(folder, "test")},
        "netG": network_section(),
        "train": {
            "total_iter": 4,
            "G_lossfn_type": "charbonnier",
            "G_optimizer_lr": 1e-3,
            "G_scheduler_periods": 100,
            "E_decay": 0.9,
            "checkpoint_print": 1,
            # These steps come after the last step. So a run validates and saves only at its end.
            "checkpoint_test": 1000,
            "checkpoint_save": 1000,
        },
        # A report would take half of the time of a run of the network "odd".
        "logging": {"use_tensorboard": False, "use_report": False},
    }
    path = folder / "options.json"
    path.write_text(json.dumps(options | changes), encoding="utf-8")
    return path


def network_section(**changes: Any) -> dict[str, Any]:
    """Return a section `netG` of a tiny VRT with spikes.

    changes: keys to change.
    """
    values = {
        "net_type": "vrt",
        "upscale": 1,
        "in_chans": 3,
        "img_size": [2, 32, 32],
        "window_size": [2, 4, 4],
        # Numbers of blocks: of the seven stages of the U-shape, then of one group that refines.
        "depths": [2] + [1] * 7,
        "indep_reconsts": [],
        "embed_dims": [8] * 8,
        "num_heads": [2] * 8,
        # Share of the blocks with mutual attention, rounded down: 1 of the 2 blocks of stage 1, and
        # no block of the stages that have only one.
        "mul_attn_ratio": 0.5,
        "deformable_groups": 2,
        "drop_path_rate": 0.2,
        "fusion": {"type": "gated", "features": 8, "layers": 1, "gate_bias": 0.0},
    }
    return values | changes


def write_odd_options(folder: Path, **changes: Any) -> Path:
    """Write the files of `write_options`, but with the network "odd" in place of a VRT.

    "odd" is a network of one convolution (tests/dist/odd_worker.py), so a run is faster.
    """
    return write_options(folder, netG={"net_type": "odd"}, **changes)


# ---- Runs ----


def train(
    options: Path, *overrides: str, ranks: int = 1, limit_s: float = 120, **launch: Any
) -> RankResult:
    """Run main_train_vrt.py on these ranks until it ends, with success or with an error.

    overrides: options as on the command line, e.g. "train.total_iter=2".
    ranks: number of ranks.
    limit_s: longest time of the run, in seconds, on an idle machine.
    launch: more arguments of `run_ranks` (tests/dist/launching.py).
    """
    return run_ranks(ranks, MAIN, "--opt", str(options), *overrides, limit_s=limit_s, **launch)


def odd_command(
    options: Path,
    *overrides: str,
    case: str = "none",
    struck_rank: int = 0,
    at_step: int = 0,
    program: str = "train",
) -> tuple[str, ...]:
    """Return the command of odd_worker.py, a run in which something goes wrong.

    case: what goes wrong, by its name in odd_worker.py.
    struck_rank: number of the rank on which something goes wrong.
    at_step: number of the step at which something goes wrong. Some cases have no step. In the case
        "slow", at_step is a time: the milliseconds by which each step is longer.
    program: "train" or "test".
    """
    worker = ("tests/dist/odd_worker.py", case, str(struck_rank), str(at_step), program)
    return (*worker, "--opt", str(options), *overrides)


def run_odd(
    options: Path, *overrides: str, ranks: int = 1, env: Any = None, **fault: Any
) -> RankResult:
    """Run odd_worker.py on these ranks until it ends.

    env: variables of the environment, as `run_ranks` takes them.
    fault: keyword arguments of `odd_command`, which say what goes wrong and where.
    """
    return run_ranks(ranks, *odd_command(options, *overrides, **fault), limit_s=120, env=env)


# ---- What a run leaves ----


def folder_of_run(options: Path, task: str = "run") -> Path:
    """Return the folder of a run."""
    return options.parent / "experiments" / task


def latest_checkpoint(options: Path, task: str = "run") -> dict[str, Any]:
    """Return the latest checkpoint of a run."""
    path = folder_of_run(options, task) / "checkpoints" / "checkpoint_latest.pth"
    return torch.load(path, weights_only=True)


def state_of(options: Path, task: str = "run") -> dict[str, Any]:
    """Return the latest checkpoint without the options, which name the task.

    Two runs that trained alike have the same state, bit for bit.
    """
    checkpoint = latest_checkpoint(options, task)
    checkpoint.pop("options", None)
    return checkpoint


def equal_checkpoints(a: Any, b: Any) -> bool:
    """Return whether two checkpoints are equal in each bit.

    Calls itself for the parts of dicts, lists and tuples, so `a` and `b` may also be parts.
    """
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal_checkpoints(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal_checkpoints, a, b))
    return a == b


def history(options: Path, task: str = "run") -> dict[str, list[list[float]]]:
    """Return the curves of a run: name -> [step, value] for each step."""
    return json.loads((folder_of_run(options, task) / "training_history.json").read_text())


def events_of(options: Path) -> Any:
    """Return what a run wrote for TensorBoard."""
    # The import takes seconds, and few tests need it.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = folder_of_run(options) / "tb_logger"
    return EventAccumulator(str(folder)).Reload()


def files_of_run(folder: Path) -> dict[str, bytes]:
    """Return the content of the files of a run that a second start must not change.

    Left out are the log, the options of each start, and .lock, which names the running process.
    """
    found = {}
    for path in folder.rglob("*"):
        first_folder = path.relative_to(folder).parts[0]
        is_of_start = first_folder in ("log", "options") or path.name == ".lock"
        if path.is_file() and not is_of_start:
            found[str(path)] = path.read_bytes()
    return found
