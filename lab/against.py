"""Compare this checkout with another checkout: time and memory of the network, samples, start.

    python lab/against.py OTHER_CHECKOUT [--rounds 4] [--only network|samples|start]

Each of PROGRAMS runs in both checkouts in turn, as a process of its own, and prints figures:

network: CPU seconds of a training step and of a restoration, in float32 and bfloat16, and the peak
    memory of the step in GB. The network is 006, the deblurring network for GoPro. `gradients` is
    the sum of the absolute values of all gradients. It is no cost: if its ratio is not 1, the two
    checkouts compute different numbers.
samples: CPU seconds of reading eight training samples.
start: CPU seconds of a training of one step, with its imports.

For each figure, the program prints the least value of all rounds in each checkout, and the ratio of
the two values, this / other. A ratio below 1 says that this checkout is faster, or needs less
memory:

    step s: other 26.81, this 24.55, ratio 0.9157

The programs samples and start need the data of `make sample` in trainsets/sample.

What must stay: a program of PROGRAMS uses only names that both checkouts have. Otherwise the
program fails in an older checkout. Free to change: everything else. No test runs this file.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.tools import NAMED, ROOT

# ---- The programs ----------------------------------------------------------------------------

# The texts below are programs. `figures_of` runs them with `python -c`, in both checkouts. So a
# text may only use names that both checkouts have. Each program is called with the arguments that
# `training_arguments` returns. The last line that it prints has its figures, as JSON.

# The beginning of each program. `least` calls a function several times. It returns the CPU seconds
# of the fastest call.
HEAD = """
import json, os, sys, time
sys.path.insert(0, "")  # the checkout in which the program is started
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

# ARGUMENTS stands for the arguments of network 006. `replace` at the end of the text fills them in.
NETWORK = """
from models.network_vrt import VRT
torch.manual_seed(0)
net = VRT(**ARGUMENTS, drop_path_rate=0.0)
# The last layer begins with zero weights, which would make all other gradients zero.
torch.nn.init.normal_(net.conv_last.weight, std=0.1)
x = torch.rand(1, 6, 3, 64, 64)  # one clip of 6 frames, (B, T, C, H, W)

def step():
    net.zero_grad(set_to_none=True)
    net(x).square().mean().backward()

@torch.no_grad()
def restore():
    net(x)

figures = {"step s": least(step), "inference s": least(restore)}
with torch.autocast("cpu", torch.bfloat16):
    figures["bfloat16 step s"] = least(step)
    figures["bfloat16 inference s"] = least(restore)

step()
# This figure is no cost: its ratio must be 1, else the checkouts compute different numbers.
gradients = [p.grad for p in net.parameters() if p.grad is not None]
figures["gradients"] = sum(float(gradient.abs().sum()) for gradient in gradients)

# The profiler notes each allocation (bytes > 0) and each release (bytes < 0). Their running sum is
# the memory in use, and its maximum is the peak. The events and their names, such as "[memory]",
# are not in torch's documentation: another version of torch may name them differently.
#
# The gradients of the last step are released first, because the profiler did not note their
# allocation.
net.zero_grad(set_to_none=True)
kinds = [torch.profiler.ProfilerActivity.CPU]
with torch.profiler.profile(activities=kinds, profile_memory=True) as profiled:
    step()
events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
events.sort(key=lambda e: e.start_ns())
changes = torch.tensor([e.nbytes() for e in events])
figures["peak GB"] = int(changes.cumsum(0).max()) / 1e9
print(json.dumps(figures))
""".replace("ARGUMENTS", repr(NAMED["006"]))

SAMPLES = """
import main_train_vrt
from data.select_dataset import build_dataset
section = main_train_vrt.read_options(sys.argv[1:]).datasets.train
dataset = build_dataset(section, "train", 0)

def read_samples():
    return [dataset[(0, i % len(dataset))] for i in range(8)]  # (epoch, index)

print(json.dumps({"8 samples s": least(read_samples, repeats=5)}))
"""

START = """
import main_train_vrt
main_train_vrt.main(sys.argv[1:])
# User and system time of this process and of its children.
cpu_times = os.times()[:4]
print(json.dumps({"training of one step s": sum(cpu_times)}))
"""

PROGRAMS = {"network": NETWORK, "samples": SAMPLES, "start": START}


# ---- The comparison --------------------------------------------------------------------------


def main() -> None:
    """Compare this checkout with the checkout that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each program, default 4")
    parser.add_argument("--only", choices=PROGRAMS, help="run only this program")
    args = parser.parse_args()

    names = [args.only] if args.only else list(PROGRAMS)
    for name in names:
        compare(name, args.other, args.rounds)


def compare(name: str, other_checkout: Path, rounds: int) -> None:
    """Run one of PROGRAMS in both checkouts, and print a line for each of its figures.

    rounds: number of runs in each checkout. The least value of each figure counts, because other
        work on the machine can only make a run slower.
    """
    # The checkouts take turns, so that other programs on the machine slow both of them equally.
    rounds_of_other = []
    rounds_of_this = []
    for _ in range(rounds):
        rounds_of_other.append(figures_of(name, other_checkout))
        rounds_of_this.append(figures_of(name, ROOT))

    # All rounds have the same figures, so take their names from the first round.
    for key in rounds_of_other[0]:
        other = min(figures[key] for figures in rounds_of_other)
        this = min(figures[key] for figures in rounds_of_this)
        ratio = this / other
        print(f"{key}: other {other:.4g}, this {this:.4g}, ratio {ratio:.4f}", flush=True)


def figures_of(name: str, checkout: Path) -> dict[str, float]:
    """Run one of PROGRAMS in a checkout. Returns its figures, e.g. {"8 samples s": 0.51}."""
    program = HEAD + PROGRAMS[name]  # HEAD defines `least`
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", program, *training_arguments(folder)]
        done = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True)
    last_line = done.stdout.splitlines()[-1]  # the lines before are the log of a training
    return json.loads(last_line)


def training_arguments(folder: str) -> list[str]:
    """Return arguments of main_train_vrt.py for one step on the sample set.

    Both checkouts read the same files, trainsets/sample in the folder where this program is
    started. The simulated camera draws the threshold of each sample from threshold_range. The range
    has only one value here. So both checkouts do the same work, even if they draw their random
    numbers in different orders.

    folder: where the training writes its files.
    """
    arguments = [
        "--opt",
        "options/vrt/000_train_vrt_sample_rgbspike.json",
        "datasets.test=null",
        "train.total_iter=1",
        "datasets.train.camera.threshold_range=[0.7,0.7]",
    ]
    # The path is absolute, because the program runs in the folder of a checkout.
    data = Path("trainsets/sample").resolve()
    folder_of_kind = {"gt": "GOPRO_Large", "lq": "GOPRO_Large", "spike": "GOPRO_Large_spike_seq"}
    for kind, name in folder_of_kind.items():
        arguments.append(f"datasets.train.dataroot_{kind}={data / name / 'train'}")
    return [*arguments, f"path.root={folder}"]


if __name__ == "__main__":
    main()
