"""Count what autograd saves for backward, in bytes.

What must stay: the count is what a step allocates (test_the_count_is_what_a_step_allocates in
tests/parts/models/test_fit_memory.py), and counting changes no result of the step.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def saved_bytes(net: nn.Module) -> Generator[dict[int, int]]:
    """Count what autograd saves for backward within this context.

    Yields a dictionary that fills up within the context: address of a storage -> its bytes. A
    storage that several tensors share counts once. Parameters and buffers of the network do not
    count.
    """
    tensors_of_net = (*net.parameters(), *net.buffers())
    addresses_of_net = {tensor.untyped_storage().data_ptr() for tensor in tensors_of_net}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # keeps the tensors, so that no other tensor gets their addresses

    def pack(tensor: Tensor) -> Tensor:
        """Count a tensor. torch calls this for each tensor that it saves, and keeps the result."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in addresses_of_net and address not in sizes:
            sizes[address] = storage.nbytes()
            alive.append(tensor)
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        """Return a saved tensor. torch calls this in the backward pass."""
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield sizes
