"""Spike files for tests, and the program that reads them, scripts/spike_tool.py.

Some files are stored in tests/data/spike. `bytes_of_sps100` makes files in the format of a camera,
the SPS100.

What must stay: the format of the SPS100, because the published reader of this camera expects it.
"""

import lzma
from pathlib import Path

import numpy as np

from scripts import spike_tool

FOLDER = Path(__file__).resolve().parents[1] / "data" / "spike"

# Bits of a plane of the stored streams: 250 rows of 400 pixels.
PLANE_BITS = 250 * 400


def restore_dat(name: str, path: Path) -> bytes:
    """Write the stream tests/data/spike/<name>.xz as a `.dat` file to `path`. Returns its bytes.

    The stored file has the planes of pixel 0, then the planes of pixel 1, and so on, because this
    order compresses better. The `.dat` file has the pixels of plane 0 first.
    """
    stored = lzma.decompress((FOLDER / f"{name}.xz").read_bytes())
    packed = np.frombuffer(stored, np.uint8)
    planes = packed.size * 8 // PLANE_BITS
    bits = np.unpackbits(packed, count=planes * PLANE_BITS)
    by_pixel = bits.reshape(PLANE_BITS, planes)
    content = np.packbits(by_pixel.T, axis=1).tobytes()
    path.write_bytes(content)
    return content


def bytes_of_sps100(spikes: np.ndarray) -> bytes:
    """Return planes (T, 1000, 1000) in the format that the published reader of the camera expects.

    Two channels read out a line of 1000 pixels, 500 pixels each. So a plane is a row of 2000
    half-lines, each with a word of 12 bits at its end:

        half-line    number in bits 0 to 9      flags
        first        500                        none
        others       number of the line         bit 10
        last         500                        bits 10 and 11

    spikes: (T, 1000, 1000).
    """
    numbers = 1 + np.arange(1000) % 499  # of the lines: 1 ... 499, 1 ... 499, 1, 2
    words = np.repeat(numbers, 2) | 1 << 10  # (2000,): two half-lines of each line, with bit 10
    words[0] = 500
    words[-1] = 500 | 3 << 10  # 3 << 10: bits 10 and 11

    bits_of_words = words[:, None] >> np.arange(12) & 1  # (2000, 12)
    bits_of_words = np.broadcast_to(bits_of_words, (len(spikes), 2000, 12))
    half_lines = spikes.reshape(-1, 2000, 500)
    bits = np.concatenate((half_lines, bits_of_words), axis=2)
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def run_spike_tool(*arguments: object) -> int:
    """Run scripts/spike_tool.py, and return its exit code."""
    return spike_tool.main([str(argument) for argument in arguments])
