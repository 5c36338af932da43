"""Choose which sources of prepare_gopro_spike.py become test clips.

What must stay: the same source gives the same clips, and a clip keeps its split, so that no frame
of a test clip is ever trained on
(test_the_share_for_testing_takes_neither_all_clips_nor_none,
test_clips_that_are_made_keep_their_split_if_more_clips_come).
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

    E.g. with share 0.2: 10 sources give 2 test clips, 3 sources give 1, and 1 source gives 0.
    """
    names = [source.name for source in sources if not source.split]
    earlier = earlier_splits(names, out)  # source name -> split

    # Earlier starts may have made more test clips than wanted, with a larger --test-share. Then
    # `max` gives 0 missing ones.
    existing_count = list(earlier.values()).count("test")
    missing_count = max(0, count_of_tests(len(names), share) - existing_count)
    # Only new sources can become test clips. There may be too few of them, if earlier starts have
    # put most sources into "train".
    undecided = [name for name in names if name not in earlier]
    new_test_names = evenly_chosen(undecided, min(missing_count, len(undecided)))

    # The folder decides first, then the earlier start, and the choice above only for new sources.
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

    sources: number of sources that are in no folder train/ or test/. share: --test-share.
    """
    if share <= 0 or sources < 2:
        return 0
    rounded = round(share * sources)
    return min(max(1, rounded), sources - 1)


def earlier_splits(names: Sequence[str], out: Path) -> dict[str, str]:
    """Return source name -> split, for the sources that an earlier start has put into a split.

    names: the sources that have no split by their folder. out: --out.
    """
    # With a rig (two simulated cameras), a source becomes several clips of one split, e.g. camel_00
    # and camel_01. In dataset.json each of them has the key "source", here "camel".
    source_of_clip = {}
    recorded = {}  # source name -> split
    for name, clip in read_info(out)["clips"].items():
        source = clip.get("source", name)
        source_of_clip[name] = source
        recorded[source] = clip.get("split")

    # Without a rig, a clip has the name of its source, so the folder of the clip tells its split.
    # dataset.json counts more than the folder: the folder camel_00 may come from a source "camel".
    earlier = {}
    for name in names:
        if recorded.get(name):
            earlier[name] = recorded[name]
        elif source_of_clip.get(name, name) == name:
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
