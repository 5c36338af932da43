"""Trials of what cannot go well: wrong environments at the start, files that break later."""

import os
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.dist.launching import Ranks, free_port
from tests.helpers.train_files import MAIN, odd_command, write_odd, write_options

NO_HOST = {"MASTER_ADDR": "no-such-host.invalid"}


@dataclass(frozen=True)
class Environment:
    """A launch that cannot work. message: the words that explain it; {port}: one where another
    program listens.
    """

    name: str
    message: str
    ranks: int = 2
    env: Mapping[str, str] = field(default_factory=dict)
    env_of: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()


NOBODY = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "{free}",
}
ENVIRONMENTS = (
    Environment("a name that does not resolve",
        "MASTER_ADDR does not resolve: no-such-host.invalid", env=NO_HOST),
    Environment("a port in use", "port {port} is in use", env={"MASTER_PORT": "{port}"}),
    Environment("another program on the port", "is not the store of this run", 2,
        {"MASTER_PORT": "{port}"}, {0: {"WORLD_SIZE": "1"}}),
    Environment("nobody at the port", "waits for rank 0 at 127.0.0.1", 1, NOBODY),
    Environment("ranks that were not started", "waiting for ranks 2, 3, 4 of 5",
        env={"WORLD_SIZE": "5"}),
    Environment("one rank started twice", "rank 1 arrived twice", 3, {"WORLD_SIZE": "3"},
        {2: {"RANK": "1"}}),
    Environment("a rank beyond the last", "RANK is 7, expected 0 to 1", env_of={1: {"RANK": "7"}}),
    Environment("a port that is no number", "MASTER_PORT is 'abc', no number",
        env_of={1: {"MASTER_PORT": "abc"}}),
    Environment("no address", "MASTER_ADDR is missing", env_of={1: {"MASTER_ADDR": ""}}),
    Environment("no rank", "RANK is missing", env_of={1: {"RANK": ""}}),
    Environment("time-outs in the wrong order", "the time-out of the", env={"NCCL_TIMEOUT": "200"}),
    Environment("fewer samples than one batch", "8 training samples are fewer than one batch of 10",
                overrides=("datasets.train.dataloader_batch_size=5",)),
)  # fmt: skip


def seconds_until_explained(case: Environment, limit_s: float = 60) -> float:
    """From the start of the processes, Python's own start included, to the words that explain what
    is wrong.
    """
    with tempfile.TemporaryDirectory() as folder, closing(stranger()) as other:
        ports = {"port": str(other.getsockname()[1]), "free": str(free_port())}
        message, env = (
            case.message.format(**ports),
            {k: v.format(**ports) for k, v in case.env.items()},
        )
        command = ("--opt", str(write_options(Path(folder))), *case.overrides)
        with Ranks(case.ranks, MAIN, *command, env=env, env_of=case.env_of) as running:
            while not any(message in running.output(rank) for rank in range(case.ranks)):
                if time.monotonic() - running.start > limit_s:
                    raise AssertionError(
                        f"{case.name}: {message!r} never came\n{running.output(0)}"
                    )
                time.sleep(0.02)
            return time.monotonic() - running.start


def stranger() -> socket.socket:
    """Something that accepts connections and never answers."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


# What a sample says when its file breaks; {clip} and {frame} are in the path that is named.
BROKEN = {
    "vanished frame": "No such file",
    "cut frame": "cannot read image",
    "cut spikes": "100 bytes holds",
}


def damage(folder: Path, kind: str) -> None:
    """Break every frame of every training clip, so that the next samples meet it whatever their
    order.
    """
    for frame in (folder / "GOPRO_Large/train").glob("*/sharp/*.png"):
        if kind == "vanished frame":
            frame.unlink()
        elif kind == "cut frame":
            os.truncate(frame, frame.stat().st_size // 2)
    if kind == "cut spikes":
        for spikes in (folder / "GOPRO_Large_spike_seq/train").glob("*/spike/*.dat"):
            os.truncate(spikes, 100)


@dataclass
class BrokenFile:
    """seconds: from the damage until all ranks had gone; is_named: the file in the message, the
    exit code 3 on all.
    """

    kind: str
    ranks: int
    seconds: float
    is_named: bool
    text: str


def break_file(kind: str, ranks: int) -> BrokenFile:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Ranks(ranks, *odd_command(write_odd(folder), "train.total_iter=100000")) as running:
            running.wait_for("Iter: 1,", rank=0, limit_s=90)
            damage(folder, kind)
            damaged = time.monotonic()
            result = running.wait(60)
            seconds = time.monotonic() - damaged
        named = BROKEN[kind] in result.text and (
            "/train0/" in result.text or "/train1/" in result.text
        )
        return BrokenFile(
            kind, ranks, seconds, named and result.exit_codes == [3] * ranks, result.text
        )
