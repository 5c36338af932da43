"""Spike files: the simulated streams of tests/data/spike as the `.dat` files that they were."""

import lzma
from pathlib import Path

import numpy as np

from scripts import spike_tool

FOLDER = Path(__file__).resolve().parents[1] / "data" / "spike"
PLANE_BITS = 250 * 400


def restore_dat(name: str, path: Path) -> bytes:
    """Write the `.dat` that tests/data/spike/<name>.xz holds to `path`, and return its bytes."""
    transposed = np.frombuffer(lzma.decompress((FOLDER / f"{name}.xz").read_bytes()), np.uint8)
    planes = transposed.size * 8 // PLANE_BITS
    bits = np.unpackbits(transposed, count=planes * PLANE_BITS).reshape(PLANE_BITS, planes)
    content = np.packbits(bits.T, axis=1).tobytes()
    path.write_bytes(content)
    return content


def sps100_bytes(spikes: np.ndarray) -> bytes:
    """Planes (T, 1000, 1000) as the published reader expects them: each half-line ends with a word
    of 12 bits.
    """
    words = np.repeat(1 + np.arange(1000) % 499, 2) | 1 << 10  # the line, and the channel above it
    words[[0, -1]] = 500, 500 | 3 << 10
    words = np.broadcast_to(words[:, None] >> np.arange(12) & 1, (len(spikes), 2000, 12))
    bits = np.concatenate((spikes.reshape(-1, 2000, 500), words), axis=2)
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def tool(*arguments: object) -> int:
    """The exit code of scripts/spike_tool.py."""
    return spike_tool.main([str(a) for a in arguments])
