"""The device that a process computes on: the accelerator of this machine, whatever its make, or the
CPU.

Who means the accelerator asks here: which one, its memory, its events, its generators. What means
CUDA itself is in `utils.dist.gpu`. Which form of a computation a device has is in
`models.vrt.forms`.
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

GB = 1e9
# Variables by which a process sees some of the accelerators of its machine.
VISIBLE = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "musa": "MUSA_VISIBLE_DEVICES",
}
# Kinds whose memory is that of the host: a pinned copy would not be faster, a full one swaps.
SHARED_MEMORY = ("cpu", "mps")
INTEGRATED = "0000:00:02.0"  # where Intel's processors have their own small GPU


class Make(NamedTuple):
    """An accelerator by its files.

    files: pattern below the root. kind: name of the kind in torch. package: name of the package
    that brings the kind to torch; "": torch is built for it, or not.
    """

    name: str
    files: str
    kind: str
    package: str = ""


MAKES = (
    Make("an AMD GPU", "dev/kfd", "cuda"),
    Make("an Ascend NPU", "dev/davinci[0-9]*", "npu", "torch_npu"),
    Make("a Moore Threads GPU", "dev/mtgpu*", "musa", "torch_musa"),
)


# ---- Which one -------------------------------------------------------------------------------


def kind() -> str:
    """Return the kind of device that this process computes on, in torch's words: "cpu", "cuda"...

    It starts no accelerator.
    """
    return "cpu" if count() == 0 else _kind_of_torch()


def count() -> int:
    """Return how many accelerators this process sees. It starts none."""
    if is_cpu_wanted():
        return 0
    # torch.accelerator.device_count would start CUDA, which reads its variables once.
    return torch.get_device_module(_kind_of_torch()).device_count()


def visible_by() -> str:
    """Return the variable by which a process sees some of the accelerators of this machine."""
    return VISIBLE.get(_kind_of_torch(), "CUDA_VISIBLE_DEVICES")


def is_cpu_wanted() -> bool:
    """Whether the environment asks for the CPU: CUDA_VISIBLE_DEVICES is set and names no device."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and not re.match(r"\s*(\d|GPU-|MIG-)", visible)


def of_rank(local_rank: int) -> torch.device:
    """Return the accelerator of a rank: the only one, where the launcher has chosen it. Else the
    CPU.
    """
    if is_cpu_wanted() or not torch.get_device_module(_kind_of_torch()).is_available():
        return torch.device("cpu")
    return torch.device(_kind_of_torch(), 0 if count() == 1 else local_rank)


def _kind_of_torch() -> str:
    """Return the kind that this torch is made for; "cuda" for none, of which it then sees none."""
    _load_packages()
    found = torch.accelerator.current_accelerator()
    return "cuda" if found is None else found.type


@cache
def _load_packages() -> None:
    """Load the package of an accelerator of this machine, where torch has not done it on import."""
    for make in MAKES:
        if make.package and _is_here(make, Path("/")) and not hasattr(torch, make.kind):
            with suppress(Exception):  # `unused` says which, whatever it is
                importlib.import_module(make.package)


def backend(device: torch.device) -> str:
    """Return the name of the backend by which ranks on such devices exchange tensors.

    Raises DistError if torch has none.
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
    """Let what names no index mean this accelerator."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)


# ---- What is said ----------------------------------------------------------------------------


def name(device: torch.device) -> str:
    """Return the model of an accelerator, or the threads on the CPU."""
    if device.type == "cpu":
        return f"CPU, {torch.get_num_threads()} threads"
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return f"{platform.machine()} ({device.type})" if named is None else named(device)


def notes(device: torch.device, ranks: int, stand_ins: list[str]) -> list[str]:
    """Return what a log says of a device besides its name.

    ranks: number of ranks. stand_ins: what runs in another form there, each in a few words.
    """
    found = []
    if device.type == "cpu" and is_cpu_wanted():
        found.append("as CUDA_VISIBLE_DEVICES asks")
    if ranks > 1:
        found.append(f"ranks exchange by {backend(device)}")
    return [*found, *stand_ins, *unused(device)]


def unused(device: torch.device, root: Path = Path("/")) -> list[str]:
    """Return, of each accelerator that this machine has while the CPU computes, why it is not used.

    root: folder with dev and sys.
    """
    if device.type != "cpu" or is_cpu_wanted():
        return []
    found = [
        f"{make.name} is not used: {_reason_against(make)}"
        for make in MAKES
        if _is_here(make, root)
    ]
    if any(_intel_gpus(root)):
        found.append("an Intel GPU is not used: this torch is not built for it (xpu)")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        has = "does not run on this macOS" if torch.backends.mps.is_built() else "has no mps"
        found.append(f"the Apple GPU is not used: this torch {has}")
    return found


def _is_here(make: Make, root: Path) -> bool:
    return any(root.glob(make.files))


def _reason_against(make: Make) -> str:
    if not make.package:
        return f"this torch is not built for it ({'ROCm' if make.kind == 'cuda' else make.kind})"
    if importlib.util.find_spec(make.package) is None:
        return f"{make.package} is not installed"
    try:
        importlib.import_module(make.package)
    except Exception as e:  # whatever a package raises that does not fit torch or its driver
        return f"{make.package} does not load ({e})"
    return f"{make.package} is loaded and finds no device"


def _intel_gpus(root: Path) -> Iterator[Path]:
    for folder in root.glob("sys/class/drm/renderD*/device"):
        with suppress(OSError):
            is_intel = (folder / "vendor").read_text().strip() == "0x8086"
            if is_intel and folder.resolve().name != INTEGRATED:
                yield folder


# ---- Its work --------------------------------------------------------------------------------


def synchronize(device: torch.device) -> None:
    """Wait for what the device still computes."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def pins_memory(device: torch.device) -> bool:
    """Whether copies to the device are faster from pinned memory."""
    return device.type not in SHARED_MEMORY


def has_native_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 itself, and does not emulate it.

    GPUs before Ampere (V100, T4, MX450) emulate it, several times slower than float16.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    module: Any = torch.get_device_module(device)
    return getattr(module, "is_bf16_supported", lambda: True)()


def has_fused_optimizers(device: torch.device) -> bool:
    """Whether torch's optimizers have a form for the device that updates all weights at once."""
    return device.type == "cuda"


def forked_generators(device: torch.device) -> AbstractContextManager[None]:
    """Restore the default generators after the block."""
    # torch.mps has one generator, for which this function of torch does not ask.
    devices = [] if device.type in SHARED_MEMORY else [device]
    return torch.random.fork_rng(devices, device_type="cuda" if not devices else device.type)


# ---- Its memory ------------------------------------------------------------------------------


def peak_gb(device: torch.device) -> float | None:
    """Return the most memory that torch's tensors had there, in GB; None if it is not counted."""
    module = torch.get_device_module(device)
    counted = getattr(module, "max_memory_allocated", None)
    if device.type == "cpu" or counted is None:
        return None
    return counted(device) / GB


def total_gb(device: torch.device) -> float:
    """Return the memory of an accelerator, or of this host, in GB."""
    module: Any = torch.get_device_module(device)
    if device.type == "mps":
        return module.recommended_max_memory() / GB
    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB
    return module.get_device_properties(device).total_memory / GB


def memory_gb(device: torch.device) -> tuple[float, float] | None:
    """Return (the most that was used, the size) of an accelerator's memory in GB; None if that is
    not known.

    It is the peak of torch's tensors plus what others hold. Memory that torch keeps for reuse does
    not count: it grows to the size of the accelerator in a healthy run.
    """
    peak = peak_gb(device)
    module: Any = torch.get_device_module(device)
    if peak is None or not hasattr(module, "mem_get_info"):
        return None
    free, total = module.mem_get_info(device)
    others = max(0, total - free - module.memory_reserved(device))
    return peak + others / GB, total / GB


def free_kept_memory(device: torch.device) -> None:
    """Give back the memory that torch keeps for reuse."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """True for the errors that torch raises if an accelerator or the host has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and (
        "DefaultCPUAllocator" in said or "backend out of memory" in said  # the latter: mps
    )


def swaps_when_full(device: torch.device) -> bool:
    """Whether the system swaps, for minutes, where others raise an error at once."""
    return device.type in SHARED_MEMORY
