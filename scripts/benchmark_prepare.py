"""benchmark.py prepare: how much faster prepare_gopro_spike.py is with more processes, and the memory of each."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from scripts.benchmark_tools import table
from scripts.sample_scenes import texture
from utils.errors import DataError
from utils.files import sha256_of

SCRIPT = Path(__file__).with_name("prepare_gopro_spike.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clips", type=int, default=8, help="small clips, of different lengths")
    parser.add_argument("--frames", type=int, default=400, help="raw frames of a small clip, in the mean")
    parser.add_argument("--size", type=int, nargs=2, default=(96, 160), metavar=("H", "W"), help="of small frames")
    parser.add_argument("--large-frames", type=int, default=240, help="raw frames of a clip of 720 x 1280; 0: none")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of processes; the first is 1")
    parser.add_argument("--repeats", type=int, default=3, help="runs with each number of processes, in turn")


def run(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        speed = time_small(folder, args)
        memory = watch_large(folder, args) if args.large_frames else {}
    return {"cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d"), "speed": speed, "memory": memory}


def time_small(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the whole command for many small frames, by number of processes, and the speed-up over one."""
    lengths = np.linspace(0.75, 1.25, args.clips) * args.frames
    for clip, length in enumerate(lengths.astype(int).tolist()):
        write_clip(folder / "small" / ("test" if clip % 3 == 1 else "train"), clip, length, *args.size)
    runs: dict[int, list[dict[str, Any]]] = {workers: [] for workers in args.workers}
    for turn in range(args.repeats):
        for workers in args.workers:
            runs[workers].append(prepare(folder / "small", folder / f"out{turn}_{workers}", workers))
    if len({each["digest"] for found in runs.values() for each in found}) > 1:
        raise DataError("runs with different numbers of processes wrote different files", str(folder), "the same files")
    rows, speed = [], {}
    for workers, found in runs.items():
        ratios = [one["s"] / many["s"] for one, many in zip(runs[args.workers[0]], found, strict=True)]
        speed[workers] = {"runs": found, "speed_up": statistics.median(ratios)}
        rows.append([
            workers, statistics.median(each["s"] for each in found), statistics.median(each["cpu_s"] for each in found),
            f"{speed[workers]['speed_up']:.2f}", f"{max(each['process_mb'] for each in found):.0f}",
            " ".join(f"{each['load']:.1f}" for each in found),
        ])  # fmt: skip
    frames = sum(lengths.astype(int))
    print(f"\n{args.clips} clips, {frames} raw frames of {args.size[0]} x {args.size[1]}; {os.cpu_count()} cores")
    print(table(rows, ["processes", "s", "CPU s", "speed-up", "MB a process", "load before"]))
    return {"clips": args.clips, "raw_frames": int(frames), "size": list(args.size), "processes": speed}


def watch_large(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of a process for a clip of GoPro's size, and for one half as long: all files, and --spikes-for."""
    rows = []
    for frames in (args.large_frames // 2, args.large_frames):
        source, out = folder / f"large{frames}", folder / f"large_out{frames}"
        write_clip(source / "train", 0, frames, 720, 1280)
        rows.append({"raw_frames": frames, "made": "all", **prepare(source, out, args.workers[-1])})
        more = prepare(source, folder / f"more{frames}", args.workers[-1], "--spikes-for", str(out / "GOPRO_Large"))
        rows.append({"raw_frames": frames, "made": "spikes for existing frames", **more})
    print("\nOne clip of 720 x 1280")
    print(table([[r["raw_frames"], r["made"], r["process_mb"], r["s"]] for r in rows],
                ["raw frames", "made", "MB a process", "s"]))  # fmt: skip
    return {"size": [720, 1280], "runs": rows}


def write_clip(folder: Path, number: int, frames: int, height: int, width: int) -> None:
    """A raw clip in GoPro's layout whose PNGs compress about as much as GoPro's."""
    rng = np.random.default_rng(number)
    picture = (255 * texture(rng, max(height, width))[:height, :width]).astype(np.uint8)
    grain = rng.normal(0, 2.0, picture.shape).astype(np.float32)
    path = folder / f"GOPR{number:04d}_{(7, 9, 11)[number % 3]:02d}_00"
    path.mkdir(parents=True)
    for frame in range(frames):
        moved = np.roll(picture, frame, axis=1) + np.roll(grain, 7 * frame, axis=0)
        cv2.imwrite(str(path / f"{frame + 1:06d}.png"), np.clip(moved, 0, 255).astype(np.uint8))


def prepare(source: Path, out: Path, workers: int, *more: str) -> dict[str, Any]:
    """One run of the command: its seconds, the CPU seconds of all its processes, the largest peak memory of one."""
    load, before, begin = os.getloadavg()[0], used_s(), time.perf_counter()
    command = [
        sys.executable,
        str(SCRIPT),
        "--source",
        str(source),
        "--out",
        str(out),
        "--workers",
        str(workers),
        *more,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    seconds, used = time.perf_counter() - begin, used_s() - before
    peak = re.search(r"peak memory of a process: (\d+) MB", done.stdout)
    if done.returncode or peak is None:
        raise DataError(f"prepare_gopro_spike.py ended with {done.returncode}", " ".join(command), "0", "see above")
    names = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    digest = hashlib.sha256("".join(f"{name} {sha256_of(out / name)}\n" for name in names).encode()).hexdigest()[:16]
    return {"s": seconds, "cpu_s": used, "process_mb": int(peak[1]), "load": load, "digest": digest}


def used_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


SUBCOMMANDS = {"prepare": (add_arguments, run)}
