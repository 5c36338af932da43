"""When torchrun with --max-restarts starts the ranks again, and when it does not.

A restart mends a host that failed, a lost connection or a rank that hung. It mends no wrong option,
no wrong file and no NaN, and a run that a signal stopped waits for its queue.
"""

from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.launcher import api

# Wrong options or launch, bad data, NaN or Inf, stopped by a signal, Ctrl-C:
# docs/troubleshooting.md.
FINAL = (2, 3, 4, 75, 130)


class FinalError(Exception):
    """The run ended with a code of FINAL."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def only_after_faults_that_pass(exit_file: Path) -> None:
    """Make torchrun's agent look at the run's exit code before it restarts the ranks.

    exit_file: file into which the first rank that ends writes its code. It is emptied for each
    start.
    """

    class Agent(LocalElasticAgent):
        def _restart_workers(self, worker_group: Any) -> None:
            codes = exit_file.read_text(encoding="ascii").split()
            if codes and int(codes[0]) in FINAL:
                self._stop_workers(worker_group)
                raise FinalError(int(codes[0]))
            exit_file.write_text("\n", encoding="ascii")
            super()._restart_workers(worker_group)

    launcher: Any = api  # torch has no argument for the class of the agent
    launcher.LocalElasticAgent = Agent
