"""The accelerator "standin" of `device.cpp`, registered as a vendor's package would do it.

torch imports this module by its entry point and calls `register`, as it does for packages such as
torch_npu. The memory of the device is memory of this machine. Its ranks exchange tensors by the
backend "standccl", which copies them to the CPU and uses gloo.
"""

import ctypes
import os
import types
from typing import Any

import torch
import torch.distributed as dist

BYTES = 2_000_000_000  # of a device
FOLDER = os.path.dirname(__file__)


def device_module(library: ctypes.CDLL) -> types.ModuleType:
    """Return torch.standin: what torch and programs ask of an accelerator, as of torch.cuda.

    The names are those of torch. "waits" alone is of this project: it tells how often the program
    has waited for the device. library: the compiled `device.cpp`.
    """
    module = types.ModuleType("torch.standin")
    for name in ("standin_allocated", "standin_peak", "standin_waits"):
        getattr(library, name).restype = ctypes.c_longlong

    def index_of(device: Any) -> int:
        index = None if device is None else torch.device(device).index
        return library.standin_current() if index is None else index

    def get_device_properties(device: Any = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(name="Stand-in", total_memory=BYTES)

    values = {
        "is_available": lambda: library.standin_count() > 0,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": library.standin_count,
        "current_device": library.standin_current,
        "set_device": lambda device: library.standin_set(index_of(device)),
        "get_device_name": lambda device=None: "Stand-in",
        "get_device_properties": get_device_properties,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "is_bf16_supported": lambda: True,
        "max_memory_allocated": lambda device=None: library.standin_peak(),
        "mem_get_info": lambda device=None: (BYTES - library.standin_allocated(), BYTES),
        "memory_reserved": lambda device=None: library.standin_allocated(),
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: None,
        "waits": library.standin_waits,
    }
    for name, value in values.items():
        setattr(module, name, value)
    return module


class Done(dist._Work):
    """Work of a process group that is finished, so that wait() returns at once."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Any:
        return self.future


def on_copies(group: Any, name: str, tensors: list[torch.Tensor], opts: Any) -> Done:
    """Run a collective of gloo on copies of `tensors`, and write the results into `tensors`.

    name: the collective, e.g. "allreduce".
    """
    if any(tensor.device.type != "standin" for tensor in tensors):
        raise RuntimeError("standccl takes tensors of the stand-in")
    copies = [tensor.cpu() for tensor in tensors]
    getattr(group.gloo, name)(copies, *([] if opts is None else [opts])).wait()
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.copy_(copy)
    return Done(tensors)


def allgather(group: Any, outputs: Any, inputs: list[torch.Tensor], opts: Any = None) -> Done:
    """Write the inputs of all ranks into `outputs`, a list of tensors for each input."""
    copies = [[tensor.cpu() for tensor in tensors] for tensors in outputs]
    group.gloo.allgather(copies, [tensor.cpu() for tensor in inputs]).wait()
    for tensors, found in zip(outputs, copies, strict=True):
        for tensor, copy in zip(tensors, found, strict=True):
            tensor.copy_(copy)
    return Done(outputs)


def barrier(group: Any, opts: Any = None) -> Done:
    """Wait for all ranks."""
    group.gloo.barrier().wait()
    return Done([])


def make_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """Return a process group, which runs gloo on copies of the tensors of the device."""
    kind: Any = type(
        "Group",
        (dist.ProcessGroup,),
        {
            "getBackendName": lambda group: "standccl",
            "allreduce": lambda group, tensors, opts=None: on_copies(
                group, "allreduce", tensors, opts
            ),
            "broadcast": lambda group, tensors, opts=None: on_copies(
                group, "broadcast", tensors, opts
            ),
            "allgather": allgather,
            "barrier": barrier,
        },
    )
    group = kind(rank, size)
    group.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    return group


def register() -> None:
    """Register device, module and backend. torch calls this function while it is imported."""
    library = ctypes.CDLL(os.path.join(FOLDER, "standin.so"))
    torch.utils.rename_privateuse1_backend("standin")
    library.standin_register()
    torch._register_device_module("standin", device_module(library))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    dist.Backend.register_backend("standccl", make_group, devices=["standin"])
