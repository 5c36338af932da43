"""Trials of what cannot go well: launches that cannot work, and files that break during training.

tests/faults/trials.py runs all of these trials, and tests/faults/test_startup.py runs a few.
"""

import os
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.dist.launching import Ranks, free_port
from tests.helpers.train_files import MAIN, odd_command, write_odd_options, write_options

# ---- Launches ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BadLaunch:
    """A launch that cannot work, e.g. because the port is in use.

    name: what is wrong, for the report.
    message: words of the explanation that a rank must print.
    ranks: number of processes.
    env: environment variables of all processes.
    env_of: rank -> additional variables of this process. An empty value removes a variable.
    overrides: options of the command.

    In `message` and `env`, {port} stands for a port at which another program listens, and {free}
    for a free port.
    """

    name: str
    message: str
    ranks: int = 2
    env: Mapping[str, str] = field(default_factory=dict)
    env_of: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()


BAD_LAUNCHES = (
    BadLaunch(
        "a name that does not resolve",
        "MASTER_ADDR does not resolve: no-such-host.invalid",
        env={"MASTER_ADDR": "no-such-host.invalid"},
    ),
    BadLaunch("a port in use", "port {port} is in use", env={"MASTER_PORT": "{port}"}),
    # With WORLD_SIZE=1, rank 0 trains alone and opens no store. So rank 1 finds the other program
    # at the port.
    BadLaunch(
        "another program on the port",
        "is not the store of this run",
        env={"MASTER_PORT": "{port}"},
        env_of={0: {"WORLD_SIZE": "1"}},
    ),
    BadLaunch(
        "nobody at the port",
        "waits for rank 0 at 127.0.0.1",
        ranks=1,
        env={
            "RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "{free}",
        },
    ),
    BadLaunch(
        "ranks that were not started",
        "waiting for ranks 2, 3, 4 of 5",
        env={"WORLD_SIZE": "5"},
    ),
    BadLaunch(
        "one rank started twice",
        "rank 1 arrived twice",
        ranks=3,
        env={"WORLD_SIZE": "3"},
        env_of={2: {"RANK": "1"}},
    ),
    BadLaunch("a rank beyond the last", "RANK is 7, expected 0 to 1", env_of={1: {"RANK": "7"}}),
    BadLaunch(
        "a port that is no number",
        "MASTER_PORT is 'abc', no number",
        env_of={1: {"MASTER_PORT": "abc"}},
    ),
    BadLaunch("no address", "MASTER_ADDR is missing", env_of={1: {"MASTER_ADDR": ""}}),
    BadLaunch("no rank", "RANK is missing", env_of={1: {"RANK": ""}}),
    # The watchdog must end a run before torch's time-out ends it. The limit of the watchdog is 300
    # s by default (the option watchdog.stall_s). So a time-out of 200 s would come too early.
    BadLaunch(
        "time-outs in the wrong order",
        "the time-out of the process group is 200 s",
        env={"NCCL_TIMEOUT": "200"},
    ),
    # A batch of this run has 10 samples: 2 ranks with 5 samples each.
    BadLaunch(
        "fewer samples than one batch",
        "8 training samples are fewer than one batch of 10",
        overrides=("datasets.train.dataloader_batch_size=5",),
    ),
)


def seconds_until_explained(case: BadLaunch, limit_s: float = 60) -> float:
    """Return the seconds from the start of the processes until a rank prints the message.

    The time contains the start of Python. Raises AssertionError if the message does not come within
    `limit_s` seconds.
    """
    with tempfile.TemporaryDirectory() as folder, closing(open_silent_server()) as other:
        ports = {"port": str(other.getsockname()[1]), "free": str(free_port())}
        message = case.message.format(**ports)
        env = {name: value.format(**ports) for name, value in case.env.items()}
        command = (MAIN, "--opt", str(write_options(Path(folder))), *case.overrides)
        with Ranks(case.ranks, *command, env=env, env_of=case.env_of) as running:
            while not any(message in running.output(rank) for rank in range(case.ranks)):
                if time.monotonic() - running.start > limit_s:
                    raise AssertionError(
                        f"{case.name}: {message!r} never came\n{running.output(rank=0)}"
                    )
                time.sleep(0.02)
            return time.monotonic() - running.start


def open_silent_server() -> socket.socket:
    """Return the socket of a program that accepts connections and never answers."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


# ---- Files ---------------------------------------------------------------------------------------

# Number of bytes that "cut spikes" leaves of a spike file. These bytes are no whole number of
# planes: a plane of 16 x 16 bits has 32 bytes, and 100 = 3 x 32 + 4.
BYTES_LEFT = 100
# Kind of damage -> words of the error of a sample that reads the file.
BROKEN = {
    "vanished frame": "No such file",
    "cut frame": "cannot read image",
    "cut spikes": f"{BYTES_LEFT} bytes holds",
}


def damage(folder: Path, kind: str) -> None:
    """Break each frame or each spike file of the training clips.

    So the next sample reads a broken file, whichever sample it is. kind: a key of `BROKEN`.
    """
    frames = (folder / "GOPRO_Large/train").glob("*/sharp/*.png")
    spike_files = (folder / "GOPRO_Large_spike_seq/train").glob("*/spike/*.dat")
    if kind == "vanished frame":
        for frame in frames:
            frame.unlink()
    elif kind == "cut frame":
        for frame in frames:
            os.truncate(frame, frame.stat().st_size // 2)
    elif kind == "cut spikes":
        for spikes in spike_files:
            os.truncate(spikes, BYTES_LEFT)


@dataclass
class BrokenFile:
    """The end of a run whose files were damaged.

    kind: kind of the damage, a key of `BROKEN`.
    ranks: number of ranks.
    seconds: time from the damage until all ranks had gone.
    is_named: whether the message names a file, and all ranks ended with exit code 3.
    text: output of the ranks.
    """

    kind: str
    ranks: int
    seconds: float
    is_named: bool
    text: str


def break_file(kind: str, ranks: int) -> BrokenFile:
    """Break the files of a run while it trains.

    The run trains "odd", a network of one convolution, because it starts fast. Nothing else goes
    wrong in this run (case "none" of tests/dist/odd_worker.py).
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = write_odd_options(folder)
        command = odd_command(options, "train.total_iter=100000", case="none")
        with Ranks(ranks, *command) as running:
            running.wait_for("Iter: 1,", rank=0, limit_s=90)
            damage(folder, kind)
            damaged_at = time.monotonic()
            result = running.wait(limit_s=60)
            seconds = time.monotonic() - damaged_at
    says_what = BROKEN[kind] in result.text
    # train0 and train1 are the training clips of `write_options`.
    says_where = "/train0/" in result.text or "/train1/" in result.text
    has_code = result.exit_codes == [3] * ranks
    return BrokenFile(kind, ranks, seconds, says_what and says_where and has_code, result.text)
