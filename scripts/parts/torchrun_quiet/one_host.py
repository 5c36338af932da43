"""Let the ranks of one host meet without a port of torchrun's agent.

torchrun's agent is the process that starts the ranks of a host and watches them. Before it starts
them, it needs a rendezvous: a place where the agents of all hosts agree on who takes part, and a
store in which they keep notes. `torchrun --standalone` opens such a store on every address of the
host, and loads pickles from it. So any program that reaches the port could run code here.

With `OneHost` the agent keeps its notes in its own memory, because there is no other agent. The
ranks need a store too. Rank 0 opens this store on the loopback, which other hosts do not reach.

scripts/torchrun_quiet.py calls `use` if all ranks are on one host.

What must stay: the loopback (test_ranks_of_one_host_listen_on_the_loopback_alone), and the names of
the methods of `OneHost`, because torch calls them.

Tests: tests/dist/test_trust.py, tests/dist/test_torchrun.py
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

BACKEND = "one-host"  # the name of this rendezvous in torchrun's arguments
LOOPBACK = "127.0.0.1"


def use(args: Namespace) -> None:
    """Change torchrun's parsed arguments so that its agent uses `OneHost`."""
    rendezvous_handler_registry.register(BACKEND, OneHost)
    args.standalone = False
    args.rdzv_backend = BACKEND
    args.rdzv_id = str(uuid.uuid4())


class OneHost(RendezvousHandler):
    """The rendezvous of a single agent. It is complete at once, because nobody else must join.

    torchrun's agent calls these methods. Their names and results are torch's.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        self.run_id = parameters.run_id

    def get_backend(self) -> str:
        """Return the name under which `use` has registered this class."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the agent's store and rank, and the address at which rank 0 opens its store.

        The agent calls this method before each start of the ranks. So each start has a new port,
        and ranks of a former start cannot disturb the new ranks.
        """
        # Port 0 lets the system choose a free port. The socket is closed again immediately, because
        # rank 0 opens the port itself.
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port = free.getsockname()[1]
        return RendezvousInfo(
            store=HashStore(),
            rank=0,  # the number of this agent
            world_size=1,  # the number of agents
            bootstrap_store_info=RendezvousStoreInfo(LOOPBACK, port),
        )

    def is_closed(self) -> bool:
        """Return False: nobody can close the rendezvous of a single agent."""
        return False

    def set_closed(self) -> None:
        """Do nothing: no other agent asks whether the rendezvous is closed."""

    def num_nodes_waiting(self) -> int:
        """Return how many other agents wait to join."""
        return 0

    def get_run_id(self) -> str:
        """Return the identifier of this run, which `use` has made."""
        return self.run_id

    def shutdown(self) -> bool:
        """Return whether the rendezvous could be closed. There is nothing to close."""
        return True
