"""The Markdown page of gpu_check: what the figures decide, then every figure. docs/gpu.md explains the limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scripts.benchmark_tools import table

# Seconds of a training step, batch 8 of 6 x 192 x 192 in bfloat16 on one H200, by kernels and checkpointing; predicted
# from counted bytes (docs/gpu.md), before anything was measured.
PREDICTED_S = {("auto", "none"): 1.4, ("auto", "all"): 1.5}
OFF_TIME, OFF_COUNT = 0.25, 0.10  # how much slower than predicted, and how far from the count, is too much
ELEMENTWISE, ATTENTION, ALIGNMENT = 0.40, 0.30, 0.25  # shares of a step from which work on a part comes first
RIGHT_FLOAT32 = 1e-3  # gradients of a whole network, over their largest value
STEP_S, OF_NAIVE, FRAME_S = 0.65, 0.25, 0.3  # the aims: a step, the same over naive float32, a frame of 1280 x 720
Parts = dict[str, dict[str, dict[str, Any]]]
NOT_MEASURED = ("not measured", "")


def page(contents: dict[str, Any]) -> str:
    """contents: of gpu_check.json."""
    machine, parts = contents.get("machine", {}), contents["parts"]
    lines = ["# GPU check", ""]
    if machine.get("device") == "cpu":
        lines += ["**Tiny sizes on a CPU: this shows that the check runs. No figure says anything about a GPU.**", ""]
    lines += [f"{contents.get('date', '')}, `python scripts/gpu_check.py {contents.get('command', '')}`", ""]
    lines += [table([[key, value] for key, value in machine.items()], ["machine", ""]), ""]
    lines += ["## What the figures decide", ""]
    rows = [[question, *decide(parts)] for question, decide in DECISIONS.items()]
    lines += [table(rows, ["question", "found", "do"]), ""]
    for part, found in parts.items():
        lines += [f"## {part}", "", *_part(found)]
    return "\n".join(lines)


def _part(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Results with single figures in one table; the others in a table each; at last what there is no figure of."""
    figures = {name: {k: v for k, v in r.items() if k not in ("took_s", "traceback")} for name, r in found.items()}
    lost = {name: r for name, r in figures.items() if r.keys() & {"error", "skipped", "out of memory"}}
    flat = {
        name: r
        for name, r in figures.items()
        if name not in lost and not any(isinstance(v, dict | list) for v in r.values())
    }
    if flat:
        columns = list(dict.fromkeys(key for result in flat.values() for key in result))
        yield table([[name, *(r.get(c, "-") for c in columns)] for name, r in flat.items()], ["", *columns])
        yield ""
    for name in figures.keys() - lost.keys() - flat.keys():
        yield from (f"### {name}", "", *_tables(figures[name]))
    if lost:
        rows = [
            [name, *next((kind, text) for kind, text in r.items() if isinstance(text, str))] for name, r in lost.items()
        ]
        yield table(rows, ["without figures", "", ""])
        yield ""


def _tables(result: dict[str, Any]) -> Iterator[str]:
    rows = []
    for key, value in _flattened(result):
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield from (table([list(row.values()) for row in value], list(value[0])), "")
        elif isinstance(value, list) and len(value) > 8:
            rows.append([key, f"{len(value)} values, from {value[0]} to {value[-1]}"])
        else:
            rows.append([key, value if not isinstance(value, list) else ", ".join(map(str, value)) or "none"])
    if rows:
        yield from (table(rows, ["figure", "value"]), "")


def _flattened(result: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in result.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{before}{key}: ")
        else:
            yield before + key, value


def _steps(parts: Parts) -> dict[tuple[int, str, str], dict[str, Any]]:
    """(batch, kernels, checkpointing) -> the figures of the step, where there are any."""
    found = {}
    for name, result in parts.get("step", {}).items():
        if name.startswith("batch") and "s" in result:
            batch, kernels, flags = name.split(", ")
            found[int(batch.split()[1]), kernels, flags.split()[1]] = result
    return found


def failures(parts: Parts) -> tuple[str, str]:
    names = [f"{part}: {name}" for part, found in parts.items() for name, r in found.items() if "error" in r]
    return ("; ".join(names), "send the report: gpu_check.json says where each failed") if names else ("none", "")


def math_attention(parts: Parts) -> tuple[str, str]:
    operators = parts.get("check", {}).get("what our attention calls", {}).get("operators")
    if not operators:
        return NOT_MEASURED
    slow = [name for name, called in operators.items() if "softmax" in called or "math" in called]
    if not slow:
        return "fused operators alone", "nothing"
    return "; ".join(slow), "pad what the rules of SDPA refuse, in models/vrt/attention_core.py"


def right(parts: Parts) -> tuple[str, str]:
    found = parts.get("check", {}).get("small network against float64", {})
    errors = {k: max(r["output"], r["worst gradient"]) for k, r in found.items() if k.endswith("TF32 off")}
    if not errors:
        return NOT_MEASURED
    wrong = [name for name, error in errors.items() if not error <= RIGHT_FLOAT32]
    text = "; ".join(f"{name}: {error:.1e}" for name, error in errors.items())
    return text, f"do not train with it; find the cause: {'; '.join(wrong)}" if wrong else "nothing"


def waits(parts: Parts) -> tuple[str, str]:
    found = parts.get("check", {}).get("waits of a step", {})
    counts = {form: r["waits"] for form, r in found.items() if isinstance(r, dict)}
    if not counts:
        return NOT_MEASURED
    text = "; ".join(f"{form}: {count}" for form, count in counts.items())
    return text, "remove the waits in network and optimiser" if any(counts.values()) else "nothing"


def triton(parts: Parts) -> tuple[str, str]:
    found = parts.get("kernels", {}).get("choice", {})
    if "choice" not in found:
        return NOT_MEASURED
    text = "; ".join(f"{kernel}: {form}" for kernel, form in found["choice"].items())
    return text, f'nothing: netG.kernels "auto" reads it from {found["written to"]}'


def predicted(parts: Parts) -> tuple[str, str]:
    steps = _steps(parts)
    ratios = {f"{k}, {f}": steps[8, k, f]["s"] / s for (k, f), s in PREDICTED_S.items() if (8, k, f) in steps}
    if not ratios:
        return NOT_MEASURED
    is_slow = any(ratio > 1 + OFF_TIME for ratio in ratios.values())
    text = "; ".join(f"{name}: {ratio:.2f} x the prediction" for name, ratio in ratios.items())
    return text, "read the profile before anything is changed" if is_slow else "nothing"


def counted(parts: Parts) -> tuple[str, str]:
    ratios = [r["peak GB"] / r["counted GB"] for r in _steps(parts).values() if r["peak GB"] and r["counted GB"]]
    if not ratios:
        return NOT_MEASURED
    is_off = max(abs(ratio - 1) for ratio in ratios) > OFF_COUNT
    text = f"{min(ratios):.2f} to {max(ratios):.2f} of the count"
    return text, "correct MARGIN in models/vrt/fit_memory.py" if is_off else "nothing"


def first(parts: Parts) -> tuple[str, str]:
    profiles = {name: r for name, r in parts.get("profile", {}).items() if "elementwise" in r}
    if not profiles:
        return NOT_MEASURED
    texts, work = [], []
    for name, r in profiles.items():
        attention = r["shares"]["mutual attention"] + r["shares"]["self attention"]
        shares = {
            "elementwise": (r["elementwise"], ELEMENTWISE, "fewer casts, torch.compile around the kernels"),
            "attention": (attention, ATTENTION, "the attention kernel"),
            "alignment": (r["shares"]["alignment"], ALIGNMENT, "deformable alignment"),
        }
        texts.append(f"{name}: " + ", ".join(f"{kind} {share:.0%}" for kind, (share, _, _) in shares.items()))
        work += [what for share, limit, what in shares.values() if share > limit]
    return "; ".join(texts), f"first: {'; then '.join(dict.fromkeys(work))}" if work else "nothing stands out"


def curves(parts: Parts) -> tuple[str, str]:
    rms = parts.get("infer", {}).get("spread of the curves", {}).get("rms")
    if not rms or "float32, seed 1" not in rms or len(rms) < 2:
        return NOT_MEASURED
    seeds = rms["float32, seed 1"]
    apart = [name for name, value in rms.items() if name != "float32, seed 1" and not value <= seeds]
    text = "; ".join(f"{name}: {value:.1%}" for name, value in rms.items())
    return text, f"keep the residual stream in float32: {', '.join(apart)}" if apart else "nothing"


def aims(parts: Parts) -> tuple[str, str]:
    steps = {key: r["s"] for key, r in _steps(parts).items() if key[0] == 8}
    if not steps:
        return NOT_MEASURED
    best = min(steps, key=steps.__getitem__)
    text, is_met = f"{', '.join(best[1:])}: {steps[best]:.2f} s", steps[best] <= STEP_S
    naive = parts["step"].get("naive, float32", {}).get("s")
    if naive:
        ratio = steps[best] / (8 * naive)
        text, is_met = f"{text}, {ratio:.2f} x eight naive steps in float32", is_met and ratio <= OF_NAIVE
    return text, "nothing" if is_met else f"the aims are {STEP_S} s and {OF_NAIVE} x: see what comes first"


def frames(parts: Parts) -> tuple[str, str]:
    found = {name: r["whole, s a frame"] for name, r in parts.get("infer", {}).items() if r.get("whole, s a frame")}
    if not found:
        return NOT_MEASURED
    text = "; ".join(f"{name}: {s:.2f} s" for name, s in found.items())
    return text, "nothing" if min(found.values()) <= FRAME_S else f"the aim is {FRAME_S} s a frame"


DECISIONS: dict[str, Callable[[Parts], tuple[str, str]]] = {
    "what failed?": failures,
    "is float32 right?": right,
    "does the softmax of a window go through memory?": math_attention,
    "which kernels?": triton,
    "does the host wait within a step?": waits,
    "is a step as fast as predicted?": predicted,
    "is the memory as counted?": counted,
    "what comes first?": first,
    "is bfloat16 within the spread of two seeds?": curves,
    "a step of batch 8": aims,
    "a frame of 1280 x 720": frames,
}
