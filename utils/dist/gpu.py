"""Choose and check GPUs of NVIDIA (CUDA) and of AMD, which torch also calls "cuda".

* `choose_gpus` decides which GPUs a process sees, before CUDA starts.
* `require_usable_gpus`, `require_kernels` and `claim` raise errors at the start. Without these
  functions, errors of torch and NCCL would come later, and would not name the cause.
* `usage` tells how busy a GPU is.

Functions that serve every kind of accelerator are in `utils.device`.

What must stay: nothing starts CUDA before `choose_gpus` has run, because CUDA reads its variables
once (test_nothing_starts_cuda_before_the_process_has_its_gpu). Free to change: the order of the
checks, because they only read. New checks may be added.

Tests: tests/parts/utils/test_gpu.py.
"""

import logging
import os
import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed import Store

from utils import device as devices
from utils.dist import process
from utils.dist.state import RUN
from utils.errors import DistError
from utils.words import counted

logger = logging.getLogger(__name__)


def is_cuda(device: torch.device) -> bool:
    """Return whether the device is a GPU of NVIDIA, or of AMD, which torch also calls "cuda"."""
    return device.type == "cuda"


# ---- Which GPUs a process sees ---------------------------------------------------------------


def choose_gpus(gpu_ids: list[int] | None, opt_path: str) -> None:
    """Make the GPUs of the option `gpu_ids` visible to a single process.

    CUDA_VISIBLE_DEVICES may already be set, by the user or the launcher:

        ranks     CUDA_VISIBLE_DEVICES   what this function does
        1         not set                sets the variable to gpu_ids
        1         set                    leaves the variable as it is
        several   set or not             leaves the variable as it is: each rank takes its own GPU

    Logs a warning if other GPUs are used than the option lists. Test:
    test_gpu_ids_choose_the_gpus_if_nothing_else_has_chosen_them.

    Call this before CUDA starts, because CUDA reads CUDA_VISIBLE_DEVICES only once, at its start.
    torch.cuda.is_available() starts CUDA, and device_count() does not.

    gpu_ids: numbers of GPUs, e.g. [0, 1]. None means all; [] means the CPU.
    opt_path: the option file, for the advice.
    """
    if gpu_ids is None:
        return
    # The variable that chooses GPUs of this maker. To get the CPU, set CUDA_VISIBLE_DEVICES to "",
    # which works for GPUs of every maker.
    variable = devices.hiding_variable() if gpu_ids else "CUDA_VISIBLE_DEVICES"
    ids_of_environment = os.environ.get(variable)  # set by the user or the launcher, or None
    is_single = RUN.launch.world_size == 1
    if is_single and ids_of_environment is None:
        os.environ[variable] = _comma_list(gpu_ids)

    # First set the variable, then count the GPUs, because the variable hides some GPUs.
    count = devices.count()
    if count == 0:
        return  # this process sees no GPU
    if not is_single:
        note = _note_for_ranks(gpu_ids, count, variable)
    elif ids_of_environment is not None:
        note = _note_for_environment(gpu_ids, ids_of_environment, variable)
    elif gpu_ids:
        note = _note_for_single(gpu_ids, count, variable, opt_path)
    else:  # this function has just hidden all GPUs
        note = ""
    if note and RUN.launch.rank == 0:
        logger.warning("%s", note)


def _comma_list(gpu_ids: list[int]) -> str:
    """Return the ids as the variable of the environment lists them, e.g. "0,1"."""
    return ",".join(str(gpu_id) for gpu_id in gpu_ids)


def _note_for_environment(gpu_ids: list[int], ids_of_environment: str, variable: str) -> str:
    """Return the warning if the environment chooses other GPUs than gpu_ids lists, or "" if not.

    ids_of_environment: value of the variable, e.g. "0,1".
    variable: name of the environment variable that chooses GPUs.
    """
    ids_of_option = _comma_list(gpu_ids)
    if ids_of_environment == ids_of_option:
        return ""
    return f"{variable}={ids_of_environment} takes precedence over gpu_ids [{ids_of_option}]"


def _note_for_single(gpu_ids: list[int], count: int, variable: str, opt_path: str) -> str:
    """Return the warning if gpu_ids shows several GPUs to a single process, or "" if not.

    A single process computes on the first visible GPU only.

    count: number of GPUs that this process sees.
    variable: name of the environment variable that chooses GPUs, for the advice.
    opt_path: the option file, for the advice.
    """
    if count == 1:
        return ""
    return (
        f"gpu_ids lists {counted(len(gpu_ids), 'GPU')}; "
        f"a single process uses the first, GPU {gpu_ids[0]}. To use all: "
        f"{variable}={_comma_list(gpu_ids)} ./launch_train.sh {count} {opt_path}"
    )


def _note_for_ranks(gpu_ids: list[int], count: int, variable: str) -> str:
    """Return the warning if several ranks use other GPUs than gpu_ids lists, or "" if not.

    Rank 0 of a host takes GPU 0, rank 1 takes GPU 1, and so on, whatever gpu_ids lists.

    count: number of GPUs that this process sees.
    variable: name of the environment variable that chooses GPUs, for the advice.
    """
    # torchrun sets this variable to the number of ranks on this host. Other launchers may not. Then
    # take the number of all ranks.
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE") or RUN.launch.world_size)
    used_gpus = list(range(min(count, ranks_here)))  # e.g. [0, 1]
    listed_gpus = gpu_ids[:count]  # the list may be longer than the number of visible GPUs
    if listed_gpus == used_gpus:
        return ""
    ids_of_option = _comma_list(gpu_ids)
    # An empty value needs quotes here, so that a reader sees where it ends.
    value = ids_of_option or '""'
    return (
        f"gpu_ids [{ids_of_option}] has no effect with several ranks: "
        "each rank takes the GPU of its local rank; "
        f"{variable}={value} in front of the launcher chooses them"
    )


# ---- GPUs that cannot be used ----------------------------------------------------------------


def require_usable_gpus() -> None:
    """Raise DistError if this machine has NVIDIA GPUs that torch cannot use.

    Without this error, a run would silently train on the CPU. If CUDA_VISIBLE_DEVICES asks for the
    CPU, this raises nothing.
    """
    if devices.is_cpu_wanted():
        return
    # While torch looks for GPUs, it warns of what is wrong, e.g. "The NVIDIA driver on your system
    # is too old". The message below quotes this warning.
    with warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        device = devices.device_of_rank(local_rank=0)
    if device.type != "cpu":
        return
    gpus = _gpus_of_machine()
    if not gpus.count:
        return  # a machine without NVIDIA GPUs trains on the CPU

    # Facts that help to find the cause: how torch was built, and what torch and the user say.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    more_facts = ""
    if reasons:
        first_line = str(reasons[0].message).partition("\n")[0]
        more_facts += f"; torch says: {first_line}"
    if visible is not None:
        more_facts += f"; CUDA_VISIBLE_DEVICES={visible}"
    raise DistError(
        what=f"torch cannot use the {counted(gpus.count, 'GPU')} of this machine",
        where=f"torch {torch.__version__}, {built}; NVIDIA driver {gpus.driver}{more_facts}",
        expected="a driver and a torch that fit each other, and visible GPUs that exist",
        do="update the driver, or install the torch for it (https://pytorch.org/get-started), "
        'or train on the CPU: CUDA_VISIBLE_DEVICES="" in front of the same command',
    )


class _Gpus(NamedTuple):
    """The NVIDIA GPUs of a machine."""

    count: int  # number of GPUs
    driver: str  # version of the driver, e.g. "550.54.15", or "unknown"


def _gpus_of_machine() -> _Gpus:
    """Return the NVIDIA GPUs of this machine, including GPUs that torch cannot see."""
    gpus = _gpus_of_nvidia_smi()
    if gpus is not None:
        return gpus
    # Each GPU has a file /dev/nvidia0, ... A container without GPUs still sees the host's
    # /proc/driver/nvidia, but no such files.
    count = 0
    for path in Path("/dev").glob("nvidia[0-9]*"):
        if os.access(path, os.R_OK | os.W_OK):
            count += 1
    return _Gpus(count, driver="unknown")


def _gpus_of_nvidia_smi() -> _Gpus | None:
    """Return the GPUs that the program nvidia-smi finds.

    Returns None if the program is missing or fails, e.g. because the driver and its library have
    different versions.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    # After 20 s (chosen by hand) the program counts as failed.
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    # One line for each GPU: the version of the driver.
    rows = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if not rows:
        return _Gpus(count=0, driver="unknown")
    return _Gpus(count=len(rows), driver=rows[0])  # all GPUs of a machine have the same driver


def require_kernels(device: torch.device) -> None:
    """Raise DistError if this torch was not built for the GPU.

    Without this error, the first computation would end in "no kernel image is available".
    """
    if not is_cuda(device):
        return
    capability = torch.cuda.get_device_capability(device)  # e.g. (8, 0)
    built_for = torch.cuda.get_arch_list()
    # E.g. "install torch for CUDA 12.8 or later, its newest version". "" if this torch fits.
    advice = torch_to_install(capability, built_for)
    if not advice:
        return
    major, minor = capability
    raise DistError(
        what=f"this torch has no kernels for the {devices.name(device)} (compute capability "
        f"{major}.{minor})",
        where=f"torch {torch.__version__}, built for {' '.join(built_for)}",
        expected="a torch that was built for this GPU",
        do=f"{advice} (https://pytorch.org/get-started)",
    )


def torch_to_install(capability: tuple[int, int], built_for: list[str]) -> str:
    """Return in words which torch to install for a GPU, or "" if the present torch runs on it.

    There is one wheel of torch for each version of CUDA. Each wheel has kernels only for some GPUs.

    A wheel has kernels of two kinds (CUDA C++ programming guide, 5.8):

        kind                  runs on GPUs of compute capability     example
        sm_XY, binary         X.Y, and X with a later minor          sm_80: 8.0 and 8.6, not 9.0
        compute_XY, PTX       X.Y and everything later               compute_90: 9.0, 10.0, 12.0

    capability: compute capability of the GPU, e.g. (8, 6).
    built_for: torch.cuda.get_arch_list(), e.g. ["sm_80", "sm_90", "compute_90"].
    """
    # E.g. ("sm", "10", "0") for sm_100: the last digit is the minor version.
    targets = re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(built_for))
    if not targets:
        return ""  # torch is built for GPUs of another maker
    for kind, major, minor in targets:
        target = (int(major), int(minor))
        is_up_to_gpu = target <= capability  # compares major first, then minor
        is_same_generation = target[0] == capability[0]
        if is_up_to_gpu and (kind == "compute" or is_same_generation):
            return ""
    # 2.8 is the oldest torch that requirements.txt allows.
    if capability < (5, 0):
        return "use the CPU or another GPU: no torch from 2.8 on was built for this one"
    # CUDA 12.8 and later leave out GPUs of Volta and older (pytorch#172352). The last torch for
    # CUDA 12.6 is 2.14.
    if capability < (7, 5):
        return "install torch 2.8 to 2.14 for CUDA 12.6 (cu126)"
    return "install torch for CUDA 12.8 or later, its newest version"


# ---- One GPU for each rank -------------------------------------------------------------------


def claim(store: Store, rank: int, uuid: str) -> None:
    """Claim a GPU for this rank. Raises DistError if another rank has claimed the GPU.

    Without this check NCCL would say only "Duplicate GPU detected". Test:
    test_two_ranks_on_one_gpu_are_both_named.

    store: the key-value store of the run.
    uuid: name of the GPU, which `identity` returns.
    """
    # compare_set writes this rank if the key is empty, and returns what the key then holds.
    owner = store.compare_set(f"gpu/{uuid}", "", str(rank)).decode()
    if owner != str(rank):
        raise DistError(
            what=f"ranks {owner} and {rank} use the same GPU, {uuid}",
            where="the launch",
            expected="a GPU for each rank",
            do="start one rank per visible GPU, with LOCAL_RANK from 0; "
            "or make another GPU visible to each rank",
        )


def identity(device: torch.device) -> str:
    """Return a name of the accelerator that no other accelerator has, e.g. its UUID.

    The number of a device is no such name, because two processes may see two different devices as
    number 0.
    """
    properties = torch.get_device_module(device).get_device_properties(device)
    if hasattr(properties, "uuid"):
        return str(properties.uuid)
    visible = os.environ.get(devices.hiding_variable(), "")
    return f"{device} on {process.machine()} {visible}".strip()


# ---- How busy a GPU is -----------------------------------------------------------------------


def usage(device: torch.device) -> dict[str, float] | None:
    """Return how busy the whole GPU is, with all programs that use it.

    E.g. {"busy": 0.97, "used_gb": 61.2, "total_gb": 80.0}. "busy" is the share of time, 0 to 1, in
    which the GPU computed during the driver's last sample. "used_gb" and "total_gb" are the used
    memory and the whole memory of the GPU, in GB (1e9 bytes).

    Returns None on the CPU. Also returns None if the driver does not report these values: without
    the package nvidia-ml-py, or on a slice of a GPU (MIG).
    """
    if not is_cuda(device):
        return None
    try:
        import pynvml  # of the package nvidia-ml-py, which torch.cuda.utilization needs
    except ImportError:
        return None
    try:
        busy = torch.cuda.utilization(device) / 100  # torch gives percent
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    except (RuntimeError, pynvml.NVMLError):
        return None
    used_bytes = total_bytes - free_bytes
    return {"busy": busy, "used_gb": used_bytes / 1e9, "total_gb": total_bytes / 1e9}


def describe(use: dict[str, float]) -> str:
    """Return the `usage` of a GPU in words: "GPU 97% busy, 61.2 of 80.0 GB used"."""
    return f"GPU {use['busy']:.0%} busy, {use['used_gb']:.1f} of {use['total_gb']:.1f} GB used"
