"""A training run small enough for a test: clips of 32 x 32, a VRT of one block a stage, seconds on
one core.
"""

import json
from pathlib import Path
from typing import Any

import torch

from tests.dist.launching import RankResult, run_ranks
from tests.helpers.clip_files import section, write_clip, write_info

MAIN = "main_train_vrt.py"
LOADER = {"dataloader_num_workers": 1, "dataloader_batch_size": 1}


def write_options(folder: Path, instants: int = 0, **changes: Any) -> Path:
    """Clips (4 + 4 training frames, 3 test clips of different length) and an option file; returns
    its path.
    """
    how: dict[str, Any] = {"h": 16, "w": 16, "instants": instants}
    for number in range(2):
        write_clip(folder, f"train{number}", frames=4, seed=number, **how)
    for number in range(3):
        write_clip(
            folder, f"test{number}", split="test", frames=2 + number, seed=10 + number, **how
        )
    write_info(folder, h=16, w=16)
    crops = section(folder, num_frame=2, gt_size=32, use_hflip=True, use_rot=True)
    options: dict[str, Any] = {
        "task": "run",
        "path": {"root": str(folder / "experiments")},
        "datasets": {"train": crops | LOADER, "test": section(folder, "test")},
        "netG": network(),
        "train": {
            "total_iter": 4, "G_lossfn_type": "charbonnier", "G_optimizer_lr": 1e-3,
            "G_scheduler_periods": 100, "E_decay": 0.9, "checkpoint_print": 1,
            "checkpoint_test": 1000, "checkpoint_save": 1000,
        },
        "logging": {"use_tensorboard": False},
    }  # fmt: skip
    path = folder / "options.json"
    path.write_text(json.dumps(options | changes), encoding="utf-8")
    return path


def network(**changes: Any) -> dict[str, Any]:
    values = {
        "net_type": "vrt", "upscale": 1, "in_chans": 3, "img_size": [2, 32, 32],
        "window_size": [2, 4, 4], "depths": [2] + [1] * 7, "indep_reconsts": [],
        "embed_dims": [8] * 8, "num_heads": [2] * 8, "mul_attn_ratio": 0.5, "deformable_groups": 2,
        "drop_path_rate": 0.2,
        "fusion": {"type": "gated", "features": 8, "layers": 1, "gate_bias": 0.0},
    }  # fmt: skip
    return values | changes


def train(
    options: Path, *overrides: str, ranks: int = 1, limit_s: float = 120, **launch: Any
) -> RankResult:
    """Run main_train_vrt.py on these ranks to the end, whatever the end is."""
    return run_ranks(ranks, MAIN, "--opt", str(options), *overrides, limit_s=limit_s, **launch)


def write_odd(folder: Path, **changes: Any) -> Path:
    """`write_options` for the network of tests/dist/odd_worker.py."""
    return write_options(folder, netG={"net_type": "odd"}, **changes)


def odd_command(
    options: Path,
    *overrides: str,
    case: str = "none",
    struck: tuple[int, int] = (0, 0),
    program: str = "train",
) -> tuple[str, ...]:
    """odd_worker.py and its arguments: what goes wrong, on which rank, at which step, in training
    or testing.
    """
    return (
        "tests/dist/odd_worker.py",
        case,
        *map(str, struck),
        program,
        "--opt",
        str(options),
        *overrides,
    )


def odd(options: Path, *overrides: str, ranks: int = 1, env: Any = None, **how: Any) -> RankResult:
    """Run odd_worker.py on these ranks to the end. how: as `odd_command`."""
    return run_ranks(ranks, *odd_command(options, *overrides, **how), limit_s=120, env=env)


def experiment(options: Path, task: str = "run") -> Path:
    return options.parent / "experiments" / task


def latest(options: Path, task: str = "run") -> dict[str, Any]:
    return torch.load(
        experiment(options, task) / "checkpoints" / "checkpoint_latest.pth", weights_only=True
    )


def state_of(options: Path, task: str = "run") -> dict[str, Any]:
    """The latest checkpoint without the options, which name the task: what two runs alike have
    alike, bit for bit.
    """
    return {key: value for key, value in latest(options, task).items() if key != "options"}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def history(options: Path, task: str = "run") -> dict[str, list[list[float]]]:
    return json.loads((experiment(options, task) / "training_history.json").read_text())


def events_of(options: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = experiment(options) / "tb_logger"
    return EventAccumulator(str(folder)).Reload()


def files_of_run(folder: Path) -> dict[str, bytes]:
    """The content of all files but the log, the options of each start, and the lock's owner."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {
        str(p): p.read_bytes()
        for p in paths
        if p.relative_to(folder).parts[0] not in ("log", "options")
    }
