"""The network on a GPU that is not there: torch's fake tensors know device, dtype and shape alone.

    python -m tests.helpers.fake_gpu [--batch 1] [--kept-only] [--shallow] [CASE ...]
    python -m tests.helpers.fake_gpu --align

CASE: a name in CASES (default: all). --kept-only: without the backward pass, in a third of the
time. --shallow: a quarter of the blocks. --align: instead, [[shape, counted, estimated], ..], what
`alignment` gives for each shape.

Fails where a tensor of the wrong device or dtype meets another. For a training step on clips of 6 x
192 x 192 through the network of the GoPro recipe, under the autocast rules of CUDA, it counts:

    kept_gb       what autograd keeps for the backward pass, weights left out held_gb       all that
    lives after the forward pass peak_gb       the most that lives at once in the backward pass,
    gradients of the weights included moved_gb      what kernels read and write, forward and
    backward: every tensor of every operation once kernels       their number: one for each
    operation that is not a view copies_from_host  of tensors to the GPU, each of which would wait
    for it attention     the kernels that scaled_dot_product_attention would choose (see `backend`)
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import gc
import json
import sys
import weakref
from collections.abc import Generator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.network_vrt import VRT
from models.vrt import block, windows
from models.vrt.attention import MOST_HEADS
from models.vrt.deform_align import DeformAlign
from tests.helpers.cuda_autocast import CudaAutocast

NETWORK: dict[str, Any] = {  # of the GoPro recipe
    "upscale": 1, "img_size": [6, 192, 192], "window_size": [6, 8, 8], "depths": [8] * 7 + [4] * 4,
    "pa_frames": 2, "indep_reconsts": [9, 10], "embed_dims": [96] * 7 + [120] * 4,
    "num_heads": [6] * 11, "deformable_groups": 16,
}  # fmt: skip
CHECKPOINTED = {"use_checkpoint_attn": True, "use_checkpoint_ffn": True}
CASES: dict[str, dict[str, Any]] = {
    "auto, bfloat16": {},
    "auto, bfloat16, checkpointed": CHECKPOINTED,
    "plain, bfloat16": {"kernels": "plain"},
}
FAKE = FakeTensorMode()
DEVICE, META = torch.ops.prim.device.default, torch.device("meta")
# Without a kernel, though their schema does not say that they are views.
FREE = (
    "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "detach", "lift_fresh",
)  # fmt: skip
# Place of the input among the arguments, and times that the columns are written or read, in
# torchvision/csrc/ops/cuda/deform_conv2d_kernel.cu: the samples and their product; backward: zeros,
# product, read for the input and for the offsets, and the samples and their product again, for the
# weight.
COLUMNS = {"torchvision::deform_conv2d": (0, 2), "torchvision::_deform_conv2d_backward": (1, 6)}


def tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


class Counter(TorchDispatchMode):
    """Bytes and kernels of all operations, and the most bytes that live at once."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.now, self.peak, self.copies_from_host = 0, 0, 0, 0
        self.moved: collections.Counter[str] = collections.Counter()
        self.alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name == "_scaled_dot_product_efficient_attention_backward":
            # The kernel reads `out` (n, heads, T, hd) with the stride of a row that its forward
            # pass gives it.
            assert args[5].transpose(1, 2).is_contiguous(), f"out has strides {args[5].stride()}"
        made = tensors(out)
        if {t.device.type for t in (*tensors((args, kwargs)), *made)} == {"cpu", "cuda"}:
            self.copies_from_host += 1
        for storage in {t.untyped_storage() for t in made}:
            self.live(storage)
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if name not in FREE and not is_view and made:
            written = {a.name for a in func._schema.arguments if a.is_out}
            read = tensors(
                (args, [value for key, value in (kwargs or {}).items() if key not in written])
            )
            sizes = (
                min(t.numel() * t.element_size(), t.untyped_storage().nbytes())
                for t in [*read, *made]
            )
            self.kernels += 1
            self.moved[name] += sum(sizes)
        if name in COLUMNS:
            self.columns(name, *COLUMNS[name], args)
        return out

    def columns(self, name: str, place: int, passes: int, args: Any) -> None:
        """What torchvision's kernel allocates, writes and reads besides: the samples of up to 32
        images, in float32.
        """
        n, c, h, w = args[place].shape
        size = 9 * c * h * w * args[place].element_size()
        self.moved[name] += passes * n * size
        self.peak = max(self.peak, self.now + size * max(k for k in range(1, 33) if n % k == 0))

    def live(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.alive:
            return
        self.alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.died, key, size)

    def died(self, key: int, size: int) -> None:
        self.alive.discard(key)
        self.now -= size


HALF = (torch.bfloat16, torch.float16)
CHOSEN: collections.Counter[str] = collections.Counter()


def backend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str:
    """What scaled_dot_product_attention runs on a GPU of compute capability 8.0 or more, for q, k,
    v (n, heads, T, hd).

    The rules of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (priority_order,
    can_use_*_attention, minimum_gemm_alignment, check_data_ptr_alignment_mem_efficient,
    check_attn_mask_shape), torch 2.8 to 2.15, for inputs without dropout, nesting and causal masks.
    Where versions differ, the stricter rule stands: cuDNN comes first, as since 2.11 on the H100,
    and storage offsets count, as in 2.15.
    """
    enabled = torch.backends.cuda
    tensors = (q, k, v)
    if not all(
        x.stride(-1) == 1 and x.shape[0] == q.shape[0] and x.dtype is q.dtype for x in tensors
    ):
        return "math"
    d = q.shape[-1]
    suits_cudnn = q.dtype in HALF and d % 8 == 0 and d <= 128 and max(q.shape[:2]) <= 65_535
    if enabled.cudnn_sdp_enabled() and suits_cudnn and (mask is None or not mask.requires_grad):
        return "cudnn"
    if enabled.flash_sdp_enabled() and q.dtype in HALF and mask is None and d <= 256:
        return "flash"
    values = 16 // q.element_size()  # minimum_gemm_alignment, with tensor cores
    is_aligned = d % values == 0 and all(x.storage_offset() % values == 0 for x in tensors)
    mask_fits = mask is None or mask.stride(-1) == 1
    if (
        enabled.mem_efficient_sdp_enabled()
        and q.dtype in (*HALF, torch.float32)
        and is_aligned
        and mask_fits
    ):
        return "efficient"
    return "math"


def attention_of_a_gpu(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    if torch.is_autocast_enabled("cuda") and q.dtype is torch.float32:
        dtype = torch.get_autocast_dtype("cuda")
        q, k, v = (x.to(dtype) for x in (q, k, v))
        attn_mask = None if attn_mask is None else attn_mask.to(dtype)
    kind, aten = backend(q, k, v, attn_mask), torch.ops.aten
    gradient = "gradient" if torch.is_grad_enabled() and q.requires_grad else "none"
    added = (
        "none" if attn_mask is None else "with gradient" if attn_mask.requires_grad else "constant"
    )
    CHOSEN[f"{kind}: head {q.shape[3]}, {q.shape[2]} tokens, {gradient}, mask {added}"] += 1
    mask = None if attn_mask is None else attn_mask.expand(*q.shape[:3], k.shape[2])
    assert max(q.shape[0] * q.shape[1], 1) <= MOST_HEADS
    if kind == "efficient":
        saves = torch.is_grad_enabled()
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, mask, saves, 0.0, False, scale=scale
        )[0]
    assert kind == "flash", kind  # the others need matrices in float32, or cuDNN
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, False, scale=scale)[0]


def on_gpu(t: Tensor) -> Tensor:
    return torch.empty(t.shape, dtype=t.dtype, device="cuda")


@functools.cache
def fake_chunks(size, window, shift, device, batch=1, most=1 << 40) -> tuple[windows.Chunk, ...]:
    """window_chunks depends on numbers, so it is made for the CPU."""
    with unset_fake_temporarily():
        chunks = windows.window_chunks(size, window, shift, torch.device("cpu"), batch, most)
    return moved_to_gpu(chunks)


def moved_to_gpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return on_gpu(value)
    if isinstance(value, tuple):
        return tuple(map(moved_to_gpu, value))
    if dataclasses.is_dataclass(value):
        return type(value)(
            *(moved_to_gpu(getattr(value, f.name)) for f in dataclasses.fields(value))
        )
    return value


def to_gpu(net: nn.Module) -> None:
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(on_gpu(parameter)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, on_gpu(buffer))


def network(options: dict[str, Any], batch: int) -> tuple[nn.Module, Tensor]:
    with unset_fake_temporarily():
        net = VRT(**NETWORK, **options)
    to_gpu(net)
    return net, torch.rand(batch, 6, 3, 192, 192, device="cuda")


def count(options: dict[str, Any], batch: int, kept_only: bool) -> dict[str, Any]:
    CHOSEN.clear()
    with FAKE:
        kept = kept_bytes(*network(options, batch))
        attention = dict(sorted(CHOSEN.items()))
        with contextlib.nullcontext() if kept_only else hidden_device():
            figures = {} if kept_only else moved(*network(options, batch))
    return {"kept_gb": kept / 1e9, **figures, "attention": attention}


def kept_bytes(net: nn.Module, clip: Tensor) -> int:
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # an address counts once only while its tensor lives

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes.setdefault(storage._cdata, storage.nbytes())
        alive.append(tensor)
        return tensor

    own = {t.untyped_storage()._cdata for t in (*net.parameters(), *net.buffers())}
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        torch.autocast("cuda", torch.bfloat16),
    ):
        restored = net(clip)
    assert restored.device.type == "cuda" and restored.shape == clip.shape
    return sum(size for address, size in sizes.items() if address not in own)


def moved(net: nn.Module, clip: Tensor) -> dict[str, Any]:
    """Counts of a training step without the optimizer. held: activations, and with them the
    gradients, at the peak.
    """
    with Counter() as counter:
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(clip).float().square().mean()
        gc.collect()  # tensors in reference cycles are held no longer
        held = counter.peak = counter.now
        loss.backward()
    sizes = {"held_gb": held, "peak_gb": counter.peak, "moved_gb": counter.moved.total()}
    figures = {name: size / 1e9 for name, size in sizes.items()}
    return figures | {"kernels": counter.kernels, "copies_from_host": counter.copies_from_host}


# (frames, channels, height and width, deformable groups, sources): of network 006, of a batch, of
# two neighbours.
ALIGNED = ((5, 96, 192, 16, 1), (40, 96, 96, 16, 1), (5, 120, 96, 12, 2))


def alignment(shape: tuple[int, ...], amp: bool) -> tuple[int, int]:
    """(counted, estimated) bytes that the backward pass of the alignment holds besides what was
    saved.
    """
    n, d, side, groups, sources = shape
    with FAKE:
        with unset_fake_temporarily():
            module = DeformAlign(d, groups, sources, 10.0)
        to_gpu(module)

        def made(channels: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(
                n, channels, side, side, dtype=dtype, device="cuda", requires_grad=True
            )

        with hidden_device(), torch.autocast("cuda", torch.bfloat16, enabled=amp):
            images = [made(d, torch.bfloat16 if amp else torch.float32) for _ in range(1 + sources)]
            flows = [made(2, torch.float32) for _ in range(sources)]
            with Counter() as counter:
                out = module(images[1:], images[0], flows)
                gc.collect()
                counter.peak = held = counter.now
                out.sum().backward()
            return counter.peak - held, module.transient(images[0])


@contextlib.contextmanager
def hidden_device() -> Generator[None]:
    """Inside, C++ code sees fake tensors on "meta": autograd would ask a GPU that is not there for
    its streams.

    Operations see the GPU. torch's autocast does not act in here, so tests/helpers/cuda_autocast.py
    does.
    """
    of_tensor, of_mode, inside = FakeTensor.__torch_dispatch__, FakeTensorMode.dispatch, [0]

    def tensor_dispatch(
        cls: type[FakeTensor], func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        is_hidden = func is DEVICE and not inside[0]
        return META if is_hidden else of_tensor.__func__(cls, func, types, args, kwargs or {})

    def mode_dispatch(
        mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is DEVICE and not inside[0]:
            return META
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == META:  # autograd makes a tensor like another
            kwargs["device"] = torch.device("cuda", 0)
        inside[0] += 1
        try:
            return of_mode(mode, func, types, args, kwargs)
        finally:
            inside[0] -= 1

    with (
        mock.patch.object(FakeTensor, "__torch_dispatch__", classmethod(tensor_dispatch)),
        mock.patch.object(FakeTensorMode, "dispatch", mode_dispatch),
        CudaAutocast("cuda"),
    ):
        yield


def needs_a_real_gpu() -> str:
    """Why this torch has no fake tensors on a GPU that is not there, or "" (torch 2.8: indexing
    starts CUDA).
    """
    try:
        with FAKE:
            torch.empty(2, 2, device="cuda")[:, :1]
    except RuntimeError as e:
        return f"torch {torch.__version__}: {str(e).splitlines()[0]}"
    return ""


def stand_in() -> None:
    """Replace, to the end of the process, what torch asks of a GPU that is there, and what depends
    on numbers.
    """
    torch.backends.cudnn.enabled = False
    for owner, name, stands_in in (
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (torch.cuda, "is_bf16_supported", lambda *_: True),
        (F, "scaled_dot_product_attention", attention_of_a_gpu),
        (block, "window_chunks", fake_chunks),
    ):
        mock.patch.object(owner, name, stands_in).start()


def main() -> str:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--batch", type=int, default=1)
    for flag in ("--kept-only", "--shallow", "--align"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    if args.align:
        return json.dumps(
            [[shape, *alignment(shape, amp)] for shape in ALIGNED for amp in (True, False)]
        )
    if args.shallow:
        NETWORK["depths"] = [2] * 7 + [1] * 4
    found = {name: count(CASES[name], args.batch, args.kept_only) for name in args.cases or CASES}
    return json.dumps(
        json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 2)), indent=1
    )


if __name__ == "__main__":
    if reason := needs_a_real_gpu():
        print(reason, file=sys.stderr)
        sys.exit(77)
    stand_in()
    print(main())
