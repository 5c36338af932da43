"""Counts the memory and the kernels of operations of torch: `Counter`.

tests/helpers/fake_gpu.py counts a training step with `Counter`. docs/memory.md and
docs/benchmarks/net_details.md show the figures. If other things are counted, these pages need new
figures.

`Counter` sees the operations that pass torch's dispatcher, the part of torch that calls the code of
a device. A deformable convolution of torchvision also uses a buffer that the dispatcher does not
see: its *columns*, the values of the image at all positions (taps) that the convolution multiplies
with its weight. `COLUMNS` says what the kernel does with them.
"""

import collections
import dataclasses
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that cost nothing on the GPU: they run no kernel, although their schema does not call
# them views. They only allocate memory, or give a tensor another shape.
FREE = {
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "lift_fresh",
}


@dataclasses.dataclass(frozen=True)
class Columns:
    """What torchvision's deformable convolution does with its columns.

    A convolution of 3 x 3 takes 9 samples (taps) of the input for each pixel. The columns are these
    samples. torchvision makes them in a buffer that the dispatcher of torch does not see, so
    `Counter` adds them.
    """

    # Index of the input image among the arguments of the operation.
    input_index: int
    # How often all columns are written or read.
    passes: int


# The passes over the columns, counted in torchvision/csrc/ops/cuda/deform_conv2d_kernel.cu:
#
#     forward    1  writes the columns
#                2  reads them for the product with the weight
#     backward   1  writes zeros
#                2  writes the product of the gradient and the weight
#                3  reads the product for the gradient of the input
#                4  reads the product for the gradient of the offsets
#                5  writes the columns
#                6  reads them for the gradient of the weight
COLUMNS = {
    "torchvision::deform_conv2d": Columns(input_index=0, passes=2),
    "torchvision::_deform_conv2d_backward": Columns(input_index=1, passes=6),
}
# Samples (taps) that a convolution of 3 x 3 takes for a pixel.
TAPS = 9
# The most images whose columns torchvision holds in memory at the same time.
MOST_FRAMES = 32


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Counter(TorchDispatchMode):
    """Counts the bytes and kernels of all operations within a `with` block.

    torch calls `__torch_dispatch__` in place of each operation. This method runs the operation and
    returns its result unchanged. So a mistake here changes only figures, and no result.
    """

    def __init__(self) -> None:
        super().__init__()
        # Number of operations that run a kernel.
        self.kernels = 0
        # Number of operations on tensors of both devices, the CPU and the GPU.
        self.copies_from_host = 0
        # Bytes that are alive now. Python deletes a tensor as soon as nothing refers to it, and
        # then `remove_storage` subtracts its bytes.
        self.now = 0
        # The most bytes that were alive at once. To measure only a part of a step, set `peak` to
        # `now` before this part.
        self.peak = 0
        # Bytes that kernels read and write: name of the operation -> bytes.
        self.moved: collections.Counter[str] = collections.Counter()
        # Addresses of the storages that are alive.
        self.alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what it needs. Returns its result.

        func: the operation, e.g. torch.ops.aten.add.Tensor.
        types: the classes of the tensors among the arguments. Not used, but torch gives them.
        args: positional arguments of the operation.
        kwargs: its keyword arguments.
        """
        kwargs = kwargs or {}
        out = func(*args, **kwargs)  # the tensors are fake: torch computes only their shapes
        name = func._schema.name.removeprefix("aten::")  # e.g. "add"
        if name == "_scaled_dot_product_efficient_attention_backward":
            check_strides_for_attention(args)

        results = tensors(out)
        self.count_copy_from_host([*tensors((args, kwargs)), *results])
        # Tensors that share a storage share its bytes, so each storage counts once.
        for storage in {tensor.untyped_storage() for tensor in results}:
            self.add_storage(storage)
        runs_kernel = bool(results) and name not in FREE and not is_view(func)
        if runs_kernel:
            self.kernels += 1
            # A kernel reads its inputs and writes its results.
            for tensor in [*inputs_of(func, args, kwargs), *results]:
                self.moved[name] += bytes_of(tensor)
        if name in COLUMNS:
            self.add_columns(name, args)
        return out

    def count_copy_from_host(self, used: list[Tensor]) -> None:
        """Count the operation if it has tensors on both devices, the CPU and the GPU.

        used: inputs and results of the operation.
        """
        kinds = {tensor.device.type for tensor in used}
        if kinds == {"cpu", "cuda"}:
            self.copies_from_host += 1

    def add_columns(self, name: str, args: Any) -> None:
        """Add the columns of torchvision's kernel: the samples of the image at all taps.

        name: an operation in COLUMNS.
        args: its arguments.
        """
        columns = COLUMNS[name]
        image = args[columns.input_index]
        n, c, h, w = image.shape
        bytes_of_frame = TAPS * c * h * w * image.element_size()
        self.moved[name] += columns.passes * n * bytes_of_frame

        # torchvision computes the columns of several images at once. Their number is the largest
        # divisor of n that is at most MOST_FRAMES, e.g. 20 for n = 40.
        divisors = [number for number in range(1, MOST_FRAMES + 1) if n % number == 0]
        images_at_once = max(divisors)
        # These columns come on top of what is alive. They are freed when the operation ends.
        bytes_at_once = self.now + images_at_once * bytes_of_frame
        self.peak = max(self.peak, bytes_at_once)

    def add_storage(self, storage: torch.UntypedStorage) -> None:
        """Count the bytes of a storage as alive, until Python deletes it."""
        # A storage that is alive has an address of its own.
        address = storage._cdata
        if address in self.alive:
            return
        size = storage.nbytes()
        self.alive.add(address)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.remove_storage, address, size)

    def remove_storage(self, address: int, size: int) -> None:
        """Count the bytes of a storage as free. Python calls this when it deletes the storage."""
        self.alive.discard(address)
        self.now -= size


def check_strides_for_attention(args: Any) -> None:
    """Fail if memory-efficient attention gets the output of its forward pass with other strides.

    The kernel of a GPU assumes that this output (n, heads, T, hd) has the strides that the forward
    pass has made, and does not check them. With other strides the kernel would read wrong numbers.

    args: the arguments of the backward operation: grad_out, query, key, value, attn_bias, out, ...
    """
    out = args[5]
    assert out.transpose(1, 2).is_contiguous(), f"out has strides {out.stride()}"


def is_view(func: Any) -> bool:
    """Return whether an operation returns a view of an argument, which needs no kernel.

    E.g. for the operations of torch with these names:

        transpose   returns an alias of its argument, and writes nothing    a view
        add_        returns an alias of its argument, and writes to it      no view
        add         returns a new tensor                                    no view
    """
    for result in func._schema.returns:
        if result.alias_info and not result.alias_info.is_write:
            return True
    return False


def inputs_of(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operation reads, from its arguments.

    An argument `out=` is left out, because the operation only writes it.
    """
    written = {argument.name for argument in func._schema.arguments if argument.is_out}
    read = [value for key, value in kwargs.items() if key not in written]
    return tensors((args, read))


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of memory behind a tensor.

    An expanded tensor has more elements than its storage, and a slice has fewer. So the smaller
    number counts.
    """
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
