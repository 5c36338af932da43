"""The accelerator "standin" of `device.cpp`, registered as a vendor's package would do it.

With this accelerator, the tests run our program on a device that is neither a CPU nor a GPU of
NVIDIA. tests/helpers/standin/__init__.py compiles device.cpp and installs this file as a package.
torch finds the package by its entry point and calls `register`. torch does the same for the
packages of vendors, such as torch_npu.

    torch.standin    the functions of the accelerator that programs call, as torch.cuda has them for
                     GPUs: `AcceleratorModule`. The memory of the device is memory of this machine,
                     and device.cpp counts it
    standccl         the backend by which ranks exchange tensors of the device, as NCCL is the
                     backend for GPUs: `Group`. It copies the tensors to the CPU, and gloo, torch's
                     backend for CPUs, does the work

torch and our program call the methods by their names, so the names must stay. The results of the
methods may change, e.g. BYTES. tests/parts/utils/test_device.py has the tests.
"""

import ctypes
import os
import types
from typing import Any

import torch
import torch.distributed as dist

# Memory that a device says it has. Our program compares the memory of a step with this number.
BYTES = 2_000_000_000
# The compiled device.cpp lies beside this file.
LIBRARY = os.path.join(os.path.dirname(__file__), "standin.so")


def register() -> None:
    """Register device, module and backend. torch calls this function while it is imported."""
    library = ctypes.CDLL(LIBRARY)
    # "privateuseone" is torch's name for a device that torch does not know. Rename it to "standin".
    torch.utils.rename_privateuse1_backend("standin")
    library.standin_register()
    torch._register_device_module("standin", AcceleratorModule(library))
    # Give tensors and modules the method `x.standin()` and the attribute `x.is_standin`.
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    dist.Backend.register_backend("standccl", make_group, devices=["standin"])


# ---- The module torch.standin ------------------------------------------------------------------


class AcceleratorModule(types.ModuleType):
    """torch.standin: the functions of torch.cuda that torch or our program calls.

    The argument `device` is an index, a torch.device, a text such as "standin:1", or None for the
    current device. All devices share one memory, so most functions ignore this argument.

    `waits` is for the tests only. It has no counterpart in torch.cuda.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        """Set the types of the functions of `library`, the compiled device.cpp."""
        super().__init__("torch.standin")
        self.library = library
        # These functions return 64 bits. By default, ctypes would cut their results to 32 bits.
        for name in ("standin_allocated", "standin_peak", "standin_waits"):
            getattr(library, name).restype = ctypes.c_longlong

    # Whether the device is there, and may be used.

    def is_available(self) -> bool:
        return self.library.standin_count() > 0

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        """Return whether this process must not use the device, because its parent has used it.

        A GPU cannot be used after a fork. The stand-in can.
        """
        return False

    # Devices.

    def device_count(self) -> int:
        """Return the number of devices: the variable STANDIN_COUNT, or 1."""
        return self.library.standin_count()

    def current_device(self) -> int:
        return self.library.standin_current()

    def set_device(self, device: Any) -> None:
        index = None if device is None else torch.device(device).index
        if index is None:  # also for a text without a number, "standin"
            index = self.current_device()
        self.library.standin_set(index)

    def get_device_name(self, device: Any = None) -> str:
        return "Stand-in"

    def get_device_properties(self, device: Any = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(name="Stand-in", total_memory=BYTES)

    # Random numbers. The operations run on the CPU, and draw from the generator of the CPU.

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing. torch.manual_seed calls this method, and seeds the CPU's generator itself."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    # Precision.

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        return True

    # Memory, in bytes.

    def max_memory_allocated(self, device: Any = None) -> int:
        return self.library.standin_peak()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Return the free memory and all memory."""
        free = BYTES - self.library.standin_allocated()
        return free, BYTES

    def memory_reserved(self, device: Any = None) -> int:
        return self.library.standin_allocated()

    def empty_cache(self) -> None:
        """Do nothing: the device keeps no freed memory for later."""

    # Waiting.

    def synchronize(self, device: Any = None) -> None:
        """Do nothing: each operation is finished when it returns."""

    def waits(self) -> int:
        """Return how often the program has waited for the device."""
        return self.library.standin_waits()


# ---- The backend standccl ----------------------------------------------------------------------


class Finished(dist._Work):
    """The work of a collective that is finished already, so `wait` returns at once.

    torch hands it to the caller of a collective, e.g. of dist.all_reduce(..., async_op=True).
    """

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Any:
        return self.future


def make_group(store: Any, rank: int, size: int, timeout: Any) -> "Group":
    """Return the process group of one rank. torch calls this in init_process_group.

    store: the store by which gloo's ranks find each other. size: number of ranks.
    """
    group = Group(rank, size)
    group.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    return group


# torch calls the methods of `Group` with other arguments than its type stubs say. The type Any
# keeps the type checker from comparing the methods with the stubs.
ProcessGroup: Any = dist.ProcessGroup


class Group(ProcessGroup):
    """Collectives for tensors of the device. Each method runs gloo on copies of the tensors.

    torch calls the method with the name of the collective. gloo's methods have the same arguments.
    All ranks must call the same method.

    opts: the options of the collective, e.g. which rank broadcasts.
    """

    gloo: Any  # the process group that does the work

    def getBackendName(self) -> str:
        return "standccl"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Finished:
        return self._on_copies("allreduce", tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Finished:
        return self._on_copies("broadcast", tensors, opts)

    def allgather(self, outputs: Any, inputs: list[torch.Tensor], opts: Any = None) -> Finished:
        """Write the inputs of all ranks into `outputs`.

        outputs: for each input a list with one tensor for each rank.
        """
        output_copies = []
        for outputs_of_input in outputs:
            output_copies.append([tensor.cpu() for tensor in outputs_of_input])
        input_copies = [tensor.cpu() for tensor in inputs]
        self.gloo.allgather(output_copies, input_copies).wait()

        for outputs_of_input, copies in zip(outputs, output_copies, strict=True):
            _write_back(outputs_of_input, copies)
        return Finished(outputs)

    def barrier(self, opts: Any = None) -> Finished:
        """Wait for all ranks."""
        self.gloo.barrier().wait()
        return Finished([])

    def _on_copies(self, collective: str, tensors: list[torch.Tensor], opts: Any) -> Finished:
        """Run a collective that changes `tensors` in place, e.g. "allreduce"."""
        # NCCL refuses tensors on a CPU, so refuse them here, too. Then a test notices if the
        # program exchanges tensors of the wrong device.
        if any(tensor.device.type != "standin" for tensor in tensors):
            raise RuntimeError("standccl takes tensors of the stand-in")
        copies = [tensor.cpu() for tensor in tensors]
        run = getattr(self.gloo, collective)
        work = run(copies) if opts is None else run(copies, opts)
        work.wait()
        _write_back(tensors, copies)
        return Finished(tensors)


def _write_back(tensors: list[torch.Tensor], copies: list[torch.Tensor]) -> None:
    """Write the copies on the CPU into the tensors of the device, in place."""
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.copy_(copy)
