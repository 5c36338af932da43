"""Counts what a training step needs on a GPU, on a machine without a GPU.

    python -m tests.helpers.fake_gpu [--batch 1] [--kept-only] [--shallow] [CASE ...]
    python -m tests.helpers.fake_gpu --align

The step runs on torch's fake tensors. A fake tensor has a shape, a dtype and the device "cuda", but
no numbers and no memory. An operation on tensors of different devices or dtypes fails as it would
on a GPU. The step is a step of the GoPro recipe: its clips have 6 frames of 192 x 192 pixels, its
network is NETWORK, and autocast follows the rules of CUDA.

The program prints one JSON object, e.g. {"plain, bfloat16": {"kept_gb": 38.5, ...}}. Its keys are
the names of the cases (CASES). A case has these figures (1 GB = 10^9 bytes):

    kept_gb           tensors that autograd keeps for the backward pass, without the weights
    held_gb           all tensors that are alive after the forward pass
    peak_gb           the largest size of all tensors alive at one time in the backward pass, with
                      the gradients of the weights
    moved_gb          bytes that kernels read and write, forward and backward. An operation
                      counts each of its inputs and results once
    kernels           number of kernels: one for each operation that computes something. Operations
                      that return a view or only allocate memory run none (see FREE in
                      operation_counter.py)
    copies_from_host  number of operations on tensors of both the CPU and the GPU; a GPU waits for
                      each of them
    attention         calls of scaled_dot_product_attention, by the kernel that a GPU would choose
                      (see `backend` in gpu_attention.py)

How the stand-in for a GPU works:

    Counter              counts bytes and kernels of all operations (operation_counter.py)
    backend              chooses the kernel of attention (gpu_attention.py)
    network, count       build the network with fake tensors, and run a step of it
    alignment            runs only the deformable alignment
    hidden_device        lets autograd run without a GPU
    stand_in             replaces functions of torch and of our own that need numbers or a GPU

The exit code is 77 if this version of torch has no fake tensors on a GPU that does not exist.

tests/parts/models/test_fake_gpu.py runs this program. The test relies on the names of the cases, on
the names of the figures, and on the exit code. docs/memory.md and docs/benchmarks/net_details.md
show figures of this program. If other things are counted, these pages need new figures. All else is
free to change.
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import sys
from collections.abc import Generator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from models.network_vrt import VRT
from models.vrt import block, windows
from models.vrt.deform_align import DeformAlign
from models.vrt.memory.transient import alignment_transient
from tests.helpers.cuda_autocast import CudaAutocast
from tests.helpers.gpu_attention import CALLS_OF_ATTENTION, attention_of_a_gpu
from tests.helpers.operation_counter import Counter

# The network of the GoPro recipe.
NETWORK: dict[str, Any] = {
    "upscale": 1,
    "img_size": [6, 192, 192],
    "window_size": [6, 8, 8],
    "depths": [8] * 7 + [4] * 4,
    "pa_frames": 2,
    "indep_reconsts": [9, 10],
    "embed_dims": [96] * 7 + [120] * 4,
    "num_heads": [6] * 11,
    "deformable_groups": 16,
}
# Number of blocks of each stage with --shallow: a quarter of the blocks of NETWORK, which is enough
# for most tests and takes less time.
SHALLOW_DEPTHS = [2] * 7 + [1] * 4
# Frames, channels, height and width of a clip of the recipe.
CLIP = (6, 3, 192, 192)
# Case -> arguments of the network in addition to NETWORK.
CASES: dict[str, dict[str, Any]] = {
    "auto, bfloat16": {},
    "auto, bfloat16, checkpointed": {"use_checkpoint_attn": True, "use_checkpoint_ffn": True},
    "plain, bfloat16": {"kernels": "plain"},
}
# Exit code if this version of torch has no fake tensors on a GPU that does not exist. 77 is the
# code by which test programs say that they were skipped.
NO_FAKE_GPU = 77
GB = 1e9  # bytes

# Within this mode torch makes fake tensors.
FAKE = FakeTensorMode()
# The operation by which C++ code asks for the device of a tensor. `hidden_device` answers the
# question with META.
DEVICE = torch.ops.prim.device.default
META = torch.device("meta")


def main() -> str:
    """Run the cases of the command line. Returns the JSON text to print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(CASES)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{names}; default: all")
    parser.add_argument("--batch", type=int, default=1, help="number of clips, default 1")
    parser.add_argument(
        "--kept-only",
        action="store_true",
        help="print only kept_gb and attention; no backward pass, in a third of the time",
    )
    parser.add_argument("--shallow", action="store_true", help="build a quarter of the blocks")
    parser.add_argument(
        "--align",
        action="store_true",
        help="print [[shape, counted, estimated], ...] instead: the bytes that `alignment` returns "
        "for each shape in ALIGNED",
    )
    args = parser.parse_args()

    if args.align:
        lines = []
        for shape in ALIGNED:
            for amp in (True, False):
                counted, estimated = alignment(shape, amp)
                lines.append([shape, counted, estimated])
        return json.dumps(lines)

    if args.shallow:
        # `network` reads NETWORK, so this changes the network of every case.
        NETWORK["depths"] = SHALLOW_DEPTHS
    figures_of_case = {}
    for name in args.cases or CASES:
        figures_of_case[name] = count(CASES[name], args.batch, args.kept_only)
    return json.dumps(round_figures(figures_of_case), indent=1)


def round_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the same figures with two decimals, also in dicts within them. Counts stay whole."""
    rounded = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            rounded[name] = round_figures(value)
        elif isinstance(value, float):
            rounded[name] = round(value, 2)
        else:
            rounded[name] = value
    return rounded


# ---- A network of fake tensors ------------------------------------------------------------------


def network(options: dict[str, Any], batch: int) -> tuple[nn.Module, Tensor]:
    """Return the network on the GPU, and a batch of clips for it. Call it within FAKE.

    options: arguments of VRT in addition to NETWORK, see CASES.
    batch: number of clips.
    """
    # The constructor of VRT computes with numbers, and a fake tensor has no numbers. So the
    # constructor runs on the CPU with real tensors, outside of the fake mode.
    with unset_fake_temporarily():
        net = VRT(**NETWORK, **options)
    to_gpu(net)
    return net, torch.rand(batch, *CLIP, device="cuda")


def on_gpu(tensor: Tensor) -> Tensor:
    """Return a fake tensor of the same shape and dtype on the GPU."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")


def to_gpu(net: nn.Module) -> None:
    """Replace the parameters and buffers of a network by fake tensors on the GPU."""
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(on_gpu(parameter)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, on_gpu(buffer))


@functools.cache
def fake_chunks(size, window, shift, device, batch=1, most=1 << 40) -> tuple[windows.Chunk, ...]:
    """Return the chunks of `models.vrt.windows.window_chunks` on the GPU.

    `window_chunks` computes indices, and fake tensors have no numbers. So `window_chunks` runs on
    the CPU, and the result is moved to the GPU. The results are cached, as `window_chunks` caches
    its results, because all blocks of a stage ask for the same chunks.

    size: tokens of a clip (D, H, W).
    window: tokens of a window along the same axes.
    shift: number of tokens by which the windows are shifted, for each axis.
    device: the fake GPU, which has no effect here.
    batch: number of clips.
    most: largest number of windows in a chunk. The default, 2**40, is more than any clip has.
    """
    with unset_fake_temporarily():
        cpu = torch.device("cpu")
        chunks = windows.window_chunks(
            size=size, window=window, shift=shift, device=cpu, batch=batch, most=most
        )
    return moved_to_gpu(chunks)


def moved_to_gpu(value: Any) -> Any:
    """Return a value whose tensors are fake tensors on the GPU, also within tuples and records."""
    if isinstance(value, Tensor):
        return on_gpu(value)
    if isinstance(value, tuple):
        return tuple(moved_to_gpu(element) for element in value)
    if dataclasses.is_dataclass(value):
        moved_fields = []
        for field in dataclasses.fields(value):
            moved_fields.append(moved_to_gpu(getattr(value, field.name)))
        return type(value)(*moved_fields)  # the constructor takes the fields in their order
    return value


# ---- A training step ----------------------------------------------------------------------------


def count(options: dict[str, Any], batch: int, kept_only: bool) -> dict[str, Any]:
    """Return the figures of a case, named in the docstring of this module.

    options: arguments of VRT in addition to NETWORK, see CASES.
    batch: number of clips.
    kept_only: whether to leave out the backward pass. Then only kept_gb and attention are returned.
    """
    CALLS_OF_ATTENTION.clear()
    figures: dict[str, Any] = {}
    with FAKE:
        # A forward pass is enough here. It runs without `hidden_device`, so that torch's own
        # autocast chooses the dtypes.
        net, clip = network(options, batch)
        figures["kept_gb"] = kept_bytes(net, clip) / GB
        # Read the calls of attention now, because the second run below would count them again.
        attention = dict(sorted(CALLS_OF_ATTENTION.items()))
        del net, clip
        if not kept_only:
            # A backward pass of fake tensors needs `hidden_device`.
            with hidden_device():
                net, clip = network(options, batch)
                figures |= figures_of_step(net, clip)
                del net, clip
    figures["attention"] = attention
    return figures


def kept_bytes(net: nn.Module, clip: Tensor) -> int:
    """Run the forward pass. Returns the bytes that autograd keeps for the backward pass.

    The weights do not count, because they exist without a step, too.
    """
    # Address of a storage -> its bytes.
    sizes: dict[int, int] = {}
    # This list keeps all tensors alive. Otherwise a storage could be deleted during the count, and
    # a new storage could get its address. `sizes` would already have this address, so the new
    # storage would not be counted.
    alive: list[Tensor] = []

    # autograd calls `pack` for each tensor that it keeps, and `unpack` when it needs the tensor.
    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes.setdefault(storage._cdata, storage.nbytes())
        alive.append(tensor)
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    weights = (*net.parameters(), *net.buffers())
    addresses_of_weights = {weight.untyped_storage()._cdata for weight in weights}
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, unpack),
        torch.autocast("cuda", torch.bfloat16),
    ):
        restored = net(clip)

    assert restored.device.type == "cuda"
    assert restored.shape == clip.shape
    return sum(size for address, size in sizes.items() if address not in addresses_of_weights)


def figures_of_step(net: nn.Module, clip: Tensor) -> dict[str, Any]:
    """Run a training step without the optimizer. Returns its figures from held_gb on.

    kept_gb and attention are missing: `count` measures them. Call this function within
    `hidden_device`, because the backward pass needs `hidden_device`.
    """
    with Counter() as counter:
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(clip).float().square().mean()
        # Without gc.collect(), unreachable tensors in reference cycles would count as alive.
        gc.collect()
        held = counter.now
        # Forget the peak of the forward pass, because `peak_gb` is about the backward pass alone.
        counter.peak = counter.now
        loss.backward()
    return {
        "held_gb": held / GB,
        "peak_gb": counter.peak / GB,
        "moved_gb": counter.moved.total() / GB,
        "kernels": counter.kernels,
        "copies_from_host": counter.copies_from_host,
    }


# ---- Only the deformable alignment --------------------------------------------------------------

# Shapes for --align: (frames, channels, side of the square frames in pixels, deformable groups,
# number of aligned neighbours).
ALIGNED = (
    (5, 96, 192, 16, 1),  # as in network 006
    (40, 96, 96, 16, 1),  # a batch
    (5, 120, 96, 12, 2),  # two neighbours
)


def alignment(shape: tuple[int, ...], amp: bool) -> tuple[int, int]:
    """Return the bytes that the backward pass of the alignment needs: (counted, estimated).

    The estimate is `alignment_transient`. Neither number has the tensors that the forward pass
    saves.

    shape: an element of ALIGNED.
    amp: whether the network computes in bfloat16.
    """
    frames, channels, side, groups, neighbour_count = shape
    image_dtype = torch.bfloat16 if amp else torch.float32

    def image_of(channel_count: int, dtype: torch.dtype) -> Tensor:
        size = (frames, channel_count, side, side)
        return torch.empty(size, dtype=dtype, device="cuda", requires_grad=True)

    with FAKE:
        # The constructor computes with numbers. Fake tensors have no numbers, so the constructor
        # gets real tensors, on the CPU. `max_residual` is the largest correction of the flow, in
        # pixels. Its value has no effect on memory, and 10.0 is the value in the network.
        with unset_fake_temporarily():
            module = DeformAlign(channels, groups, neighbour_count, max_residual=10.0)
        to_gpu(module)
        with hidden_device(), torch.autocast("cuda", torch.bfloat16, enabled=amp):
            target = image_of(channels, image_dtype)
            neighbours = [image_of(channels, image_dtype) for _ in range(neighbour_count)]
            # A flow has two channels: the motion along x and along y. It is always in float32.
            flows = [image_of(2, torch.float32) for _ in range(neighbour_count)]
            with Counter() as counter:
                out = module(neighbours, target, flows)
                # Without gc.collect(), unreachable tensors in reference cycles would count as held.
                gc.collect()
                held = counter.now
                # Forget the peak of the forward pass, because only the backward pass is measured.
                counter.peak = counter.now
                out.sum().backward()
            return counter.peak - held, alignment_transient(module, target)


# ---- In place of a GPU --------------------------------------------------------------------------
#
# What must stay: each operation gets the device and the dtypes that it would get on a GPU. This
# part replaces inner methods of torch, so a new version of torch may need changes here.


@contextlib.contextmanager
def hidden_device() -> Generator[None]:
    """Let autograd run a backward pass of fake tensors without a GPU, within a `with` block.

    Autograd asks each tensor for its device, and then asks the device for its streams. A GPU that
    does not exist has no streams, so torch would raise an error. Therefore autograd gets another
    answer than operations get: "meta", a device of torch that needs no streams.

        who asks       operations that are running then        answer
        autograd       none                                    "meta"
        an operation   this operation, and perhaps its caller  "cuda"

    The question for the device is the operation DEVICE. Like each operation on a fake tensor, the
    question passes through two methods of torch: first `FakeTensor.__torch_dispatch__`, then
    `FakeTensorMode.dispatch`. Within the block both methods are replaced. If no operation is
    running, the new methods answer the question. They hand everything else to the old methods.

    torch's own autocast does not act here, so CudaAutocast applies its rules.
    """
    tensor_dispatch = FakeTensor.__torch_dispatch__
    mode_dispatch = FakeTensorMode.dispatch
    # How many operations are running, one within another: 2 if an operation calls another one.
    depth = 0

    def tensor_dispatch_without_device(
        cls: type[FakeTensor], func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is DEVICE and depth == 0:
            return META
        # `cls` may be a subclass of FakeTensor, and torch's method must get this subclass. But
        # `tensor_dispatch` is bound: its first argument is FakeTensor already. `__func__` is the
        # same method, not bound.
        dispatch_of_any_class = tensor_dispatch.__func__
        return dispatch_of_any_class(cls, func, types, args, kwargs or {})

    def mode_dispatch_without_device(
        mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        nonlocal depth
        if func is DEVICE and depth == 0:
            return META
        kwargs = dict(kwargs or {})
        # Autograd makes new tensors, e.g. gradients of zeros, on the device that it was told:
        # "meta". These tensors must be on the GPU like all others.
        if kwargs.get("device") == META:
            kwargs["device"] = torch.device("cuda", 0)
        depth += 1
        try:
            return mode_dispatch(mode, func, types, args, kwargs)
        finally:
            depth -= 1

    as_classmethod = classmethod(tensor_dispatch_without_device)
    with (
        mock.patch.object(FakeTensor, "__torch_dispatch__", as_classmethod),
        mock.patch.object(FakeTensorMode, "dispatch", mode_dispatch_without_device),
        CudaAutocast("cuda"),
    ):
        yield


def stand_in() -> None:
    """Replace functions that need a GPU or numbers, until the process ends."""

    def no(*_: Any) -> bool:
        return False

    def yes(*_: Any) -> bool:
        return True

    # No operation may choose cuDNN, because there is no GPU to run it.
    torch.backends.cudnn.enabled = False
    # Without these two replacements, torch would find no GPU that can compute in bfloat16, and
    # autocast would not work.
    mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", no).start()
    mock.patch.object(torch.cuda, "is_bf16_supported", yes).start()
    # torch's own function would choose the kernel of a CPU.
    mock.patch.object(F, "scaled_dot_product_attention", attention_of_a_gpu).start()
    # The original `window_chunks` needs numbers, which fake tensors do not have. It is replaced in
    # the module `block`, which calls it.
    mock.patch.object(block, "window_chunks", fake_chunks).start()


def reason_without_fake_gpu() -> str:
    """Return why this torch has no fake tensors on a GPU that does not exist, or "" if it has.

    The function tries to index such a tensor, because torch 2.8 starts CUDA then.
    """
    try:
        with FAKE:
            tensor = torch.empty(2, 2, device="cuda")
            _ = tensor[:, :1]
    except RuntimeError as e:
        first_line = str(e).splitlines()[0]
        return f"torch {torch.__version__}: {first_line}"
    return ""


if __name__ == "__main__":
    reason = reason_without_fake_gpu()
    if reason:
        print(reason, file=sys.stderr)
        sys.exit(NO_FAKE_GPU)
    stand_in()
    print(main())
