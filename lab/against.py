"""This checkout against another one, in turn: network 006 and its peak memory, samples, start of
training.

    python lab/against.py OTHER_CHECKOUT [--rounds 4] [--only network|samples|start]

Prints the least figures of all rounds, and their ratio: process seconds of one thread, GB of a
step, and the sum of its gradients' sizes: are the numbers the same? Samples (of one threshold) and
start need trainsets/sample.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.tools import NAMED, ROOT

# Run in each checkout, with the arguments of main_train_vrt.py; each prints its figures, as JSON,
# at the end.
HEAD = """
import json, os, sys, time
sys.path.insert(0, "")
import torch
torch.set_num_threads(1)
def least(run, repeats=2):
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)
"""
PROGRAMS = {
    "network": """
from models.network_vrt import VRT
torch.manual_seed(0)
net = VRT(**NETWORK, drop_path_rate=0.0)
torch.nn.init.normal_(net.conv_last.weight, std=0.1)
x = torch.rand(1, 6, 3, 64, 64)
def step():
    net.zero_grad(set_to_none=True)
    net(x).square().mean().backward()
figures = {"step s": least(step), "inference s": least(lambda: torch.no_grad()(net)(x))}
with torch.autocast("cpu", torch.bfloat16):
    figures["bfloat16 step s"] = least(step)
    figures["bfloat16 inference s"] = least(lambda: torch.no_grad()(net)(x))
net.zero_grad(set_to_none=True)
step()
gradients = [p.grad for p in net.parameters() if p.grad is not None]
figures["gradients"] = sum(float(gradient.abs().sum()) for gradient in gradients)
net.zero_grad(set_to_none=True)
kinds = [torch.profiler.ProfilerActivity.CPU]
with torch.profiler.profile(activities=kinds, profile_memory=True) as profiled:
    step()
events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
sizes = torch.tensor([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
print(json.dumps({**figures, "peak GB": int(sizes.cumsum(0).max()) / 1e9}))
""".replace("NETWORK", repr(NAMED["006"])),
    "samples": """
import main_train_vrt
from data.select_dataset import build_dataset
dataset = build_dataset(main_train_vrt.read_options(sys.argv[1:]).datasets.train, "train", 0)
samples = lambda: [dataset[(0, i % len(dataset))] for i in range(8)]
print(json.dumps({"8 samples s": least(samples, 5)}))
""",
    "start": """
import main_train_vrt
main_train_vrt.main(sys.argv[1:])
print(json.dumps({"training of one step s": sum(os.times()[:4])}))
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=PROGRAMS)
    args = parser.parse_args()
    data, options = (
        Path("trainsets/sample").resolve(),
        ["--opt", "options/vrt/000_train_vrt_sample_rgbspike.json"],
    )
    options += [
        "datasets.test=null",
        "train.total_iter=1",
        "datasets.train.camera.threshold_range=[0.7,0.7]",
    ]
    for kind, name in {
        "gt": "GOPRO_Large",
        "lq": "GOPRO_Large",
        "spike": "GOPRO_Large_spike_seq",
    }.items():
        options.append(f"datasets.train.dataroot_{kind}={data / name / 'train'}")
    for program in [args.only] if args.only else PROGRAMS:
        turns = []
        for root in (args.other, ROOT) * args.rounds:
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    sys.executable,
                    "-c",
                    HEAD + PROGRAMS[program],
                    *options,
                    f"path.root={folder}",
                ]
                done = subprocess.run(
                    command, cwd=root, stdout=subprocess.PIPE, text=True, check=True
                )
            turns.append(json.loads(done.stdout.splitlines()[-1]))
        for name in turns[0]:
            other, this = (min(turn[name] for turn in turns[first::2]) for first in (0, 1))
            print(
                f"{name}: other {other:.4g}, this {this:.4g}, ratio {this / other:.4f}", flush=True
            )


if __name__ == "__main__":
    main()
