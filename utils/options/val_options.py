"""Keys of `val` and `metric`: how a clip is restored part by part, and how it is scored.

Validations of a training use both sections, and so does main_test_vrt.py.

What must stay: keys and their defaults, because old option files rely on them. Free to change: a
description. models.py says more. models/restore/tiles/plan.py cuts a clip into tiles by the keys of
`val`. models/metrics.py and utils/image.py score by the keys of `metric`.

Tests: tests/parts/models/test_tiling.py, tests/parts/models/test_metrics.py
"""

from typing import Any, Literal

from pydantic import Field

from utils.options.section import Count, Section

# The tile for the option "auto": number of frames, and side in pixels, chosen by hand. With a
# smaller tile the network sees less of the clip, and a larger tile needs more memory. If the memory
# is too small for this tile, its side is halved. Every machine with enough memory uses the same
# tile, so it gets the same scores. Do not change the two numbers, because all scores that were made
# with "auto" would change. models/restore/tiles/plan.py rounds both numbers up to whole windows of
# the network.
AUTO_FRAMES = 12
AUTO_SIDE = 256


class ValOptions(Section):
    # The memory of a network grows with the clip. So a clip is restored in parts of some frames,
    # and each part in spatial tiles. Parts and tiles overlap, so that no seam is visible.
    save_img: bool = Field(
        False,
        description="Write restored frames. In training, these are the frames of the clips "
        "that rank 0 validates, in images/.",
    )
    pad_seq: bool = Field(False, description="Repeat the last frame once before restoring.")
    flip_seq: bool = Field(
        False, description="Restore the clip followed by its time-reversed copy, and average."
    )
    center_frame_only: bool = Field(False, description="Keep the middle frame only.")
    num_frame_testing: Literal["auto"] | Count = Field(
        "auto",
        description=f'Frames restored at a time; "auto": {AUTO_FRAMES}, or 1 if the network '
        "restores each frame without its neighbours; 0: the whole clip, however long.",
    )
    num_frame_overlapping: int = Field(2, ge=0, description="Frames shared by neighbouring parts.")
    size_patch_testing: Literal["auto"] | Count = Field(
        "auto",
        description=f'Side of a spatial tile; "auto": {AUTO_SIDE}, halved if memory is short. 0: '
        "the whole frame.",
    )
    size_patch_overlapping: int = Field(
        20, ge=0, description="Pixels shared by neighbouring tiles."
    )
    batch_tiles: int = Field(
        1, ge=1, description="Spatial tiles that go through the network at once."
    )


class MetricOptions(Section):
    """How tests and validations score. To compare with a published number, use its own protocol."""

    values: Literal["uint8", "clamped", "float"] = Field(
        "uint8",
        description="Which values are scored. uint8: clamped to 0..1 and rounded to 8 bits; "
        "clamped: clamped to 0..1; float: as the network gives them.",
    )
    mean: Literal["clips", "frames"] = Field(
        "clips",
        description="How scores are averaged. clips: over the frames of each clip, then over "
        "the clips; frames: over all frames.",
    )
    more: list[str | dict[str, Any]] = Field(
        [], description="Further metrics of your own; see docs/extending.md."
    )
