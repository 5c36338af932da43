"""Say in words how a sample was drawn, and how its spikes are read.

scripts/show_sample.py shows these texts as the table of its HTML page.

What must stay: the crop and the flips are named
(test_the_page_names_the_crop_and_the_flips), and the page has no repr of an object, e.g.
"CameraDraw(...)" (test_the_first_sample_is_shown_by_default).
Free to change: the words, and new rows.

Tests: tests/parts/scripts/test_show_sample.py
"""

from typing import Any

import numpy as np

from scripts.parts.spike_tool.spike_geometry import in_words


def facts(draw: Any) -> dict[str, str]:
    """Return the table of the page, {name of a row: text}.

    The rows say what was drawn, and how the spikes are read. E.g.

        {"frames": "000010, 000011", "crop": "rows 16 to 79, columns 0 to 63 of 128 x 128", ...}

    draw: data.clip_reading.Draw, the clip, frames, crop and flips that were chosen.
    """
    aug = draw.aug  # crop, flips and the direction of time
    clip = draw.clip
    height, width = clip.size

    frames = ", ".join(clip.stems[frame] for frame in draw.frames)
    if aug.reverse:
        frames += " (played backwards)"
    # The last row and the last column of the crop.
    bottom = aug.top + aug.height - 1
    right = aug.left + aug.width - 1
    flips = []
    if aug.hflip:
        flips.append("mirrored left to right")
    if aug.vflip:
        flips.append("mirrored top to bottom")
    if aug.transpose:
        flips.append("axes swapped")
    about = {
        "frames": frames,
        "crop": f"rows {aug.top} to {bottom}, columns {aug.left} to {right} of {height} x {width}",
        # The flips are in the order in which `Augment` applies them.
        "drawn": ", then ".join(flips) if flips else "no flip and no rotation",
    }
    if clip.spikes:
        about.update(spike_facts(draw))
    return about


def spike_facts(draw: Any) -> dict[str, str]:
    """Return the rows of the table that concern spikes, e.g. "planes" and "channels".

    The row "planes" is about the first frame of the sample, e.g. "56 from plane 0 of 56; sharp
    frame at plane 28".

    draw: data.clip_reading.Draw, the clip, frames, crop and flips that were chosen.
    """
    clip = draw.clip
    spikes = clip.spikes  # how this data set reads its spikes
    frame = draw.frames[0]
    exposure = clip.exposures[frame]  # the planes that are read for this frame, with context
    own_planes = exposure.own  # the planes of the exposure, without context
    # The instant of the sharp frame: `center` counts from the first own plane, and `origin` is the
    # number of this plane, as the option spike.center counts planes.
    sharp_plane = exposure.origin + exposure.center
    planes = (
        f"{own_planes.count} from plane {own_planes.first} of {clip.planes[frame]}; "
        f"sharp frame at plane {sharp_plane:g}"
    )
    if draw.backwards[0]:
        planes += ", time runs backwards"
    about = {
        "spikes": f"{in_words(spikes.geometry)}; rate {spikes.rate}, {spikes.light} light, "
        f"gamma {spikes.gamma:g}",
        "planes": planes,
        # How many channels the spikes have, the name of their representation (how planes become
        # channels), and its options, e.g. "relative (half_windows 2 6 12)" after the number.
        "channels": f"{spikes.channels}: {spikes.name} ({in_short(spikes.options)})",
        "camera": in_short(vars(draw.camera)) if draw.camera else "as recorded",
    }
    if spikes.calibration:
        grid = clip.grid  # where the spike pixels lie on the RGB frame
        # E.g. "5f0a...: the spikes cover 98.2% of the frame; crops are drawn from ...". `digest` is
        # a short hash of the calibration, by which two calibrations can be compared.
        about["calibration"] = (
            f"{spikes.calibration.digest()}: the spikes cover {grid.coverage:.1%} of the frame; "
            f"crops are drawn from {grid.region.in_words()}"
        )
    return about


def in_short(values: dict[str, Any]) -> str:
    """Return options as words, e.g. "half_windows 2 6 12, num_bins 8".

    An option that is None is left out.

    values: {name of an option: a number, a text, or a list of numbers}.
    """
    texts = []
    for key, value in values.items():
        if value is None:
            continue
        words = [key]
        for number in np.ravel(value).tolist():  # `ravel` makes a list of a single value, too
            if isinstance(number, float):
                words.append(f"{number:.3g}")
            else:
                words.append(str(number))
        texts.append(" ".join(words))
    return ", ".join(texts)
