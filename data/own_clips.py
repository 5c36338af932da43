"""Open a user's own clips for a restoration: frames with spikes, or only spikes.

main_test_vrt.py calls these functions with the paths of the command line, and hands the clips on to
the restoration. How the spikes are read depends on the method: models/restore/own_spikes.py says it
for a network, and `spikes_for_formula` for a formula. data/clips/clip_reader.py opens the files.

What must stay: the sentences of `OwnClips.frames_note`, because they are part of the protocol of a
test. The protocol is the lines of its report that say what was tested and how.

Tests: tests/stories/test_main_test.py, tests/stories/test_reconstruct.py
"""

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from data.alignment_check import warning_of
from data.cameras.spike_source import SPIKE_SOURCES
from data.clips.clip_reader import user_clips
from data.clips.user_spike_files import section_and_info
from data.formula_spikes import spike_section
from data.reconstruct import Reconstruction
from data.spikes_alone import spike_clip
from utils import utils_dist
from utils.contract import ClipReader
from utils.errors import SpikeVRTError

logger = logging.getLogger(__name__)


class OwnClips(NamedTuple):
    """A user's own clips."""

    clips: Sequence[ClipReader]
    frames_note: str  # which frames of the clips are restored, in words for the report


def spikes_for_formula(formula: Reconstruction, spike: str, options: dict[str, Any]) -> Any:
    """Return the section `spike` (the options of spikes) for a user's spikes and a formula.

    spike: the file or folder of the spikes.
    options: the section `spike`, as the user has given it. The formula decides some of its keys
    itself (`data.formula_spikes.SET_BY_METHOD`).
    """
    section = SPIKE_SOURCES.resolve(options, "spike")
    _, info = section_and_info(section, Path(spike))  # what the nearest dataset.json says
    return spike_section(section, formula, info.rate)


def clips_with_frames(
    path: str,
    spike: str | None,
    gt: str | None,
    spike_options: dict[str, Any] | None,
    scale: int = 1,
    training_spikes: dict[str, Any] | None = None,
) -> OwnClips:
    """Return the clips at `path`. Rank 0 warns if spikes and frames do not show the same.

    path, spike, gt: the files of frames, spikes and sharp frames.
    spike_options: the spike section, or None if no spikes are read.
    scale: size of a sharp frame over size of a blurry frame.
    training_spikes: properties of the spikes with which the network was trained, or None.
    """
    clips = user_clips(
        path, spike, gt, spike_options=spike_options, scale=scale, trained=training_spikes
    )
    # Only rank 0 compares spikes and frames, because every rank would find the same.
    warning = warning_of(clips) if utils_dist.is_main_process() else None
    if warning:
        logger.warning("%s", warning)
    return OwnClips(clips, frames_note="all")


def clip_of_spikes(spike: str, gt: str | None, section: Any) -> OwnClips:
    """Return a clip that has spikes and no frames, for a formula that makes grey frames.

    spike: path of the spikes.
    gt: path of the sharp frames to compare with. None: there are no sharp frames.
    section: the spike section, from `spikes_for_formula`.
    """
    # One frame is restored for each exposure that the option spike.exposure names. Without this
    # option, one frame is restored for each spike file.
    source = "exposure" if section.exposure else "spike file"
    return OwnClips(
        clips=[spike_clip(spike, gt, section)],
        frames_note=f"one for each {source}; the input beside it is the mean of all planes of "
        f"the {source}",
    )


@contextmanager
def naming_spike_size_flag() -> Generator[None]:
    """Add --spike-size to errors about an unknown size of spike planes, within a `with` block.

    The functions that read spikes name the keys spike.h and spike.w in their errors. A user who
    gave --spike sets the size by the flag --spike-size.
    """
    try:
        yield
    except SpikeVRTError as e:
        # Errors about a missing or wrong size have one of these texts: "spike.h" as place, or the
        # advice of data/spike/packed_file.py and data/spike/formats.py. There is no error class for
        # these errors. test_bad_input_ends_with_one_message notices another place, and another
        # advice of packed_file.py.
        if e.where.startswith("spike.h") or "spike height and width" in e.do:
            shows = "scripts/spike_tool.py info FILE --picture FRAME shows which sizes fit"
            is_cut = e.do.startswith("copy the file again")
            e.do = f"give --spike-size H W; {shows}"
            if is_cut:
                e.do = f"if the file may be cut short, copy it again; otherwise {e.do}"
        raise
