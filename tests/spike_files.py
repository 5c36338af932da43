"""Spike files for tests: the simulated streams of tests/data/spike as the `.dat` files they were."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np

from scripts import spike_tool

FOLDER = Path(__file__).parent / "data" / "spike"
PLANE_BITS = 250 * 400


def restore_dat(name: str, path: Path) -> bytes:
    """Write the `.dat` that tests/data/spike/<name>.xz holds to `path`; its bytes, for a checksum."""
    transposed = np.frombuffer(lzma.decompress((FOLDER / f"{name}.xz").read_bytes()), np.uint8)
    planes = transposed.size * 8 // PLANE_BITS
    bits = np.unpackbits(transposed, count=planes * PLANE_BITS).reshape(PLANE_BITS, planes)
    content = np.packbits(bits.T, axis=1).tobytes()
    path.write_bytes(content)
    return content


def tool(*arguments: object) -> int:
    """The exit code of scripts/spike_tool.py."""
    return spike_tool.main([str(a) for a in arguments])
