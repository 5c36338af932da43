#!/usr/bin/env python3
"""Start ranks as torchrun does, but end with the exit code of the run and without a traceback.

usage:
    python scripts/torchrun_quiet.py --standalone --nproc_per_node=2 main_train_vrt.py --opt FILE
    python scripts/torchrun_quiet.py --nnodes=2 --node_rank=K --nproc_per_node=8 \\
        --master_addr=HOST --master_port=29500 main_train_vrt.py --opt FILE
    python scripts/torchrun_quiet.py --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d \\
        --rdzv_endpoint=HOST:29500 main_train_vrt.py --opt FILE
    python scripts/torchrun_quiet.py --standalone --nproc_per_node=8 --max-restarts=3 \\
        main_train_vrt.py --opt FILE

The arguments are torchrun's arguments, see `torchrun --help`. Four things differ from torchrun:

    exit code     torchrun turns every exit code of a rank into 1, and prints a traceback after the
                  message of the run. This program ends with the code of the rank that failed first.
    signals       SIGUSR1 reaches the ranks, and after a signal they have 180 seconds to save, with
                  every supported version of torchrun.
    restarts      --max-restarts does not repeat a run that would fail again
                  (scripts/parts/torchrun_quiet/restarts.py).
    one host      The ranks meet without a server that other machines can reach
                  (scripts/parts/torchrun_quiet/one_host.py).

launch_train.sh starts this program. Tests: tests/dist/test_torchrun.py
"""

import os
import secrets
import signal
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from types import FrameType

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# What must stay: the names of the three environment variables (`main`), because the ranks read
# them. The exit code must stay, too, because schedulers read it, e.g. to start a stopped run again
# (test_a_signal_to_the_launcher_saves_the_run_for_another_start,
# test_torchrun_restarts_no_run_that_a_restart_does_not_mend).
# Free to change: texts. Remove a function with a version in its name when this version is no longer
# supported.

from utils import system
from utils.errors import DistError

# Signals that torchrun passes on to the ranks. Without SIGUSR1 in this list, SIGUSR1 would kill
# this launcher and not reach the ranks.
SIGNALS = "SIGTERM,SIGINT,SIGQUIT,SIGUSR1"
# Seconds between such a signal and SIGKILL. The ranks finish their step and save. torchrun's own
# 30 s would interrupt the saving of a large checkpoint.
GRACE_S = 180


def main(argv: list[str]) -> int:
    """Start the ranks as torchrun does, wait for them, and return the exit code of the run.

    The ranks read three environment variables that this program sets:

        SPIKEVRT_EXIT_FILE    the file for the exit code of the rank that fails first
        SPIKEVRT_JOB_KEY      a secret, with which the ranks recognise one another
        OMP_NUM_THREADS       the number of threads of each rank
    """
    # argv[:1] is a list with the first argument, or [] without arguments.
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    import torch  # not before --help, because it is slow
    from torch.distributed import run

    args = run.parse_args([*signal_flags(), *argv])

    # The number of ranks of this host. torchrun also takes "gpu", "cpu" and "auto" in place of a
    # number, and chooses the number later. For these words, `ranks` is None.
    ranks = int(args.nproc_per_node) if args.nproc_per_node.isdigit() else None
    # More ranks than GPUs would fail much later, with a message of CUDA. So refuse them here. With
    # 0 GPUs the ranks run on the CPU, and any number is right.
    gpus = torch.cuda.device_count()
    if ranks is not None and 0 < gpus < ranks:
        error = DistError(
            what=f"{ranks} ranks on {gpus} GPUs",
            where="this machine",
            expected="at most one rank per GPU",
            do=f"start {gpus}",
        )
        print(error, file=sys.stderr)
        return DistError.exit_code

    if is_on_one_host(args):
        from scripts.parts.torchrun_quiet import one_host  # needs torch

        # Let the ranks meet on this host without a server that other machines can reach.
        one_host.use(args)  # changes `args`
        # One launcher starts all ranks, so it can give them a secret. With this secret a rank
        # proves that a message comes from this run ("Trust" in docs/ddp_reference.md).
        os.environ.setdefault("SPIKEVRT_JOB_KEY", secrets.token_hex(32))
    if ranks is not None:
        # The cores are divided among the ranks, and each rank gets at least one thread. Without
        # this variable, torchrun would set 1 and print a warning.
        threads = max(1, len(system.cores()) // ranks)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    return run_ranks(args)


def signal_flags() -> list[str]:
    """Return torchrun's flags for SIGNALS and GRACE_S.

    torch 2.8 does not have these flags. With torch 2.8, this function changes torchrun within this
    process, so it must be called before the agent starts. The agent is the part of torchrun that
    starts and watches the ranks.
    """
    from torch.distributed import run

    help_text = run.get_args_parser().format_help()  # names every flag of this torchrun
    # nohup makes this process and its ranks ignore SIGHUP, so that the run goes on after the
    # terminal is closed. If torchrun handled SIGHUP, closing the terminal would end the run. So
    # under nohup, SIGHUP is not among the handled signals.
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = SIGNALS if is_nohup else f"{SIGNALS},SIGHUP"
    flags = []
    if "--signals-to-handle" in help_text:
        flags.append(f"--signals-to-handle={handled}")
    else:
        handle_signals_in_torch_2_8(handled, is_nohup)
    if "--shutdown-timeout" in help_text:
        flags.append(f"--shutdown-timeout={GRACE_S}")
    else:
        set_grace_in_torch_2_8()
    return flags


def handle_signals_in_torch_2_8(handled: str, is_nohup: bool) -> None:
    """Make the torchrun of torch 2.8 pass SIGUSR1 on, and let SIGHUP have no effect under nohup.

    torch 2.8 handles all other signals of `handled` already. This function changes the signal
    handlers and the environment of this process.

    handled: names of the signals, e.g. "SIGTERM,SIGUSR1".
    is_nohup: whether this process was started by nohup, which makes it ignore SIGHUP.

    Test: test_a_run_under_nohup_continues_after_a_logout
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    def on_signal(number: int, _: FrameType | None) -> None:
        """Raise the error with which the agent learns of a signal."""
        # torchrun's own handlers raise this error as well. Then the agent passes the signal on to
        # the ranks, and waits for them.
        raise SignalException(f"process {os.getpid()} got signal {number}", signal.Signals(number))

    signal.signal(signal.SIGUSR1, on_signal)
    # torch 2.8 always installs a handler for SIGHUP. A blocked signal does not reach its handler.
    # So block SIGHUP under nohup.
    if is_nohup:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # Newer versions tell the ranks in this variable which signals arrive.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = handled


def set_grace_in_torch_2_8() -> None:
    """Make the agent of torch 2.8 wait for GRACE_S before it kills the ranks.

    torch 2.8 has the function PContext.close(self, death_sig=None, timeout=30). The timeout is the
    number of seconds until SIGKILL. The agent never passes a timeout, so the default counts. The
    defaults of a Python function are a tuple. Here this tuple is replaced for the whole process.
    """
    from torch.distributed.elastic.multiprocessing.api import PContext

    default_of_death_sig = None
    default_of_timeout = GRACE_S
    PContext.close.__defaults__ = (default_of_death_sig, default_of_timeout)


def run_ranks(args: Namespace) -> int:
    """Run torchrun's agent until all ranks have ended. Return the exit code of the run.

    torchrun does not report the exit code of a rank. So the first rank that ends with an error
    writes its code to a file (utils/dist/process.py).
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from scripts.parts.torchrun_quiet import restarts  # needs torch

    with tempfile.NamedTemporaryFile("w+", encoding="ascii") as exit_file:
        # A first byte reserves a block of the disk. So a rank can write its code even on a full
        # disk.
        exit_file.write("\n")
        exit_file.flush()
        os.environ["SPIKEVRT_EXIT_FILE"] = exit_file.name
        # With --max-restarts, torchrun starts the ranks again after any fault. After wrong options,
        # for example, the next start would end in the same way. So this call makes torchrun raise
        # FinalError after exit codes that are final.
        restarts.never_restart_after_final_codes(Path(exit_file.name))
        try:
            run.run(args)
            return 0
        except restarts.FinalError as e:  # its code is the exit code of a rank
            return e.code
        except (ChildFailedError, SignalException) as e:
            # The file has "\n" and what a rank wrote, e.g. "\n3" -> ["3"]. If no rank wrote a code,
            # "\n" -> [].
            written = Path(exit_file.name).read_text(encoding="ascii").split()
            if written:
                return int(written[0])
            # No rank wrote a code: a rank was killed before it could write, or a signal ended the
            # launcher.
            if isinstance(e, SignalException):
                # If a signal ends a program, a shell reports the code 128 + number of the signal.
                # So return the same code.
                return 128 + e.sigval
            print(e, file=sys.stderr)
            return 1


def is_on_one_host(args: Namespace) -> bool:
    """Return whether torchrun's arguments say that all ranks run on this host."""
    if args.standalone:
        return True
    # --nnodes is the number of hosts, or the least and the largest number: "1:1" is one host, too.
    is_one_node = args.nnodes in ("1", "1:1")
    # With an endpoint or another backend, the user has chosen how the ranks meet.
    is_default_meeting = not args.rdzv_endpoint and args.rdzv_backend in ("static", "c10d")
    return is_one_node and is_default_meeting


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
