#!/usr/bin/env python3
"""Show one sample as the network sees it, in a page of one file: frames, every spike channel, crop,
flips, alignment.

    python scripts/show_sample.py --opt options/vrt/000_train_vrt_sample_rgbspike.json
    python scripts/show_sample.py --opt FILE --index 3 --split test --out test3.html \\
        datasets.test.spike.flip=false
    python scripts/show_sample.py --opt FILE --motion

The page shows the sample that training gets for (epoch, index), or the first frames of a test clip.
One sentence says whether the spikes and the frames show the same things at the same places. Read
this sentence before a long run. With --motion the page also shows how each pixel moves within an
exposure, found from the spikes, and where this motion is not trusted. With large frames, --motion
takes seconds. No file is overwritten.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.default_output import default_output
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.show_sample.sample_facts import facts
from scripts.parts.show_sample.sample_motion import motion_within_exposure
from scripts.parts.show_sample.sample_page import Page, Verdict
from scripts.parts.show_sample.sample_read import (
    Wanted,
    read_sample,
    refuse_missing_sample,
    sample_of_other_set,
)
from scripts.parts.show_sample.sample_sections import sections, tensor_sections
from utils.errors import OptionError
from utils.files import write_whole
from utils.image import render
from utils.options.load import load_options
from utils.output_folder import refuse_existing

# This file has the command line, the page, and the verdict that is printed. The parts of the page
# are in scripts/parts/show_sample/:
#
#     sample_read.py       reads the sample
#     sample_page.py       the records that the template of the page reads
#     sample_facts.py      the table: how the sample was drawn
#     sample_sections.py   the pictures
#     sample_edges.py      edges of the spikes over a frame, one of the pictures
#     sample_motion.py     the pictures of --motion
#
# What must stay: the page is made from utils/templates/sample.html
# (test_the_page_is_whole_in_a_browser). The sample is the one that training gets
# (test_the_page_shows_the_frames_of_the_sample).
# Free to change: all else, because only people read the page.
# Test: tests/parts/scripts/test_show_sample.py

# About this number of frames of the sample are compared with their spikes. The compared frames are
# evenly spaced, and the middle frame is always among them. More frames make the measured shift less
# noisy, and take more time.
MEASURED_FRAMES = 5


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Write the page of one sample, and print the verdict. Returns the exit code 0."""
    command = parse(arguments)
    if command.out is None:
        command.out = default_output(f"sample_{command.split}_{command.index}.html")
    refuse_existing(command.out, "--out")
    dataset = data_set_of(command)
    wanted = Wanted(command.split, command.index, command.epoch)
    refuse_missing_sample(dataset, wanted)

    # The method `draw` chooses the clip, the frames and the crop of a sample. Only the data sets of
    # clips from files have it. A user's data set may be of another kind (docs/extending.md).
    if hasattr(dataset, "draw"):
        page = page_of(dataset, wanted, command.motion)
    else:
        page = page_of_other_set(dataset, wanted, command.motion)

    about = {"options": f"{command.opt}; {type(dataset).__name__}", **page.facts}
    write_page(command.out, page._replace(facts=about))
    print(f"{command.out}: {page.title}\n{page.verdict.sentence}")
    return 0


def data_set_of(command: argparse.Namespace) -> Any:
    """Return the data set of --opt and --split. Raises OptionError if there is none."""
    # Imported here, so that --help does not wait for torch, which both modules import.
    from data.select_dataset import build_dataset
    from main_train_vrt import PARTS  # the networks, data sets and losses that options may name

    opt = load_options(command.opt, command.overrides, parts=PARTS)
    section = getattr(opt.datasets, command.split)
    if section is None:
        raise OptionError(
            what=f"no datasets.{command.split}",
            where=command.opt,
            expected="a data set",
            do="choose another --split",
        )
    return build_dataset(section, command.split, opt.train.manual_seed)


# ---- The page ---------------------------------------------------------------------------------


def page_of(dataset: Any, wanted: Wanted, has_motion: bool) -> Page:
    """Return the page of a sample of clips from files.

    dataset: a `ClipDataset` (data/clip_reading.py).
    has_motion: whether --motion is given. Then the page shows the motion within an exposure, too.
    """
    sample = read_sample(dataset, wanted)
    if has_motion:
        refuse_motion_without_spikes(sample.draw)
    verdict = verdict_of(dataset, sample.draw)
    shown_sections = sections(dataset, sample, verdict.comparison)
    if has_motion:
        shown_sections.append(motion_within_exposure(dataset, sample))
    title = f"{sample.title}: {sample.item['key']}"
    return Page(title, verdict, facts(sample.draw), shown_sections)


def page_of_other_set(dataset: Any, wanted: Wanted, has_motion: bool) -> Page:
    """Return the page of a data set that has no files: its tensors, without a verdict.

    It is not known how the spikes of this data set became channels. So the spikes cannot be
    compared with the frames.

    dataset: a data set of another kind, e.g. of a user's class.
    has_motion: whether --motion is given. --motion is refused for such a data set.

    Test: test_samples_of_other_data_sets_are_shown
    """
    if has_motion:
        refuse_motion_without_files(dataset)
    sample = sample_of_other_set(dataset, wanted)
    # The page writes the same names below the blurry frames (lq) and below the sharp frames (gt),
    # because both show the same frames.
    names = {kind: sample.names for kind in ("lq", "gt") if kind in sample.item}
    sentence = "This data set has no spikes."
    if "spike" in sample.item:
        sentence = (
            "Whether spikes and frames agree is not known, because this data set has no files."
        )
    verdict = Verdict(sentence, style="none", numbers="", comparison=None)
    shown_sections = tensor_sections(sample.item, names)
    return Page(sample.title, verdict, {"frames": ", ".join(sample.names)}, shown_sections)


def verdict_of(dataset: Any, draw: Any) -> Verdict:
    """Return the verdict whether the spikes of a sample show the same as its frames.

    The edges in the spikes and in the frames are compared (`compare` in data/alignment.py).

    dataset: the data set of the sample, a `ClipDataset`.
    draw: data.clip_reading.Draw, the clip and its frames.

    Tests: test_spikes_upside_down_are_named, test_spikes_that_are_shifted_are_named
    """
    if not draw.clip.spikes:
        return Verdict("This data set has no spikes.", style="none", numbers="", comparison=None)
    from data.alignment import compare  # here, so that --help does not wait for torch

    comparison = compare(dataset, draw, MEASURED_FRAMES)
    right, down = comparison.shift  # in RGB pixels
    numbers = (
        f"Gradients correlate with {comparison.correlation:.2f}; shift {right:+.2f} px in "
        f"x, {down:+.2f} px in y (phase correlation, response {comparison.response:.2f}), "
        f"over {comparison.frame_count} {comparison.kind} frames before the crop."
    )
    style = "right" if comparison.is_right else "wrong"
    return Verdict(comparison.sentence, style, numbers, comparison=comparison)


def write_page(out: Path, page: Page) -> None:
    """Write the page as one file, with its pictures in it."""
    verdict = page.verdict
    text = render(
        "sample",
        title=page.title,
        verdict=verdict.sentence,
        verdict_class=verdict.style,
        numbers=verdict.numbers,
        about=page.facts,
        sections=page.sections,
    )
    write_whole(out, text.encode())


# ---- The command line, and what is refused ----------------------------------------------------


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line as opt, index, split, epoch, motion, out and overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--opt", required=True, help="option file")
    parser.add_argument(
        "--index",
        type=int,
        default=0,
        metavar="N",
        help="number of the sample or of the test clip (default: %(default)s)",
    )
    parser.add_argument(
        "--split", choices=("train", "test"), default="train", help="which data set; default train"
    )
    parser.add_argument(
        "--epoch",
        type=int,
        default=0,
        help="epoch of a training sample, from 0 (default: %(default)s)",
    )
    parser.add_argument(
        "--motion",
        action="store_true",
        help="also show the motion within the exposure of the middle frame; takes seconds",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PAGE",
        help="a new file; default: sample_SPLIT_INDEX.html in the current folder, or in a "
        "temporary folder if the current folder is the repository",
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser.parse_intermixed_args(arguments)


def refuse_motion_without_spikes(draw: Any) -> None:
    """Raise OptionError for --motion if the clips of a data set have no spikes.

    draw: data.clip_reading.Draw.

    Test: test_no_motion_can_be_shown_without_spikes
    """
    if not draw.clip.spikes:
        raise OptionError(
            what="this data set has no spikes, so no motion can be shown",
            where="--motion",
            expected="a data set with spikes",
            do="leave out --motion",
        )


def refuse_motion_without_files(dataset: Any) -> None:
    """Raise OptionError for --motion, because a data set of another kind has no spike files."""
    raise OptionError(
        what=f"{type(dataset).__name__} has no spike files, so no motion can be shown",
        where="--motion",
        expected="a data set of spike files",
        do="leave out --motion",
    )


if __name__ == "__main__":
    sys.exit(main())
