"""How many clips each GPU takes at once, from the counted memory of docs/ddp.md: the table of
docs/gpu.md.

    python lab/card_recipes.py

As many clips as fit into half of what a step may use: an H200 took 34.3 GB for 8 clips where 39.7
GB are counted, and 5.1 GB for one (docs/gpu.md). Accumulation costs no arithmetic, recomputation
does.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.tools import ROOT
from models.vrt.fit_memory import BYTES_PER_PARAMETER, GB, MARGIN

BATCH = 8  # in all, as published
SHARE = 0.9  # of a card's memory; CUDA itself needs some
PARAMETERS = 20e6  # of network 006 with its fusion, at most
GPUS, CARDS = (8, 4, 1), (24, 40, 80, 141)


def counted_gb() -> float:
    """Activations of one clip, with every block recomputed or not."""
    text = (ROOT / "docs/ddp.md").read_text(encoding="utf-8")
    (gb,) = re.findall(r"\bA = ([\d.]+) GB for each clip", text)
    return float(gb)


def step_gb(clips: int, activations_gb: float) -> float:
    """A training step with fit_memory's margin."""
    return MARGIN * (PARAMETERS * BYTES_PER_PARAMETER / GB + clips * activations_gb)


def clips_at_once(gpus: int, card: int) -> int:
    """Clips per GPU and pass, a divisor of the GPU's share of the batch."""
    most, share = counted_gb(), BATCH // gpus
    return max(
        (n for n in (1, 2, 4, 8) if n <= share and step_gb(n, most) <= 0.5 * SHARE * card),
        default=1,
    )


def file_for(gpus: int, card: int) -> Path:
    """The option file of the smallest card that takes as many clips."""
    clips = clips_at_once(gpus, card)
    least = min(other for other in CARDS if clips_at_once(gpus, other) == clips)
    return ROOT / f"options/gpu/006_rgbspike_bf16_{gpus}x{least}gb.json"


def table() -> Iterator[str]:
    for gpus in GPUS:
        for file in dict.fromkeys(file_for(gpus, card) for card in CARDS):
            cards = ", ".join(f"{card} GB" for card in CARDS if file_for(gpus, card) == file)
            clips = clips_at_once(
                gpus, next(card for card in CARDS if file_for(gpus, card) == file)
            )
            gb = step_gb(clips, counted_gb())
            batch = f"{clips} x {BATCH // gpus // clips}"
            yield f"| {gpus} | {cards} | `{file.relative_to(ROOT)}` | {batch} | {gb:.1f} |"


def small_table() -> Iterator[str]:
    """The lines of docs/ddp.md: options for cards of less than 24 GB, one clip at a time."""
    most = least = counted_gb()
    crops = [(gpus, 16, 192) for gpus in GPUS] + [(1, 4, 128), (1, 2, 64)]
    for gpus, card, crop in crops:
        gb = step_gb(1, most if crop == 192 else least * (crop / 192) ** 2)
        options = (
            f"netG.memory_budget_gb={SHARE * card:.1f} train.accumulation_steps={BATCH // gpus}"
        )
        options += f" datasets.train.gt_size={crop}" if crop < 192 else ""
        yield f"| {gpus} | {card} GB | `{options}` | {gb:.1f} |"


if __name__ == "__main__":
    print("\n".join([*table(), "", *small_table()]))
