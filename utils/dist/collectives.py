"""Exchange values between all ranks: wait for one another, gather, send from one rank, average.

Every function is collective: every rank calls it, and all ranks make the same calls in the same
order. If a rank leaves a call out, the other ranks wait for it, until the watchdog ends the run. In
a single process nothing is exchanged. Each function then returns the given object, or a list of it.

Objects are sent as bytes (utils/dist/message.py). A rank first sends the number of bytes, so that
the receiver can make a tensor of this size, and then the bytes. The receiver checks the number
before it takes the memory.

Each function tells the watchdog the name of its collective: `watchdog.collective("barrier")`. The
watchdog counts the collectives that a rank has entered. If the run hangs, the ranks wait for the
rank with the smallest count.

What must stay: within a function, all ranks make the same exchanges in the same order, even a rank
that has nothing to send.

Tests: tests/dist/test_dist.py, mainly test_collectives_give_the_same_on_every_rank.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from utils.dist import message, watchdog
from utils.dist.identity import get_device, get_rank, get_world_size, is_main_process
from utils.dist.state import RUN


def barrier() -> None:
    """Wait until every rank is here. Collective."""
    if dist.is_initialized():
        with watchdog.collective("barrier"):
            device = get_device()
            # NCCL needs the number of the device. gloo, the backend of the CPU, accepts none.
            device_ids = None if device.type == "cpu" else [device.index]
            dist.barrier(device_ids=device_ids)


def gather_objects(obj: Any) -> list[Any]:
    """Return the object of every rank, in the order of the ranks, on every rank.

    Collective: every rank must call it.

    obj: numbers, texts, arrays, tensors, lists and dicts of them. `message.pack` lists the types.
    """
    if get_world_size() == 1:
        return [obj]
    own_bytes = _bytes_tensor(obj)
    # The watchdog counts one collective for the two all_gathers. This is enough, because every rank
    # calls both, one right after the other.
    with watchdog.collective("all_gather"):
        # Exchange the sizes first, because all tensors of an all_gather must have the same size.
        byte_counts = _gather_sizes(len(own_bytes))
        padded_bytes = _gather_padded(own_bytes, largest=max(byte_counts))
    objects = []
    for rank, byte_count in enumerate(byte_counts):
        content = padded_bytes[rank][:byte_count]  # without the padding
        objects.append(message.unpack(_to_bytes(content), rank))
    return objects


def _gather_sizes(own_size: int) -> list[int]:
    """Return the number of bytes that each rank sends.

    Raises DistError for a size that no message has, because the caller takes memory of this size.
    """
    device = get_device()
    sizes = []
    for _ in range(get_world_size()):
        sizes.append(torch.zeros(1, dtype=torch.long, device=device))
    dist.all_gather(sizes, torch.tensor([own_size], device=device))  # fills the tensors of `sizes`
    byte_counts = [int(size) for size in sizes]
    for rank, byte_count in enumerate(byte_counts):
        message.refuse_size(byte_count, rank)
    return byte_counts


def _gather_padded(own_bytes: Tensor, largest: int) -> list[Tensor]:
    """Return the bytes of each rank, padded with zeros to the size `largest`."""
    device = get_device()
    own_padded = torch.zeros(largest, dtype=torch.uint8)  # (largest,)
    own_padded[: len(own_bytes)] = own_bytes
    padded_bytes = []
    for _ in range(get_world_size()):
        padded_bytes.append(torch.empty(largest, dtype=torch.uint8, device=device))
    dist.all_gather(padded_bytes, own_padded.to(device))  # fills the tensors of `padded_bytes`
    return padded_bytes


def _bytes_tensor(obj: Any) -> Tensor:
    """Return an object as a tensor of its bytes on the CPU, (number of bytes,)."""
    # `frombuffer` shares the memory of its argument, and warns if this memory is read-only. So give
    # it a `bytearray`, because `bytes` are read-only.
    return torch.frombuffer(bytearray(message.pack(obj)), dtype=torch.uint8)


def _to_bytes(content: Tensor) -> bytes:
    """Return the values of a tensor of uint8, (number of bytes,), on any device, as bytes."""
    return bytes(content.cpu().numpy())


def from_rank(source: int, obj: Any) -> Any:
    """Return the object of rank `source`, on every rank.

    Collective: every rank must call it.

    source: number of the rank that sends.
    obj: the object to send, of the types of `gather_objects`. The objects of the other ranks are
        ignored; they may be None.
    """
    if get_world_size() == 1:
        return obj
    device = get_device()
    is_source = get_rank() == source
    # Only the source has bytes to send. The other ranks make a tensor for these bytes below, when
    # they know the size.
    own_bytes = _bytes_tensor(obj) if is_source else torch.empty(0, dtype=torch.uint8)
    with watchdog.collective("broadcast"):
        size = torch.tensor([len(own_bytes)], device=device)
        dist.broadcast(size, source)  # replaces `size` on the other ranks by the size of the source
        byte_count = int(size)
        message.refuse_size(byte_count, source)
        if is_source:
            content = own_bytes.to(device)
        else:
            content = torch.empty(byte_count, dtype=torch.uint8, device=device)
        dist.broadcast(content, source)  # fills `content` on the other ranks
    if is_source:
        return obj
    return message.unpack(_to_bytes(content), source)


def share_record_ids(record_ids: dict[str, Any] | None) -> None:
    """Tell all ranks where the results of the data check lie, as RUN.record_ids.

    Collective: every rank must call it.

    Only rank 0 checks the data, because the ranks read the same files. For each data set, rank 0
    writes the result to a file, a record. The other ranks, and the loader processes, find the
    records by their ids (data/clips/kept.py).

    record_ids: on rank 0, digest of the options of a data set -> id of its record. None if nothing
        was checked: RUN.record_ids is then {}. The values of the other ranks are ignored.
    """
    ids_of_rank_0 = from_rank(source=0, obj=record_ids)
    RUN.record_ids = ids_of_rank_0 or {}


def all_reduce_mean(tensor: Tensor) -> Tensor:
    """Return the mean of `tensor` over all ranks, on every rank.

    Collective: every rank must call it.

    tensor: a tensor of a floating type, with the same shape on all ranks. It is not changed.
    """
    mean = tensor.detach().clone()
    if dist.is_initialized():
        with watchdog.collective("all_reduce"):
            dist.all_reduce(mean)  # now `mean` is the sum over all ranks
        mean /= get_world_size()
    return mean


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return a copy of a nested value in which each tensor t is replaced by change(t).

    E.g. {"a": t1, "b": [t2, 3]} -> {"a": change(t1), "b": [change(t2), 3]}. The calls come in the
    order in which the tensors stand in `value`. `state_from_rank_0` relies on this order, because
    it calls a collective for each tensor.

    value: tensors and plain values in dicts, lists and tuples. A NamedTuple is not allowed, because
        its class cannot be made from one sequence.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def state_from_rank_0(state: Any) -> Any:
    """Return the nested `state` of rank 0 on every rank, with its tensors on the CPU.

    Collective: every rank must call it.

    The tensors are sent one by one, because a checkpoint may be larger than the memory that is free
    on the device.

    state: tensors and plain values in dicts, lists and tuples. Only rank 0 needs it.
    """
    if get_world_size() == 1:
        return state

    def without_numbers(tensor: Tensor) -> Tensor:
        """Return the tensor on torch's device "meta", where it has only a shape and a type."""
        return tensor.to("meta")

    # First send the outline: everything except the numbers of the tensors. E.g. {"step": 120,
    # "weights": a tensor (3, 4) without numbers}.
    outline = from_rank(source=0, obj=map_tensors(state, without_numbers))

    def broadcast(tensor: Tensor) -> Tensor:
        """Send the numbers of a tensor from rank 0 to the other ranks. Returns the whole tensor.

        tensor: on rank 0 the whole tensor, and on the other ranks the tensor of the outline.
        """
        if is_main_process():
            # `contiguous` closes gaps between the numbers, as in a slice with a step. `view` below
            # needs numbers without gaps.
            flat = tensor.contiguous().reshape(-1)
        else:
            flat = torch.empty(tensor.numel(), dtype=tensor.dtype)  # memory for the numbers
        # Send the numbers as bytes, because gloo does not know every dtype.
        content = flat.view(torch.uint8).to(get_device())  # (number of bytes,)
        dist.broadcast(content, 0)
        if is_main_process():
            return tensor
        # E.g. 24 bytes -> 6 numbers of float32 -> a tensor (2, 3).
        return content.cpu().view(tensor.dtype).view(tensor.shape)

    # Then send the numbers of each tensor. The outline has the tensors in the order of `state`,
    # so all ranks call the same broadcasts.
    own_tensors = state if is_main_process() else outline
    with watchdog.collective("broadcast"):
        return map_tensors(own_tensors, broadcast)
