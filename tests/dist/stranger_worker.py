"""A stranger that joins a run of two ranks as rank 1, and sends rank 0 a harmful pickle.

    stranger_worker.py PORT FILE BEAT

    PORT    the port of the run's store
    FILE    the file that rank 0 would create if it unpickled the message
    BEAT    the JSON text of a beat, which the stranger writes as rank 1

tests/dist/test_trust.py starts this program. The stranger writes the keys into the store that
utils/dist/rendezvous.py writes for a rank. If the keys of rendezvous.py change, change this file,
too. Otherwise rank 0 would wait for rank 1 in vain, and the message would never arrive.
"""

import os
import pickle
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

PORT = int(sys.argv[1])
FILE = Path(sys.argv[2])
BEAT = sys.argv[3]


class FileCreator:
    """An object that creates FILE when it is unpickled."""

    def __reduce__(self) -> Any:
        # pickle.loads would call os.system with this command.
        return os.system, (f"touch {FILE}",)


def join_as_rank_1() -> None:
    """Meet rank 0, and make the process group with it."""
    tcp = TCPStore("127.0.0.1", PORT, is_master=False, timeout=timedelta(seconds=60))
    store = PrefixStore("spikevrt/", tcp)
    store.add("joined", 1)
    store.add("arrived/1", 1)
    store.set("beat/1", BEAT)
    store.add("arrived", 1)
    store.set("met", "1")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=PrefixStore("group", store), rank=1, world_size=2)


def send(message: bytes) -> None:
    """Send a message in the first exchange of objects: first its size, then its padded bytes."""
    content = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(2)]
    dist.all_gather(sizes, torch.tensor([len(content)]))

    largest = int(max(sizes))
    padded = torch.zeros(largest, dtype=torch.uint8)
    padded[: len(content)] = content
    received = [torch.empty(largest, dtype=torch.uint8) for _ in range(2)]  # one for each rank
    dist.all_gather(received, padded)


if __name__ == "__main__":
    join_as_rank_1()
    send(pickle.dumps(FileCreator()))
    time.sleep(10)  # rank 0 must find the harmful message, and not a lost connection
