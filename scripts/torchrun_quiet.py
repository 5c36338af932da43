#!/usr/bin/env python3
"""torchrun with the run's own exit code, and without torchrun's traceback after the run's message.

usage:
    python scripts/torchrun_quiet.py --standalone --nproc_per_node=2 main_train_vrt.py --opt FILE
    python scripts/torchrun_quiet.py --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d \\
        --rdzv_endpoint=HOST:29500 main_train_vrt.py --opt FILE

Takes torchrun's arguments (`torchrun --help` lists them). torchrun itself turns every exit code of
a worker into 1 and ends with its own traceback. SIGUSR1 reaches the ranks, and after a signal they
have GRACE_S seconds, with every supported version of torchrun.
"""

import os
import secrets
import signal
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import system
from utils.errors import DistError

# Without SIGUSR1 here that signal would kill the launcher without reaching the ranks.
SIGNALS = "SIGTERM,SIGINT,SIGQUIT,SIGUSR1"
# After a signal the ranks finish their step and save; torchrun's 30 s would cut a large checkpoint
# short.
GRACE_S = 180


def main(argv: list[str]) -> int:
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    import torch  # not before --help
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    def on_signal(number: int, _: FrameType | None) -> None:
        # What torchrun's handlers do: the agent passes the signal on to the ranks and waits for
        # them.
        raise SignalException(f"process {os.getpid()} got signal {number}", signal.Signals(number))

    # SIGNALS and GRACE_S by torchrun's own flags where this version has them.
    known = run.get_args_parser().format_help()
    # nohup lets a program ignore SIGHUP. The ranks inherit that if torchrun leaves it alone.
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = SIGNALS if is_nohup else f"{SIGNALS},SIGHUP"
    own = []
    if "--signals-to-handle" in known:
        own.append(f"--signals-to-handle={handled}")
    else:  # torch 2.8: torchrun handles all but SIGUSR1
        signal.signal(signal.SIGUSR1, on_signal)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP} if is_nohup else ())
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = handled  # what newer versions tell the ranks
    if "--shutdown-timeout" in known:
        own.append(f"--shutdown-timeout={GRACE_S}")
    else:  # the agent calls close(signal): the time is the default of the argument `timeout`
        PContext.close.__defaults__ = (None, GRACE_S)
    args, gpus = run.parse_args([*own, *argv]), torch.cuda.device_count()
    if args.nproc_per_node.isdigit() and 0 < gpus < int(args.nproc_per_node):
        what = f"{args.nproc_per_node} ranks on {gpus} GPUs"
        print(
            DistError(what, "this machine", "at most one rank per GPU", f"start {gpus}"),
            file=sys.stderr,
        )
        return DistError.exit_code
    if is_on_one_host(args):
        from scripts.parts import one_host  # needs torch

        one_host.use(args)
        # One launcher starts all ranks, so it can share a secret with them: see docs/ddp.md on
        # trust.
        os.environ.setdefault("SPIKEVRT_JOB_KEY", secrets.token_hex(32))
    if args.nproc_per_node.isdigit():  # torchrun would set 1, with a warning
        os.environ.setdefault(
            "OMP_NUM_THREADS", str(max(1, len(system.cores()) // int(args.nproc_per_node)))
        )
    with tempfile.NamedTemporaryFile("w+", encoding="ascii") as exit_file:
        # A first byte reserves a block of the disk, so that a rank can write its code even on a
        # full disk.
        exit_file.write("\n")
        exit_file.flush()
        os.environ["SPIKEVRT_EXIT_FILE"] = exit_file.name
        from scripts.parts import restarts  # needs torch

        restarts.only_after_faults_that_pass(Path(exit_file.name))
        try:
            run.run(args)
            return 0
        except restarts.FinalError as e:
            return e.code
        except (ChildFailedError, SignalException) as e:
            # The exit code that the first rank to end wrote; none where a rank was killed before it
            # could.
            written = Path(exit_file.name).read_text(encoding="ascii").split()
            if not written and isinstance(e, ChildFailedError):
                print(e, file=sys.stderr)
            return (
                int(written[0])
                if written
                else 1
                if isinstance(e, ChildFailedError)
                else 128 + e.sigval
            )


def is_on_one_host(args: Namespace) -> bool:
    """Whether torchrun's arguments say that all ranks run on this host."""
    is_one_node = args.nnodes in ("1", "1:1") and not args.rdzv_endpoint
    return args.standalone or (is_one_node and args.rdzv_backend in ("static", "c10d"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
