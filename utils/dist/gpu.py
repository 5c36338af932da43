"""What means GPUs of CUDA: which of them a process uses, decided before CUDA starts; errors where
torch cannot use them; how busy they are. What any accelerator has is in `utils.device`.
"""

import logging
import os
import re
import shutil
import subprocess
import warnings
from contextlib import suppress
from pathlib import Path

import torch
from torch.distributed import Store

from utils import device as devices
from utils.dist import process
from utils.dist.state import RUN
from utils.errors import DistError

logger = logging.getLogger(__name__)


def is_cuda(device: torch.device) -> bool:
    """Whether CUDA runs the device, or ROCm, which answers by CUDA's names."""
    return device.type == "cuda"


def choose_gpus(gpu_ids: list[int] | None, opt_path: str) -> None:
    """Make the GPUs of `gpu_ids` visible to a single process, unless the environment chooses GPUs;
    say what differs.

    Call it before CUDA starts, for CUDA reads the variable once. torch.cuda.is_available() starts
    CUDA, device_count() does not. gpu_ids: None means all; [] means the CPU. opt_path: the option
    file, for the advice.
    """
    if gpu_ids is None:
        return
    launch = RUN.launch
    note = ""
    # An empty CUDA_VISIBLE_DEVICES asks for the CPU, whatever the accelerator is.
    variable = devices.visible_by() if gpu_ids else "CUDA_VISIBLE_DEVICES"
    chosen = os.environ.get(variable)
    listed = ",".join(map(str, gpu_ids))
    if launch.world_size == 1 and chosen is None:
        os.environ[variable] = listed
    count = devices.count()
    if not gpu_ids or count == 0:
        return
    if launch.world_size > 1:
        ranks = min(count, int(os.environ.get("LOCAL_WORLD_SIZE") or launch.world_size))
        if gpu_ids[:count] != list(range(ranks)):
            note = (
                f"gpu_ids [{listed}] has no effect with several ranks: "
                "each rank takes the GPU of its local rank; "
                f"{variable}={listed} in front of the launcher chooses them"
            )
    elif chosen is None and count > 1:
        note = (
            f"gpu_ids lists {len(gpu_ids)} GPUs; "
            f"a single process uses the first, GPU {gpu_ids[0]}. To use all: "
            f"{variable}={listed} ./launch_train.sh {count} {opt_path}"
        )
    elif chosen not in (None, listed):
        note = f"{variable}={chosen} wins over gpu_ids [{listed}]"
    if note and launch.rank == 0:
        logger.warning("%s", note)


def require_usable_gpus() -> None:
    """DistError where this machine has GPUs that torch cannot use and CUDA_VISIBLE_DEVICES does not
    ask for the CPU.
    """
    if devices.is_cpu_wanted():
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    with warnings.catch_warnings(
        record=True
    ) as reasons:  # torch's own warning, e.g. "driver ... is too old"
        warnings.simplefilter("always")
        if devices.of_rank(0).type != "cpu":
            return
    # A container without GPUs still sees the host's /proc/driver/nvidia, but no device files.
    gpus = sum(os.access(path, os.R_OK | os.W_OK) for path in Path("/dev").glob("nvidia[0-9]*"))
    driver = "unknown"
    if program := shutil.which("nvidia-smi"):
        command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        with suppress(OSError, subprocess.SubprocessError):  # the driver and its library may differ
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=20, check=True
            ).stdout
            rows = [line.strip() for line in answer.splitlines() if line.strip()]
            gpus, driver = len(rows), rows[0] if rows else "unknown"
    if not gpus:
        return
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    said = "".join(f"; torch says: {str(w.message).splitlines()[0]}" for w in reasons[:1])
    said += "" if visible is None else f"; CUDA_VISIBLE_DEVICES={visible}"
    raise DistError(
        f"torch cannot use the {gpus} GPU{'s' if gpus > 1 else ''} of this machine",
        f"torch {torch.__version__}, {built}; NVIDIA driver {driver}{said}",
        "a driver and a torch that fit each other, and visible GPUs that exist",
        "update the driver, or install the torch for it (https://pytorch.org/get-started), "
        'or train on the CPU: CUDA_VISIBLE_DEVICES="" in front of the same command',
    )


def require_kernels(device: torch.device) -> None:
    """DistError where this torch was not built for the GPU: its first kernel would find "no kernel
    image".
    """
    if not is_cuda(device):
        return
    capability, built_for = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    if advice := missing_wheel(capability, built_for):
        raise DistError(
            "this torch has no kernels for the {} (compute capability {}.{})".format(
                devices.name(device), *capability
            ),
            f"torch {torch.__version__}, built for {' '.join(built_for)}",
            "a torch that was built for this GPU",
            f"{advice} (https://pytorch.org/get-started)",
        )


def missing_wheel(capability: tuple[int, int], built_for: list[str]) -> str:
    """What to do about a GPU of this compute capability; "" where a torch built for these
    architectures runs on it.

    built_for: torch.cuda.get_arch_list(). A binary sm_XY runs on X.Y and on later minor versions,
    compute_XY (PTX) on every later GPU (CUDA C++ programming guide, 5.8).
    """
    found = re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(built_for))
    # none: for GPUs of another maker
    archs = [(kind, (int(major), int(minor))) for kind, major, minor in found]
    if not archs or any(
        a <= capability and (kind == "compute" or a[0] == capability[0]) for kind, a in archs
    ):
        return ""
    if capability < (5, 0):
        return "use the CPU or another GPU: no torch from 2.8 on was built for this one"
    # pytorch#172352: CUDA 12.8 and later leave Volta and older out; torch 2.14 is the last one with
    # CUDA 12.6.
    cuda = (
        "2.8 to 2.14 for CUDA 12.6 (cu126)"
        if capability < (7, 5)
        else "for CUDA 12.8 or later, its newest version"
    )
    return f"install torch {cuda}"


def claim(store: Store, rank: int, uuid: str) -> None:
    """DistError where another rank has claimed the same GPU: NCCL would only say "Duplicate GPU
    detected".
    """
    other = store.compare_set(f"gpu/{uuid}", "", str(rank)).decode()
    if other != str(rank):
        do = (
            "start one rank per visible GPU, with LOCAL_RANK from 0; "
            "or make another GPU visible to each rank"
        )
        raise DistError(
            f"ranks {other} and {rank} use the same GPU, {uuid}",
            "the launch",
            "a GPU for each rank",
            do,
        )


def identity(device: torch.device) -> str:
    """Return a name of the accelerator that no other one has, whoever sees it by which number."""
    properties = torch.get_device_module(device).get_device_properties(device)
    if hasattr(properties, "uuid"):
        return str(properties.uuid)
    visible = os.environ.get(devices.visible_by(), "")
    return f"{device} on {process.machine()} {visible}".strip()


def usage(device: torch.device) -> dict[str, float] | None:
    """{"busy": 0..1 over the driver's last sample, "used_gb", "total_gb"} of the whole GPU, in 1e9
    bytes.

    None on the CPU, and where the driver does not report it (no nvidia-ml-py, a slice of a GPU).
    """
    if not is_cuda(device):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        busy = torch.cuda.utilization(device) / 100
        free, total = torch.cuda.mem_get_info(device)
    except (RuntimeError, pynvml.NVMLError):
        return None
    return {"busy": busy, "used_gb": (total - free) / 1e9, "total_gb": total / 1e9}


def describe(found: dict[str, float]) -> str:
    """The `usage` of one GPU in words."""
    return (
        f"GPU {found['busy']:.0%} busy, {found['used_gb']:.1f} of {found['total_gb']:.1f} GB used"
    )
