"""Make the sets of clips on which methods are trained and tested.

A suite is a collection of sets. The suite `real` is made from videos and photographs. The suite
`sample` has a single small set, "made". `make sample` makes the same set. The set "made" is also
one of the training sets of the suite `real`.

    rig          a pair of simulated cameras, e.g. "dim" (data/cameras/rig_values.py)
    condition    the rig of a set of test clips
    part         the group of videos of the test clips: "choose" (to choose a method) or "report"
                 (for the published numbers). For the suite `sample` the part is "made"

A finished run holds the digest of its data, a short hash. If the digest changes, all finished runs
are invalid.

    to change                        in the digest   what to do
    CLIPS, SAMPLE_WEIGHTS, FRAMES    yes             leave them: they must stay
    TRAINING_SETS                    no              give the changed set another name, also in
                                                     CLIPS and SAMPLE_WEIGHTS. The new name changes
                                                     the digest
    CONDITIONS                       no              a new one may be added: it changes no training,
                                                     and each condition is tested on its own

tests/parts/house/test_quality_command.py makes the suite `sample`. No test makes the clips of the
suite `real`, because no test has the videos.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lab.quality_suite import programs
from lab.quality_suite.sources import PHOTOS, VIDEOS, link_sources
from scripts.make_sample_data import RGB, SPIKES

# CLIPS, FRAMES and SAMPLE_WEIGHTS were chosen by hand, and no comparison with others is recorded.
# The three values are part of the digest of the data, so they must stay.
#
# Number of clips that are cut from each video or photograph. The keys "random", "ideal" and
# "photos" are training sets. "choose" and "report" are the two groups of test videos (sources.py).
CLIPS = {"random": 6, "ideal": 3, "photos": 2, "choose": 2, "report": 3}
FRAMES = 8  # frames of a clip
# Training set -> weight with which a sample is drawn from it. The weights add up to 12, so 4 of 12
# samples come from "random". "made" is the set of `make sample`. The order of the sets must stay,
# because with another order the same random number would draw from another set.
SAMPLE_WEIGHTS = {"random": 4, "photos": 2, "ideal": 3, "made": 3}


class TrainingSet(NamedTuple):
    """What the clips of a training set of the suite `real` are made from."""

    source: str  # "train": the training videos. "photos": the photographs
    rig: str  # the pair of simulated cameras, e.g. "ideal" (data/cameras/rig_values.py)


TRAINING_SETS = {
    "random": TrainingSet(source="train", rig="random"),
    "ideal": TrainingSet(source="train", rig="ideal"),
    "photos": TrainingSet(source="photos", rig="random"),
}
# The rigs of the tests. data/cameras/rig_values.py has their values.
#
#     ideal   aligned cameras, and a nearly ideal sensor
#     other   aligned cameras, and a sensor that integrates display values
#     rig     two plausible cameras with small flaws. This name is also the general word for a pair
#             of cameras. The name must stay, because results have it in names of clips, e.g.
#             "rig/camel_00"
#     dim     the cameras of "rig" in little light
CONDITIONS = ("ideal", "other", "rig", "dim")


@dataclass(frozen=True)
class Data:
    """The sets of clips of a suite."""

    sample_weights: Mapping[Path, int]  # folder of a training set -> weight of its samples
    # Condition -> folder of its test clips, e.g. data/report_rig. The suite `sample` has a single
    # condition, "recorded": the clips as they are.
    tests: Mapping[str, Path]
    # The folder within a set that has the test clips: "test" for the suite `sample`, and "train"
    # for the suite `real`, where `make_clips` puts all clips of a set into "train".
    split: str
    # A short hash of what the sets are made from, 8 hex digits (`digest_of`). Paths of folders are
    # not hashed, so that results are valid on other machines, too. The suite `sample` has the word
    # "sample" instead of a hash.
    digest: str

    @property
    def part(self) -> str:
        """Return which test clips these are: "made", "choose" or "report".

        This is the first word of the folder of a test set: data/report_rig -> "report", data/made
        -> "made". The words must stay, because the files of results end with them.
        """
        # All folders of `tests` begin with the same part, e.g. report_ideal, report_dim.
        first_folder = next(iter(self.tests.values()))
        return first_folder.name.partition("_")[0]


def make_made(out: Path) -> Data:
    """Make the set "made", as `make sample` does. Returns the data of the suite `sample`.

    The set has clips for training and for testing.
    """
    folder = out / "data/made"
    programs.call("scripts/make_sample_data.py", "--root", str(folder), out=out, name="made")
    return Data(
        sample_weights={folder: 1},
        tests={"recorded": folder},
        split="test",
        digest="sample",
    )


def make_real(out: Path, videos: Path | None, part: str, conditions: Sequence[str]) -> Data:
    """Make all sets of the suite `real`. Sets that already exist are kept.

    videos: folder of the eleven videos. Without it, the program ends with a message.
    part: the group of videos on which the methods are tested, "choose" or "report" (sources.py).
    conditions: the conditions under which the methods are tested, some of CONDITIONS.
    """
    sources = link_sources(out, videos)  # "train", "photos", "choose", "report" -> folder
    # Make the training sets "made" and TRAINING_SETS, each in the folder data/<name>.
    # SAMPLE_WEIGHTS has a weight for each training set.
    make_made(out)
    for name, training_set in TRAINING_SETS.items():
        make_clips(
            out,
            name,
            source=sources[training_set.source],
            rig=training_set.rig,
            clips=CLIPS[name],
            frames=FRAMES,
        )
    sample_weights = {out / "data" / name: weight for name, weight in SAMPLE_WEIGHTS.items()}

    # Make the test clips of all conditions, but test only the clips of `conditions`. The clips of
    # the other conditions stay on the disk, so a later call with these conditions is quick.
    folder_of_condition = {}
    for condition in CONDITIONS:
        folder_of_condition[condition] = make_clips(
            out,
            name=f"{part}_{condition}",
            source=sources[part],
            rig=condition,
            clips=CLIPS[part],
            frames=FRAMES,
        )
    tests = {condition: folder_of_condition[condition] for condition in conditions}
    # VIDEOS and PHOTOS (sources.py) are the names of the videos and photographs. CONDITIONS are not
    # in the digest, because a new condition changes no training. TRAINING_SETS are not in the
    # digest, either. So a training set with another source or rig must get a new name, as the head
    # of this file says.
    digest = digest_of([VIDEOS, CLIPS, SAMPLE_WEIGHTS, FRAMES, PHOTOS])
    # split: `make_clips` puts all clips of a set into its folder "train", also the test clips.
    return Data(sample_weights, tests, split="train", digest=digest)


def make_clips(out: Path, name: str, source: Path, rig: str, clips: int, **settings: Any) -> Path:
    """Make a set of clips in the folder <out>/data/<name>, and return the folder.

    Clips that already exist are kept.

    source: folder of videos or photographs.
    rig: the pair of simulated cameras, e.g. "dim".
    clips: number of clips of each video or photograph.
    settings: other flags of scripts/prepare_gopro_spike.py, e.g. average=7. The program uses its
        default for a setting that is None.
    """
    folder = out / "data" / name
    flags = {
        "test_share": 0,  # all clips are in the folder "train" of the set
        "workers": 1,
        "source": source,
        "rig": rig,
        "clips": clips,
        "out": folder,
        **settings,
    }
    words = []
    for flag, value in flags.items():
        if value is not None:
            words += [f"--{flag.replace('_', '-')}", str(value)]
    # The name of the set is also the name of its log file.
    programs.call("scripts/prepare_gopro_spike.py", *words, out=out, name=name)
    return folder


def dataroots_of(folder: Path, split: str) -> dict[str, str]:
    """Return the folders of a set as keys of an option file, e.g. "dataroot_spike" -> folder.

    dataroot_lq and dataroot_gt are the same folder: <clip>/blur and <clip>/sharp lie below it.

    folder: folder of the set.
    split: "train" or "test".
    """
    # RGB and SPIKES: the folders of the two cameras, as scripts/prepare_gopro_spike.py names them.
    frames = str(folder / RGB / split)
    return {
        "dataroot_lq": frames,
        "dataroot_gt": frames,
        "dataroot_spike": str(folder / SPIKES / split),
    }


def digest_of(value: Any) -> str:
    """Return 8 hex digits that change with the value.

    Names of committed results contain such digits, so the text of the JSON must stay. The order of
    the keys of a dict does not change the digits.
    """
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
