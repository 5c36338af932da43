"""Give the option keys of datasets of clips, as classes that are combined.

The keys of a dataset, e.g. of the section `datasets.train`, are the fields of a class. Each class
here has the keys of one subject, and a dataset combines the classes that it needs:

    class TrainKeys(Crops, Spikes, ClipFiles): ...

"lq" are the blurry frames, and "gt" are the sharp frames. A dataset has one or several roots. A
root is a set of folders that belong together, one for each kind of file. E.g. the folders of the
blurry frames, the sharp frames and the spikes of GoPro are a root. With several roots, each key of
a folder is a list.

What must stay: keys and their defaults, because option files of users have them. The names of the
classes must stay, too, because docs/extending.md shows them to users.
Free to add: a key, with a default that leaves all samples as they are. After a change,
`python lab/make_options_doc.py` writes the documents of the options.

Tests: tests/parts/utils/test_option_files.py (documents), tests/stories/test_extending.py (classes
for users), tests/parts/data/test_manifest.py (several roots)
"""

from typing import Annotated, Any

from pydantic import Field

from data.augment import CAMERAS
from data.cameras import spike_source
from data.clips.io_backend import IO_BACKENDS
from data.clips.kept import SHARE
from utils.errors import OptionError
from utils.options.section import Section

# A folder, or a list with one folder for each root.
Root = str | Annotated[list[str], Field(min_length=1)]

# For each root, its share of the samples of an epoch. Only the ratios count: [1, 3] means that a
# quarter of the samples comes from the first root, and three quarters come from the second root.
Shares = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]


class FileReading(Section):
    """How files are read; every dataset of clips has these keys."""

    # Annotated[Any, REGISTRY] is the type of an option that chooses a registered class. Its value
    # is the name of the class, e.g. "disk", or an object with the name and the options of the
    # class, e.g. {"type": "cache", "path": "/data/cache"}.
    io_backend: Annotated[Any, IO_BACKENDS] = Field("disk", description="How files are read.")
    cache_data: bool = Field(False, description="Keep decoded pictures in memory.")
    checked_share: float = Field(
        # SHARE is 1 %, and data/clips/kept.py gives the reason. 4096 in the text below is
        # LEAST_FILES of data/clips/unchanged_data.py. If you change LEAST_FILES, change the text.
        SHARE,
        ge=0,
        le=1,
        description="The first start checks all files. While no folder changes, each later start "
        "checks this share of them, at least 4096 files; 1: all files.",
    )


class FrameFiles(FileReading):
    """The folders and names of the frames: one root, or lists with one entry per root."""

    dataroot_gt: Root | None = Field(
        None,
        description="Folder of the sharp frames; null: there are none. This works for testing, "
        "and for training with a loss that needs no gt.",
    )
    lq_folder: Root = Field(
        "blur", description="Folder of the blurry frames within a clip, if any."
    )
    meta_info_file: Root | None = Field(
        None, description="List of the clips to use; null: all folders."
    )
    # A format of numbers, e.g. "08d". It has three parts, and each may be missing: a 0, a width of
    # up to two digits, and a "d".
    filename_tmpl: Annotated[str, Field(pattern=r"^0?[0-9]{0,2}d?$")] | None = Field(
        None, description='Form of the frame numbers, e.g. "08d"; null: any.'
    )
    filename_ext: str = Field("png", description="Ending of the frames' names.")


class ClipFiles(FrameFiles):
    """The keys of FrameFiles, and the folder of the blurry frames, which must be given."""

    dataroot_lq: Root = Field(
        description="Folder (or LMDB) of the blurry frames; a list: one folder per root."
    )


class SharpFiles(Section):
    """Requires dataroot_gt in training. In FrameFiles this key may be left out.

    Put SharpFiles before ClipFiles or FrameFiles in the list of base classes, e.g.
    class TrainKeys(Crops, SharpFiles, ClipFiles). If two base classes have a field of the same
    name, Python takes the field of the first class, here of SharpFiles.
    """

    dataroot_gt: Root = Field(description="Folder of the sharp frames.")


class Spikes(Section):
    """How the spikes are read."""

    spike: Annotated[Any, spike_source.SPIKE_SOURCES] = Field(
        "dat",
        description="How the spike files are read, and how spikes become channels of the input.",
    )
    camera: Annotated[Any, CAMERAS] = Field(
        None,
        description='Simulated changes of the spike camera: "perturb", or a mapping with its '
        "options; null: no changes.",
    )


class Crops(Section):
    """Length, crop and augmentation of a training sample."""

    # The upper bounds are far above any use. They only refuse mistyped numbers, because such
    # numbers would fill the memory.
    num_frame: int = Field(ge=1, le=10_000, description="Number of frames of a training sample.")
    gt_size: int = Field(
        ge=1, le=2**16, description="Side of the crop of the sharp frames, in pixels."
    )
    interval_list: list[Annotated[int, Field(ge=1, le=10_000)]] = Field(
        [1],
        min_length=1,
        description="Distances between two consecutive frames. Each sample draws one.",
    )
    random_reverse: bool = Field(False, description="Play half of the samples backwards.")
    use_hflip: bool = Field(False, description="Mirror half of the samples.")
    use_rot: bool = Field(False, description="Turn samples by multiples of 90 degrees.")
    dataroot_share: Shares | None = Field(
        None,
        description="Share of each root in an epoch; null: in proportion to the number of its "
        "samples.",
    )


class WholeClips(Section):
    """The tested part of a clip."""

    num_frame: int = Field(
        -1, description="Number of frames to test of each clip, from its first one; -1: all."
    )


# Keys that name the folder of one kind of file. If one of them is a list, all of these keys that
# are set must be lists.
FOLDER_KEYS = ("dataroot_gt", "dataroot_lq", "dataroot_spike", "dataroot_gt_instants")

# Keys that may be lists with one entry per root. `split_by_root` splits only these keys, so a new
# key of a folder must be added here.
ROOT_KEYS = (*FOLDER_KEYS, "lq_folder", "meta_info_file", "dataroot_share")


def split_by_root(section: Any) -> list[Any]:
    """Split a section with lists into one section for each root, with single values.

    E.g. a section with dataroot_lq ["a", "b"] and dataroot_gt ["c", "d"] gives two sections, one
    with "a" and "c", and one with "b" and "d". With a single root the result is [section].
    Raises OptionError if the lists have different lengths.
    """
    lists = {}
    for key in ROOT_KEYS:
        # A section need not have all keys: an RGB dataset has no dataroot_spike.
        value = getattr(section, key, None)
        if isinstance(value, list):
            lists[key] = value
    if not lists:
        return [section]
    _refuse_unequal_lists(section, lists)

    # All lists have one length now, so any of them gives the number of roots.
    sections = []
    any_list = next(iter(lists.values()))
    for root in range(len(any_list)):
        values_of_root = {key: values[root] for key, values in lists.items()}
        sections.append(section.model_copy(update=values_of_root))
    return sections


def _refuse_unequal_lists(section: Any, lists: dict[str, list[Any]]) -> None:
    """Refuse lists of different lengths.

    section: the resolved options of a dataset.
    lists: {key: its list}, for all keys with a list.
    """
    # Each root needs its own folder of each kind. So if e.g. dataroot_lq is a list, dataroot_gt
    # must be a list, too. `lists` has at least one key, so each single folder is refused.
    single_folders = []
    for key in FOLDER_KEYS:
        if isinstance(getattr(section, key, None), str):
            single_folders.append(key)
    lengths = {len(value) for value in lists.values()}
    if not single_folders and len(lengths) == 1:
        return
    entries = [f"{key} has {len(value)}" for key, value in lists.items()]
    entries += [f"{key} is a single folder" for key in single_folders]
    raise OptionError(
        what=f"the roots do not match: {', '.join(entries)}",
        where="datasets, dataroot_...",
        expected="lists of the same length, one entry for each root",
        do="complete the lists",
    )
