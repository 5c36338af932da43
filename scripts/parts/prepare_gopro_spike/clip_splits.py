"""Choose which sources of prepare_gopro_spike.py become test clips.

What must stay: a source gets the same split at each start, so that no frame of a test clip is ever
trained on (test_the_share_for_testing_takes_neither_all_clips_nor_none,
test_clips_that_are_made_keep_their_split_if_more_clips_come).

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

from collections.abc import Sequence
from pathlib import Path

from data.making.sources import SPLITS, ClipSource
from scripts.parts.prepare_gopro_spike.made_info import read_info


def choose_splits(sources: list[ClipSource], share: float, out: Path) -> dict[str, str]:
    """Return source name -> split, "train" or "test".

    A source in a folder train/ or test/ gets the split of this folder. Of all other sources,
    `share` become test clips: at least one, but never all. If `share` is 0, or if there is only one
    such source, there is no test clip. A source that an earlier start has put into a split stays
    there, so that no frame of a test clip is ever trained on.

    share: --test-share. out: --out, with the clips of an earlier start.
    """
    names = [source.name for source in sources if not source.split]
    earlier = earlier_splits(names, out)  # source name -> split

    # How many new sources must become test clips. E.g. 2 are wanted and 1 exists: 1 is missing. If
    # earlier starts had a larger --test-share, 3 may exist: 0 are missing.
    wanted_count = count_of_tests(len(names), share)
    existing_count = list(earlier.values()).count("test")
    missing_count = max(0, wanted_count - existing_count)
    # If earlier starts have put most sources into "train", there may be too few new sources. Then
    # all new sources become test clips.
    new_names = [name for name in names if name not in earlier]
    new_test_names = evenly_chosen(new_names, min(missing_count, len(new_names)))

    # The folder decides first, then the earlier start, and then the choice among the new sources.
    splits = {}
    for source in sources:
        name = source.name
        if source.split:
            splits[name] = source.split
        elif name in earlier:
            splits[name] = earlier[name]
        elif name in new_test_names:
            splits[name] = "test"
        else:
            splits[name] = "train"
    return splits


def count_of_tests(sources: int, share: float) -> int:
    """Return how many of some sources become test clips, as `choose_splits` says.

    E.g. with share 0.2: 10 sources give 2, 3 sources give 1, and 1 source gives 0.

    sources: number of sources that are in no folder train/ or test/. share: --test-share.
    """
    if share <= 0 or sources < 2:
        return 0
    rounded = round(share * sources)
    at_least_one = max(1, rounded)
    return min(at_least_one, sources - 1)  # a source is left for the training


def earlier_splits(names: Sequence[str], out: Path) -> dict[str, str]:
    """Return source name -> split, for the sources that an earlier start has put into a split.

    The split of a source is looked up in dataset.json, and then in the folders of the clips:

        with a rig       a source becomes several clips of one split, e.g. "camel" becomes camel_00
                         and camel_01. In dataset.json, both have "source": "camel".
        without a rig    a source becomes one clip of its own name, e.g. "camel". So the folder
                         <out>/GOPRO_Large/test/camel tells the split, too.

    A folder camel_00 may belong to a source "camel_00", or be a clip of the source "camel".
    dataset.json tells which. A folder that belongs to another source does not count.

    names: the sources that have no split by their folder. out: --out.

    Tests: test_clips_that_are_made_keep_their_split_if_more_clips_come,
    test_a_clip_of_another_source_decides_no_split
    """
    source_of_clip = {}
    recorded = {}  # source name -> split, as dataset.json says
    for clip_name, clip in read_info(out)["clips"].items():
        source = clip.get("source", clip_name)
        source_of_clip[clip_name] = source
        recorded[source] = clip.get("split")

    earlier = {}
    for name in names:
        # E.g. the clip "camel_00" has the source "camel". So a source "camel_00" is another source.
        is_clip_of_other_source = source_of_clip.get(name, name) != name
        if recorded.get(name):
            earlier[name] = recorded[name]
        elif not is_clip_of_other_source:
            for split in SPLITS:
                if (out / "GOPRO_Large" / split / name).is_dir():
                    earlier[name] = split
    return earlier


def evenly_chosen(names: Sequence[str], count: int) -> set[str]:
    """Choose `count` names at equal distances, because neighbours in the list are often similar.

    The last name of each of `count` equal groups is chosen. E.g. 2 of 6 names: the groups are 0 to
    2 and 3 to 5, so the names 2 and 5. The choice is not random, because a second start must choose
    the same names.
    """
    chosen = set()
    for group in range(count):
        end_of_group = (group + 1) * len(names) // count
        chosen.add(names[end_of_group - 1])
    return chosen
