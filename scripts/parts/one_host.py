"""How torchrun's agent lets the ranks of one host meet: without a port of its own.

`torchrun --standalone` opens a store on every address of the host, and loads pickles from it. Here
the agent keeps what it notes in its own memory. Rank 0 opens the store of the run, on the loopback.
"""

import socket
import uuid
from argparse import Namespace

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

BACKEND = "one-host"
LOOPBACK = "127.0.0.1"


def use(args: Namespace) -> None:
    """Change torchrun's parsed arguments so that its agent uses this meeting."""
    rendezvous_handler_registry.register(BACKEND, OneHost)
    args.standalone = False
    args.rdzv_backend = BACKEND
    args.rdzv_id = str(uuid.uuid4())


class OneHost(RendezvousHandler):
    """A meeting of one agent, which is complete at once. Each start of the ranks has a new port."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self.run_id = parameters.run_id

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port = free.getsockname()[1]
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo(LOOPBACK, port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nobody else asks."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.run_id

    def shutdown(self) -> bool:
        return True
