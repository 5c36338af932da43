"""The device that a process computes on: an accelerator of any maker, or the CPU.

An accelerator is a GPU or NPU. Its *kind* is torch.device.type: "cuda" (NVIDIA and AMD), "xpu"
(Intel), "mps" (Apple), "npu" (Ascend) or "musa" (Moore Threads). The kind of the CPU is "cpu".

Other modules ask this module which accelerator there is, how much memory it has, when its work is
done, and which random generators it has. So the other modules name no kind, and for a new kind only
this module changes. There are two exceptions: utils/dist/gpu.py has what only CUDA has, and
models/vrt/forms.py says which form of a computation runs on which kind.

What must stay: `kind`, `count`, `hiding_variable` and `is_cpu_wanted` start no accelerator. They
are called before `gpu.choose_gpus` sets CUDA_VISIBLE_DEVICES, and CUDA reads this variable only
once, at its start (test_nothing_starts_cuda_before_the_process_has_its_gpu). Free to change: the
texts for the log, together with test_device.py, and the tables of kinds and makers.

Tests: tests/parts/utils/test_device.py, tests/parts/utils/test_gpu.py
"""

import importlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from utils.errors import DistError
from utils.words import counted

GB = 1e9  # bytes
# For each kind, the environment variable that hides some accelerators from a process. E.g. with
# CUDA_VISIBLE_DEVICES=2,3 a process sees only these two GPUs.
HIDING_VARIABLES = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "musa": "MUSA_VISIBLE_DEVICES",
}
# Kinds that use the memory of the host. If this memory is full, the system moves some of it to the
# disk (it swaps), and raises no error at once. Copies to a device of these kinds are not faster
# from pinned memory, i.e. memory that cannot be swapped.
KINDS_WITH_SHARED_MEMORY = ("cpu", "mps")
# The PCI address of the small GPU within a processor of Intel. Many machines have it, and torch
# cannot use it, so `notes_on_unused` leaves it out.
INTEGRATED_GPU_ADDRESS = "0000:00:02.0"


class Maker(NamedTuple):
    """How accelerators of one maker are recognised, also if torch cannot use them."""

    name: str  # for messages, e.g. "an AMD GPU"
    files: str  # pattern of the files of its driver, e.g. "dev/mtgpu*" for /dev/mtgpu0, ...
    kind: str  # its kind in torch
    # The Python package that adds the kind to torch. "" if torch itself must be built for the kind.
    package: str = ""


# To add a maker, add a row here and a row in HIDING_VARIABLES. AMD needs no package. The row of AMD
# is only for `notes_on_unused`, the function that names accelerators that torch does not use.
# NVIDIA has no row, because utils/dist/gpu.py raises an error if torch cannot use the GPUs of
# NVIDIA.
MAKERS = (
    Maker("an AMD GPU", files="dev/kfd", kind="cuda"),
    Maker("an Ascend NPU", files="dev/davinci[0-9]*", kind="npu", package="torch_npu"),
    Maker("a Moore Threads GPU", files="dev/mtgpu*", kind="musa", package="torch_musa"),
)


# ---- Which one -------------------------------------------------------------------------------


def kind() -> str:
    """Return the kind of device that this process computes on, e.g. "cpu" or "cuda".

    The kind of a device is its torch.device.type. This function starts no accelerator.
    """
    return "cpu" if count() == 0 else _kind_of_torch()


def count() -> int:
    """Return how many accelerators this process sees, without starting one of them."""
    if is_cpu_wanted():
        return 0
    # Do not call torch.accelerator.device_count here, because it would start CUDA. CUDA reads its
    # environment variables once, at its start, and the option gpu_ids may still change them.
    return torch.get_device_module(_kind_of_torch()).device_count()


def hiding_variable() -> str:
    """Return the variable that hides accelerators of this machine, e.g. ZE_AFFINITY_MASK on Intel.

    A kind that is not in HIDING_VARIABLES, e.g. "mps", has no variable of its own. Then the result
    is CUDA_VISIBLE_DEVICES. This variable cannot choose among several accelerators of such a kind.
    But it can hide all of them, because `is_cpu_wanted` reads the variable for every kind.
    """
    return HIDING_VARIABLES.get(_kind_of_torch(), "CUDA_VISIBLE_DEVICES")


def is_cpu_wanted() -> bool:
    """Return whether the environment asks for the CPU.

    CUDA_VISIBLE_DEVICES                      result
    not set                                   False
    "" or "-1", which name no device          True
    "0,1", "GPU-8f2a..." or "MIG-..."         False, because these texts name devices

    The variable is used for accelerators of all makers, so that one variable asks for the CPU on
    every machine.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return False
    # The text begins with a number, "GPU-" or "MIG-", perhaps after blanks.
    names_a_device = re.match(r"\s*(\d|GPU-|MIG-)", visible)
    return not names_a_device


def device_of_rank(local_rank: int) -> torch.device:
    """Return the accelerator of a rank (a process of a run), or the CPU if there is none.

    `is_available` starts CUDA, and CUDA reads CUDA_VISIBLE_DEVICES only once, at its start. So call
    this function only after `gpu.choose_gpus` (utils/dist/gpu.py), which sets the variable.

    local_rank: number of the rank on this host, from 0.
    """
    if is_cpu_wanted() or not torch.get_device_module(_kind_of_torch()).is_available():
        return torch.device("cpu")
    # Some launchers show each process only its own accelerator. Then the accelerator has the number
    # 0 on each rank.
    index = 0 if count() == 1 else local_rank
    return torch.device(_kind_of_torch(), index)


def _kind_of_torch() -> str:
    """Return the kind of accelerator that this torch is built for, e.g. "cuda" or "xpu".

    Returns "cuda" if this torch is built for no accelerator. This is safe for the callers, because
    each torch has the module torch.cuda, and without a GPU its device count is 0.
    """
    _load_packages()
    accelerator = torch.accelerator.current_accelerator()
    return "cuda" if accelerator is None else accelerator.type


@cache
def _load_packages() -> None:
    """Load the package of an accelerator of this machine, if torch has not loaded it already.

    A package is loaded only if its accelerator is there: `_is_here` looks for the files of its
    driver below the root folder "/".
    """
    for maker in MAKERS:
        is_loaded = hasattr(torch, maker.kind)
        if maker.package and _is_here(maker, Path("/")) and not is_loaded:
            # A package may raise any error. `notes_on_unused` loads the package again, and tells
            # the user which error it raises.
            with suppress(Exception):
                importlib.import_module(maker.package)


def backend(device: torch.device) -> str:
    """Return the name of the backend by which ranks exchange tensors, e.g. "nccl".

    A rank is a process of a run. Raises DistError if torch has no backend for this kind of device.
    """
    try:
        return torch.distributed.get_default_backend_for_device(device)
    except ValueError as e:
        raise DistError(
            what=f"torch has no backend for ranks on {device.type}",
            where=f"torch {torch.__version__}",
            expected="a backend that exchanges tensors between devices of this kind",
            do="update the package that brings this device to torch, or train in one process",
        ) from e


def make_current(device: torch.device) -> None:
    """Make this accelerator the one that "cuda" without a number means. Does nothing for a CPU."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)


# ---- Names and notes for the log -------------------------------------------------------------


def name(device: torch.device) -> str:
    """Return the name of an accelerator, e.g. "NVIDIA H100 80GB HBM3", or "CPU, 8 threads"."""
    if device.type == "cpu":
        return f"CPU, {counted(torch.get_num_threads(), 'thread')}"
    # torch.mps has no function for the name.
    get_name = getattr(torch.get_device_module(device), "get_device_name", None)
    if get_name is None:
        return f"{platform.machine()} ({device.type})"
    return get_name(device)


def notes(device: torch.device, ranks: int, other_forms: list[str]) -> list[str]:
    """Return what the log says of a device after its name, one text per fact.

    ranks: number of processes of the run.
    other_forms: sentences from `stand_ins` in models/vrt/forms.py. Each says that a computation
        runs in another form on this device than on NVIDIA's GPUs, e.g. "our own sampling stands in
        for torchvision's deformable convolution".
    """
    facts = []
    if device.type == "cpu" and is_cpu_wanted():
        facts.append("as CUDA_VISIBLE_DEVICES asks")
    if ranks > 1:
        facts.append(f"ranks exchange by {backend(device)}")
    return [*facts, *other_forms, *notes_on_unused(device)]


def notes_on_unused(device: torch.device, root: Path = Path("/")) -> list[str]:
    """Return why accelerators of this machine are not used, one text per accelerator.

    Returns [] if one of them is used, or if the user asked for the CPU.

    root: the folder below which the files of drivers are looked for, e.g. <root>/dev/kfd. Only
        tests give another folder than "/", the root folder of the system.
    """
    if device.type != "cpu" or is_cpu_wanted():
        return []
    reasons = []
    for maker in MAKERS:
        if _is_here(maker, root):
            reasons.append(f"{maker.name} is not used: {_reason_against(maker)}")
    if any(_intel_gpus(root)):
        reasons.append("an Intel GPU is not used: this torch is not built for it (xpu)")
    # macOS has no files of a driver. Each Mac with an ARM processor has a GPU of Apple.
    if sys.platform == "darwin" and platform.machine() == "arm64":
        fault = "has no mps"
        if torch.backends.mps.is_built():
            fault = "does not run on this macOS"
        reasons.append(f"the Apple GPU is not used: this torch {fault}")
    return reasons


def _is_here(maker: Maker, root: Path) -> bool:
    """Return whether this machine has files of the maker's driver.

    root: the root folder "/" of the system, or another folder in tests.
    """
    return any(root.glob(maker.files))


def _reason_against(maker: Maker) -> str:
    """Return why torch does not use an accelerator of this machine.

    E.g. "torch_npu is not installed".
    """
    if not maker.package:
        # The name of torch's build for this kind. torch calls AMD's GPUs "cuda" too, but its build
        # for them is called ROCm. NVIDIA does not come here, because it is not in MAKERS.
        build = "ROCm" if maker.kind == "cuda" else maker.kind
        return f"this torch is not built for it ({build})"
    if importlib.util.find_spec(maker.package) is None:
        return f"{maker.package} is not installed"
    try:
        importlib.import_module(maker.package)
    except Exception as e:  # whatever a package raises that does not fit torch or its driver
        return f"{maker.package} does not load ({e})"
    return f"{maker.package} is loaded and finds no device"


def _intel_gpus(root: Path) -> Iterator[Path]:
    """Yield the folders of Intel's GPUs, without the small GPU within a processor."""
    for folder in root.glob("sys/class/drm/renderD*/device"):
        # A GPU that is not on the PCI bus has no file `vendor`, and reading this file raises an
        # OSError. 0x8086 is the number of Intel.
        with suppress(OSError):
            is_intel = (folder / "vendor").read_text().strip() == "0x8086"
            if is_intel and folder.resolve().name != INTEGRATED_GPU_ADDRESS:
                yield folder


# ---- The work of a device --------------------------------------------------------------------


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work. Call this before a time is read."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def pins_memory(device: torch.device) -> bool:
    """Return whether copies to the device are faster from pinned memory."""
    return device.type not in KINDS_WITH_SHARED_MEMORY


def has_native_bfloat16(device: torch.device) -> bool:
    """Return whether the device computes in bfloat16 itself, and does not emulate it.

    GPUs before Ampere (V100, T4, MX450) emulate it, several times slower than float16.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # If torch's module of this kind has no such function, assume that the device has bfloat16.
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "is_bf16_supported"):
        return True
    return module.is_bf16_supported()


def has_fused_optimizers(device: torch.device) -> bool:
    """Return whether torch's optimizers have the setting `fused=True` on this device.

    With this setting, a step of the optimizer updates all weights at once.
    """
    return device.type == "cuda"


def forked_generators(device: torch.device) -> AbstractContextManager[None]:
    """Return a context that restores the default random generators at its end.

    So random numbers that are drawn inside the context do not change the numbers that are drawn
    after it, on the CPU and on the device. The exception is "mps": the context cannot restore the
    generator of this kind, and restores only the generator of the CPU.
    """
    # fork_rng restores the generator of the CPU, and the generators of the devices in its list.
    if device.type in ("cpu", "mps"):
        # fork_rng requires the name of a kind. With an empty list the name has no effect.
        return torch.random.fork_rng([], device_type="cuda")
    return torch.random.fork_rng([device], device_type=device.type)


# ---- The memory of a device ------------------------------------------------------------------


def peak_gb(device: torch.device) -> float | None:
    """Return the most memory that torch's tensors had on the device so far, in GB (1e9 bytes).

    Returns None on the CPU, and on kinds of devices on which torch does not count the memory.
    """
    module = torch.get_device_module(device)
    most_bytes = getattr(module, "max_memory_allocated", None)
    if device.type == "cpu" or most_bytes is None:
        return None
    return most_bytes(device) / GB


def total_gb(device: torch.device) -> float:
    """Return the size of an accelerator's memory in GB, or of the host's memory for the CPU."""
    module: Any = torch.get_device_module(device)
    # macOS says how much of the memory the GPU should use at most.
    if device.type == "mps":
        return module.recommended_max_memory() / GB
    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB
    return module.get_device_properties(device).total_memory / GB


def memory_gb(device: torch.device) -> tuple[float, float] | None:
    """Return (most memory that was used, size of the memory) of an accelerator, e.g. (61.2, 80.0).

    Both are in GB. Returns None if either is not known. The used memory is the peak of torch's
    tensors, plus the present memory of other programs and libraries. Memory that torch keeps for
    reuse does not count, because it fills the accelerator in a healthy run, too.
    """
    peak = peak_gb(device)
    module: Any = torch.get_device_module(device)
    if peak is None or not hasattr(module, "mem_get_info"):
        return None
    # Memory that is in use, but not reserved by torch, belongs to other programs and libraries. The
    # two numbers are read one after the other and may not fit each other, so the difference might
    # be below 0. Then take 0.
    free_bytes, total_bytes = module.mem_get_info(device)
    reserved_bytes = module.memory_reserved(device)
    others_bytes = max(0, total_bytes - free_bytes - reserved_bytes)
    return peak + others_bytes / GB, total_bytes / GB


def free_kept_memory(device: torch.device) -> None:
    """Give back the memory of deleted tensors, which torch keeps for later tensors.

    Then other programs on the device can use this memory. Existing tensors stay as they are.
    """
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that an accelerator or the host has no memory left.

    If so, callers try again with something smaller, e.g. with smaller tiles.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The host and mps raise a plain RuntimeError. Only its text says that memory is missing.
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    is_of_host = "DefaultCPUAllocator" in text
    is_of_mps = "backend out of memory" in text
    return is_of_host or is_of_mps


def swaps_when_full(device: torch.device) -> bool:
    """Return whether the system swaps if the memory is full, which can take minutes.

    If False, a full device raises an error at once. Then a caller may try a size, e.g. a tile of
    256 pixels, and halve it after an error. If True, there is no such error, so a caller must
    compare the size with the memory before it tries.
    """
    return device.type in KINDS_WITH_SHARED_MEMORY
