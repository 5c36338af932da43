"""Compute how many clips a GPU can take at once, and print the two tables of docs/gpu.md.

    python lab/card_recipes.py

A recipe is an option file for a number of GPUs with the same memory, e.g. 4 GPUs of 24 GB. Every
recipe trains 8 clips per step, the published batch. A GPU with little memory takes few clips at
once, and sums the gradients of several passes:

    8 clips = GPUs x clips at once x passes        e.g. 4 GPUs x 1 clip x 2 passes

The memory of a step is computed from A, the memory of the activations of one clip ("A = 4.47 GB" in
docs/memory.md). The result is a little too large, so it is safe. E.g. it is 39.7 GB for 8 clips,
and an H200 needed 34.3 GB (docs/gpu.md).

A recipe keeps a large reserve: a step takes at most half of the usable memory of a card
(STEP_SHARE). The reserve costs little, because it only leads to more passes of fewer clips. Without
the reserve, a step might need more memory than the card has. Then netG.checkpoint would have to
save memory: it computes blocks again in the backward pass, and this costs more time.

Free to change: the constants below, together with the tables of docs/gpu.md and docs/zh/gpu.md and
the files in options/gpu. tests/parts/models/test_fake_gpu.py notices if a table or a file differs
from this program.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.tools import ROOT
from models.vrt.memory.fit_memory import BYTES_PER_PARAMETER, GB, MARGIN

BATCH = 8  # clips of a step on all GPUs, as published
CLIPS_AT_ONCE = (1, 2, 4, 8)  # the divisors of BATCH
GPUS = (8, 4, 1)  # numbers of GPUs that the table shows. Each must divide BATCH
CARDS = (24, 40, 80, 141)  # memory of a card in GB, in the order of the table
# Both shares are chosen by hand.
USABLE_SHARE = 0.9  # share of a card's memory that a step can use. CUDA itself needs the rest
STEP_SHARE = 0.5  # share of the usable memory that a step takes at most
# Number of parameters. Network 006 with its fusion has 18.3 million. 20 million is safe.
PARAMETERS = 20e6
CROP = 192  # pixels along a side of a training clip. docs/memory.md has A for this size


# ---- Memory and recipes ----------------------------------------------------------------------


def counted_gb() -> float:
    """Return the GB of activations of one clip of CROP x CROP pixels, from docs/memory.md."""
    # The page must say "A = ... GB" exactly once. If not, the unpacking below raises ValueError.
    text = (ROOT / "docs/memory.md").read_text(encoding="utf-8")
    [gb] = re.findall(r"\bA = ([\d.]+) GB", text)
    return float(gb)


def step_gb(clips: int, activations_gb: float) -> float:
    """Return the GB of a training step, with the margin of models/vrt/memory/fit_memory.py.

    clips: number of clips at once. activations_gb: GB of activations of one clip.
    """
    # Memory of the weights, of their gradients and of the moments of Adam: 16 bytes a parameter,
    # 0.32 GB. MARGIN is 1.1. E.g. 8 clips: 1.1 * (0.32 + 8 * 4.47) = 39.7 GB.
    parameters_gb = PARAMETERS * BYTES_PER_PARAMETER / GB
    return MARGIN * (parameters_gb + clips * activations_gb)


def clips_at_once(gpus: int, card: int) -> int:
    """Return how many clips a GPU takes at once: the largest number that fits, at least 1.

    E.g. for one GPU of 40 GB, a step may take 0.5 * 0.9 * 40 = 18 GB. A step of 2 clips takes
    10.2 GB, and a step of 4 clips takes 20.0 GB. So the GPU takes 2 clips at once.

    gpus: number of GPUs. card: memory of a GPU in GB.
    """
    clips_of_gpu = BATCH // gpus  # clips of one GPU in a step, in all its passes
    limit_gb = STEP_SHARE * USABLE_SHARE * card
    most = 1
    for clips in CLIPS_AT_ONCE:
        if clips <= clips_of_gpu and step_gb(clips, counted_gb()) <= limit_gb:
            most = clips
    return most


def file_for(gpus: int, card: int) -> Path:
    """Return the option file for a number of GPUs with `card` GB each.

    Cards that take the same number of clips at once have the same file. The name of the file has
    the memory of the smallest of these cards. E.g. options/gpu/006_rgbspike_bf16_1x24gb.json is for
    one GPU of 24 or of 40 GB.
    """
    clips = clips_at_once(gpus, card)
    cards = [other for other in CARDS if clips_at_once(gpus, other) == clips]
    return ROOT / f"options/gpu/006_rgbspike_bf16_{gpus}x{min(cards)}gb.json"


# ---- Tables ----------------------------------------------------------------------------------


def table() -> Iterator[str]:
    """Yield the rows of "Which option file for which GPU" in docs/gpu.md.

    A row has the number of GPUs, the cards, the option file, clips at once x passes, and the GB of
    a step. E.g. one GPU of 24 or 40 GB takes 2 clips at once. A step has 8 clips, so 4 passes:

        | 1 | 24 GB, 40 GB | `options/gpu/006_rgbspike_bf16_1x24gb.json` | 2 x 4 | 10.2 |
    """
    for gpus in GPUS:
        cards_of_file: dict[Path, list[int]] = {}  # the cards that share an option file, in GB
        for card in CARDS:
            # Cards with the same file share a row.
            cards_of_file.setdefault(file_for(gpus, card), []).append(card)

        for file, cards in cards_of_file.items():
            names = ", ".join(f"{card} GB" for card in cards)
            clips = clips_at_once(gpus, cards[0])  # the same for all cards of a file
            clips_of_gpu = BATCH // gpus  # clips of one GPU in a step, in all its passes
            passes = clips_of_gpu // clips
            gb = step_gb(clips, counted_gb())
            path = file.relative_to(ROOT)
            yield f"| {gpus} | {names} | `{path}` | {clips} x {passes} | {gb:.1f} |"


def small_table() -> Iterator[str]:
    """Yield the rows of docs/gpu.md for GPUs of less than 24 GB.

    These GPUs take one clip at a time.

    A row has the card, the option for the size of the crop, and the GB of a step:

        | 4 GB | `datasets.train.gt_size=128` | 2.5 |
    """
    crop_of_card = {8: CROP, 4: 128, 2: 64}  # GB of a card -> side of the crop that fits into it
    for card, crop in crop_of_card.items():
        # Activations grow with the number of pixels. E.g. crops of 128 pixels have (128 / 192)^2 =
        # 0.44 of the pixels, and of the activations.
        activations_gb = counted_gb() * (crop / CROP) ** 2
        gb = step_gb(1, activations_gb)
        yield f"| {card} GB | `datasets.train.gt_size={crop}` | {gb:.1f} |"


if __name__ == "__main__":
    print("\n".join([*table(), "", *small_table()]))
