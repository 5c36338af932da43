"""Prepare datasets.test for a test, and collect what the report says about it.

main_test_vrt.py takes the section datasets.test of an option file from `section_of_test_set`, and
builds the data set. main_test_vrt.py puts the results of the other functions into its `Job`
(models/restore/job.py), e.g. the options on which the scores depend.

What must stay: `keys_of_scores`, by which a continued test knows its own results
(test_results_of_other_settings_are_not_taken_over). Free to change: the words for the report.

Tests: tests/stories/test_main_test.py, tests/stories/test_kair_files.py,
tests/parts/utils/test_output_folder.py
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.contract import ClipReader
from utils.errors import OptionError
from utils.options.loader_options import LoaderOptions
from utils.options.models import Options
from utils.output_folder import refuse_overlap


def section_of_test_set(opt: Options) -> LoaderOptions:
    """Return the section datasets.test with its cache turned off.

    Raises OptionError if the section is missing.
    """
    section = opt.datasets.test
    if section is None:
        raise OptionError(
            what="datasets.test is missing",
            where=opt.opt_path,
            expected="the clips to test on",
            do="add the section",
        )
    # A cache would keep all frames of all clips in memory. The cache would save no time, because
    # each frame is read only once or twice.
    if hasattr(section, "cache_data"):
        section = section.model_copy(update={"cache_data": False})
    return section


def refuse_output_among_data(folder: Path, dataset: Any) -> None:
    """Raise OptionError if the output folder is, contains or lies in a folder of the test set.

    dataset: the test set, also of a user's own class.
    """
    # A dataset class of a user's own may lack `sources`, and is not checked.
    for source in getattr(dataset, "sources", ()):
        refuse_overlap(folder, source.roots())


def count_of_expected_clips(dataset: Any, clips: Sequence[ClipReader]) -> int:
    """Return how many clips the test set would have without a meta file.

    datasets.test.meta_info_file may list only some clips of the folder. All clips of the folder are
    counted, so that the report can say that its averages leave clips out
    (test_a_meta_file_that_leaves_clips_out_makes_the_average_incomplete).

    clips: the clips that are tested.
    """
    if not hasattr(dataset, "count_folders"):  # a dataset class of a user's own
        return len(clips)
    clips_in_folder = dataset.count_folders()  # 0 if the clips cannot be counted
    return max(len(clips), clips_in_folder)


def keys_of_scores(section: LoaderOptions) -> dict[str, Any]:
    """Return the options of datasets.test on which the scores depend.

    Results with other values are not continued in the same folder. The keys that say how clips are
    loaded, e.g. dataloader_num_workers, are left out, because they change no score.
    """
    values = {}
    for key, value in section.plain().items():
        if not key.startswith(("dataloader_", "cache_data")):
            values[key] = value
    return values


def frames_of_test_set(section: LoaderOptions, interpolates: bool) -> str:
    """Return which frames of a clip are restored, in words for the report, e.g. "all".

    interpolates: whether the network makes new frames between the frames of a clip.
    """
    # num_frame: -1 is all frames. A data set that a user has registered may lack the key.
    num_frame = getattr(section, "num_frame", -1)
    frames = f"the first {num_frame} of each clip" if num_frame > 0 else "all"
    # The report has scores of the result and of the input. An interpolated frame has no blurry
    # frame of its own, so the mean of the two frames around it is scored as its input.
    if interpolates:
        return f"made between every second frame ({frames}); input: mean of both neighbours"
    return frames
