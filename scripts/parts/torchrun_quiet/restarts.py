"""Decide when torchrun with --max-restarts starts the ranks again, and when it does not.

    what ended the ranks                                    does torchrun start them again?
    a failed host, a lost connection, a rank that hung      yes, because a restart can help
    a wrong option, a wrong file, NaN                       no, because the error would come again
    a signal that stopped the run                           no, the queue of the cluster does that

scripts/torchrun_quiet.py calls `never_restart_after_final_codes` before it starts torchrun's agent,
the process that starts and watches the ranks of a host.

What must stay: no run is restarted after a final code
(test_torchrun_restarts_no_run_that_a_restart_does_not_mend).
Free to change: FINAL_CODES, if docs/troubleshooting.md says the same of the code.
"""

from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.launcher import api

# Exit codes after which a restart would end in the same way (docs/troubleshooting.md). The numbers
# are copies: the classes of utils/errors.py have 2 to 4, utils/dist/stop.py has 75. If a code is
# missing here, torchrun restarts runs without success. If a code is here by mistake, torchrun ends
# a run that a restart could have saved. Tests: tests/dist/test_torchrun.py
FINAL_CODES = (
    2,  # wrong options or launch
    3,  # bad data
    4,  # NaN or Inf
    75,  # stopped by a signal
    130,  # Ctrl-C
)


class FinalError(Exception):
    """The run ended with a code of FINAL_CODES. scripts/torchrun_quiet.py ends with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def never_restart_after_final_codes(exit_file: Path) -> None:
    """Make torchrun's agent look at the run's exit code before it restarts the ranks.

    If the code is one of FINAL_CODES, the agent stops the ranks and raises FinalError. The change
    holds for the rest of this process, because it replaces a class in a module of torch.

    exit_file: file into which the first rank that ends writes its exit code. The agent empties the
    file before each restart.
    """

    class Agent(LocalElasticAgent):
        """torchrun's agent, which calls `_restart_workers` after each fault of a rank."""

        def _restart_workers(self, worker_group: Any) -> None:
            """Restart the ranks, as the base class does, unless the run's exit code is final.

            worker_group: the ranks of this host, an object of torch.
            """
            # The file has no code if the ranks were killed before one of them could write.
            codes = exit_file.read_text(encoding="ascii").split()
            if codes:
                code = int(codes[0])
                if code in FINAL_CODES:
                    self._stop_workers(worker_group)
                    raise FinalError(code)
            # The newline reserves a block of the disk, so that a rank can write its code on a full
            # disk.
            exit_file.write_text("\n", encoding="ascii")
            super()._restart_workers(worker_group)

    # torch has no argument for the class of the agent. Its launcher finds the class by this name.
    launcher: Any = api
    launcher.LocalElasticAgent = Agent
