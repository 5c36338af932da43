"""scripts/gpu_check.py from its command line, on the CPU; its decisions, from the figures of a GPU that is not here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from models.network_vrt import VRT
from models.vrt import kernels
from scripts.benchmark_parts import Profile
from scripts.gpu_check import PARTS
from scripts.gpu_check_kernels import against_triton
from scripts.gpu_check_report import page
from scripts.gpu_check_tools import CHECKPOINTING, TINY
from tests.dist.launching import Ranks, run_ranks
from utils.dist.process import children_of

ROOT = Path(__file__).parent.parent
# A machine that lacks these packages.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("json5", "pydantic", "pydantic_core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "scripts/gpu_check.py", *map(str, arguments), "--device", "cpu"]


def run(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def results(folder: Path) -> dict[str, dict[str, dict]]:
    return json.loads((folder / "gpu_check.json").read_text())["parts"]


def test_the_whole_check_runs_on_a_machine_with_torch_alone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    done = run("all", "--out", tmp_path / "out", PYTHONPATH=str(tmp_path), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(tmp_path / "out")
    assert list(found) == list(PARTS)
    for part in found.values():
        assert all(r.get("skipped", "needs a GPU").startswith("needs a GPU") for r in part.values())
        assert sum("skipped" not in r for r in part.values()) >= 1
    text = (tmp_path / "out/gpu_check.md").read_text()
    assert "Tiny sizes on a CPU" in text
    assert re.search(r"\| what failed\? +\| none ", text)
    # What can be right or wrong without a GPU is right.
    assert found["check"]["small network against float64"]["auto, TF32 off"]["worst gradient"] < 1e-4
    errors = found["check"]["deformable convolution"]["largest relative difference"]
    assert errors["auto, float32"] < 1e-5 < errors["auto, bfloat16"] < 1e-2
    for name, result in found["kernels"].items():
        if name.startswith(("block", "row-wise")):
            errors = result["largest relative difference"]
            assert errors["auto, float32"] < 1e-5 < errors["auto, bfloat16"] < 2e-2
    assert found["infer"]["auto, float32"]["tiles against whole"] < 0.5


def test_files_of_others_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "gpu_check.md").write_text("mine")
    done = run("step", "--out", tmp_path)
    assert done.returncode == 3 and "not made by this program" in done.stderr
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("gpu_check.md", "mine")]


def test_a_process_that_dies_costs_one_measurement_and_a_part_without_time_says_so(tmp_path):
    with Ranks(1, "scripts/gpu_check.py", "step", "--out", tmp_path, "--device", "cpu") as running:
        running.wait_for("step: batch 1, auto, checkpointing none: ", 0, 60)
        os.kill(children_of(running.processes[0].pid)[0], signal.SIGSEGV)
        done = running.wait(60)
    assert done.exit_codes == [1], done.text
    died = "its process died of SIGSEGV"
    outcomes = [result.get("error", "measured") for result in results(tmp_path)["step"].values()]
    assert outcomes == ["measured", died, "measured"]
    assert done.stdout[0].count(died) > 1  # at once, and in the page

    late = run_ranks(1, "scripts/gpu_check.py", "check", "--out", tmp_path, "--budget-s", "0", "--device", "cpu")
    assert late.exit_codes == [1]  # of the part before, which stays
    found = results(tmp_path)
    assert list(found) == ["step", "check"]
    assert {result["skipped"] for result in found["check"].values()} == {"the 0 s of this part were spent"}


@pytest.mark.parametrize("flags", ["none", "all"])
@pytest.mark.parametrize("form", ["plain", "for GPUs"])
def test_operations_are_booked_under_their_part_also_in_backward_and_when_computed_anew(form, flags, monkeypatch):
    if form == "for GPUs":
        monkeypatch.setattr(kernels, "AT_ONCE", ("cuda", "cpu"))
    torch.manual_seed(0)
    chosen = {"kernels": "plain" if form == "plain" else "auto", **CHECKPOINTING[flags]}
    net = VRT(**{**TINY, "drop_path_rate": 0.0, **chosen})
    clip = torch.rand(1, 2, 3, 32, 32)
    profile = Profile(net, lambda: net(clip).square().mean().backward(), torch.device("cpu"))
    parts: dict[str, set[str]] = {}
    counts = Counter()
    for event, part in profile.operations():
        parts.setdefault(event.name, set()).add(part)
        counts[part] += 1
    # Without the parts of backward, most operations of a step would have no name.
    assert counts["other"] < 0.25 * counts.total()
    assert parts["aten::gelu"] == parts["aten::gelu_backward"] == {"MLP"}
    attention = [p for name, p in parts.items() if "softmax" in name or "scaled_dot_product" in name]
    assert set.union(*attention) == {"mutual attention", "self attention"}
    assert parts["aten::sigmoid"] == {"alignment"}


# What a GPU might report, each figure on the good side of its limit.
GOOD = {
    "check": {
        "what our attention calls": {"operators": {"bfloat16, self": "_scaled_dot_product_efficient_attention"}},
        "small network against float64": {"auto, TF32 off": {"output": 1e-6, "worst gradient": 1e-5, "of": "a"}},
        "waits of a step": {"auto": {"waits": 0, "at": []}},
    },
    "kernels": {"choice": {"choice": {"attention": "triton"}, "against Triton": {}, "written to": "kernels.json"}},
    "step": {
        "batch 8, triton, checkpointing none": {"s": 0.6, "peak GB": 70.0, "counted GB": 68.0},
        "naive, float32": {"s": 0.5, "peak GB": 125.0},
    },
    "profile": {
        "batch 8, triton": {
            "elementwise": 0.2, "shares": {"mutual attention": 0.1, "self attention": 0.1, "alignment": 0.1}
        },
    },
    "infer": {
        "spread of the curves": {"rms": {"float32, seed 1": 0.1, "bfloat16": 0.05}},
        "triton, bfloat16": {"whole, s a frame": 0.2},
    },
}  # fmt: skip
WORSE = [
    ("check", "what our attention calls", {"operators": {"bfloat16, hd 20": "_safe_softmax"}}, "pad what the rules"),
    ("check", "small network against float64", {"auto, TF32 off": {"output": float("inf"), "worst gradient": 0}},
     "do not train with it"),
    ("check", "waits of a step", {"auto": {"waits": 2, "at": []}}, "remove the waits"),
    ("step", "batch 8, auto, checkpointing none", {"s": 2.5, "peak GB": 70.0, "counted GB": 68.0},
     "read the profile before"),
    ("step", "batch 8, triton, checkpointing none", {"s": 1.6, "peak GB": 80.0, "counted GB": 68.0}, "correct MARGIN"),
    ("profile", "batch 8, triton", {**GOOD["profile"]["batch 8, triton"], "elementwise": 0.5}, "first: fewer casts"),
    ("infer", "spread of the curves", {"rms": {"float32, seed 1": 0.1, "bfloat16": 0.2}},
     "keep the residual stream in float32"),
    ("infer", "triton, bfloat16", {"whole, s a frame": 0.5}, "the aim is 0.3 s a frame"),
]  # fmt: skip


def decisions(parts: dict) -> str:
    return page({"parts": parts}).partition("## check")[0]


@pytest.mark.parametrize(("part", "name", "result", "decision"), WORSE, ids=[case[3] for case in WORSE])
def test_each_figure_leads_to_its_decision(part, name, result, decision):
    worse = {**GOOD, part: {**GOOD[part], name: result}}
    assert decision not in decisions(GOOD)
    assert decision in decisions(worse)


def test_triton_is_taken_only_where_it_is_right_and_ahead_everywhere():
    times = {"auto, forward": 2.0, "triton, forward": 1.0, "auto, both": 5.0, "triton, both": 4.0}
    right = {"largest relative difference": {"triton, bfloat16": 5e-3}, "ms": times}
    assert against_triton(right) == ""
    assert "slower: triton, both" in against_triton({**right, "ms": {**times, "triton, both": 6.0}})
    wrong = {**right, "largest relative difference": {"triton, bfloat16": float("nan")}}
    assert "off by nan" in against_triton(wrong)
    assert against_triton({}) == "not measured"
    assert "SIGSEGV" in against_triton({"error": "its process died of SIGSEGV"})
