"""Compiles every Triton kernel for GPUs that need not be there, and prints what each would occupy as JSON.

    python -m tests.triton_compile [KERNEL ...]

KERNEL: what is compiled for the H100 (default: every kernel); for the A100, every kernel is.

By kernel, GPU generation and dtype: bytes of shared memory, registers of a thread, bytes of its stack, which is where
registers that did not suffice were moved to.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from models.vrt import triton_attention as attention
from models.vrt import triton_deform as deform
from models.vrt import triton_mlp as mlp
from models.vrt import triton_rows as rows

GENERATIONS = {"A100": 80, "H100": 90}
BYTES = {"bf16": 2, "fp32": 4}
# "clip": whatever dtype the clip has.
POINTERS = {
    "clip": (
        "qkv",
        "out",
        "grad",
        "grad_qkv",
        "x",
        "mask",
        "columns",
        "grad_columns",
        "grad_mask",
        "ab",
        "h",
        "grad_h",
        "grad_ab",
        "weight",
        "norm_bias",
        "u",
        "grad_u",
        "y",
        "grad_y",
        "branch",
        "grad_branch",
        "grad_tokens",
    ),
    "fp32": ("bias", "masks", "lse", "delta", "grad_bias", "offset", "grad_x", "grad_offset", "factors", "sums"),
    "i32": ("pattern", "rows"),
}
# A window of 6 x 8 x 8 tokens with 6 heads of 20 channels: multiples of 16, which the compiler is told as at a launch.
SIZES_OF_16 = ("T", "window_stride")
SELF = {"PER": 1, "BIASED": True}
MUTUAL = {"PER": 2, "BIASED": False}
WIDEST = {"C": 120, "ROWS": rows.TILE // 128, "BC": 128}
KERNELS = {
    "forward": (attention._forward, SELF),
    "forward, mutual": (attention._forward, MUTUAL),
    "backward, queries": (attention._backward_queries, SELF),
    "backward, keys": (attention._backward_keys, SELF),
    "backward, keys, mutual": (attention._backward_keys, MUTUAL),
    "backward, bias": (attention._bias_backward, {"CHUNK": attention.CHUNK}),
    "samples": (deform._sample, {"WIDTH": 6, "BLOCK": deform.BLOCK}),
    "gate": (mlp._gate, {"BLOCK": mlp.BLOCK}),
    "gate, backward": (mlp._gate_backward, {"BLOCK": mlp.BLOCK}),
    "samples, backward": (deform._sample_backward, {"WIDTH": 6, "BLOCK": deform.BLOCK}),
    "norm": (rows._norm_rows, WIDEST),
    "sum and norm": (rows._add_norm, {**WIDEST, "SCALED": True}),
    "sum and norm, backward": (rows._add_norm_backward, {**WIDEST, "SCALED": True}),
    "norm, backward": (rows._norm_rows_backward, WIDEST),
}


def occupied(kernel, constants: dict[str, object], dtype: str, capability: int) -> dict[str, int]:
    of_attention = {"HEADS": 6, "MASKED": True, "BM": attention.BLOCK[BYTES[dtype]], "BD": 32, "PRECISION": "ieee"}
    constants = constants | {k: v for k, v in of_attention.items() if k in kernel.arg_names}
    kinds = {name: f"*{dtype if kind == 'clip' else kind}" for kind, names in POINTERS.items() for name in names}
    signature = {
        name: "constexpr" if name in constants else kinds.get(name, "fp32" if name in ("scale", "eps") else "i32")
        for name in kernel.arg_names
    }
    even = [i for i, (name, kind) in enumerate(signature.items()) if kind.startswith("*") or name in SIZES_OF_16]
    source = ASTSource(
        fn=kernel, signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in even},
    )  # fmt: skip
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=attention.LAUNCH)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    registers, stack = map(int, re.findall(r"REG:(\d+) STACK:(\d+)", usage)[0])
    return {"shared": compiled.metadata.shared, "registers": registers, "stack": stack}


if __name__ == "__main__":
    found = {
        f"{name}, {generation}, {dtype}": occupied(kernel, constants, dtype, capability)
        for name, (kernel, constants) in KERNELS.items()
        for generation, capability in GENERATIONS.items()
        for dtype in BYTES
        if generation == "A100" or name in (sys.argv[1:] or KERNELS)
    }
    print(json.dumps(found, indent=1))
