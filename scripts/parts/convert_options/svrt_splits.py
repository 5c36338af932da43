"""Convert the data sets of S-VRT, except their spikes: frames, totals, and the test split.

    convert_frames       size of a crop, and normalization of the frames
    divide_totals        batch size and number of workers: per GPU here, of all GPUs in S-VRT
    convert_test_split   gives the test split the spikes of the training

A split is one of the two data sets, `datasets.train` or `datasets.test`. For example, on 4 GPUs:

    key                                       in S-VRT           here
    datasets.train.gt_size                    [256, 256]         256
    datasets.train.dataloader_batch_size      8                  2
    datasets.train.rgb_normalize              "imagenet"         left out, and reported
    datasets.test.dataset_type                TestDataset        TestDatasetRGBSpike
    datasets.test.spike                       missing            as datasets.train.spike

Each function changes a `Conversion` (svrt_conversion.py). Its `values` are the options by their
dotted keys: S-VRT's keys at first, and our keys in the end. Its tables `renamed` and `differences`
are the report for the user. `set_ours` writes to both: it sets one of our options, and reports it.

What must stay: the converted file trains on data in the layout of S-VRT
(test_the_converted_file_trains_on_data_of_its_layout). The tests before this test compare the lines
of the report about the test split. Free to change: the texts of the report, except where
tests/parts/scripts/test_convert_options.py quotes them.
"""

from scripts.parts.convert_options.svrt_conversion import SPLITS, Conversion
from utils.options.typed import TOTALS

# The keys of our `spike` section that a test split can take over from the training split.
SPIKE_KEYS = ("type", "h", "w", "flip", "rate", "gamma", "center", "representation")
# How the frames that S-VRT normalizes differ from the frames here, for the report.
NORMALIZED = (
    "S-VRT scales the input to about [-2.1, 2.6] while the sharp frames stay in [0, 1], and VRT "
    "adds its input to its output; here both are in [0, 1], and weights trained the other way do "
    "not fit"
)


def convert_frames(conversion: Conversion, split: str) -> None:
    """Convert the options of a split that concern its RGB frames: crop size and normalization.

    split: a key of SPLITS, e.g. "datasets.train".
    """
    # S-VRT gives height and width of the crop, e.g. [256, 256]. Our crop is square, so it is one
    # number, 256. A crop of unequal sides has no counterpart, so the key stays as it is.
    # `refuse_problems` (option_problems.py) names the key later.
    key = f"{split}.gt_size"
    sizes = conversion.values.get(key)
    if isinstance(sizes, list) and sizes:
        is_square = all(size == sizes[0] for size in sizes)
        if is_square:
            conversion.set_ours(key, sizes[0])

    # Our frames are never normalized, so the key is removed. The report says how the frames differ.
    key = f"{split}.rgb_normalize"
    kind = conversion.take(key)
    if kind:
        conversion.differences[key] = f"{kind!r}: {NORMALIZED}"


def divide_totals(conversion: Conversion) -> None:
    """Divide batch size and number of workers: S-VRT's are for all GPUs together, ours for each.

    The number per GPU is rounded down, but it is at least 1, because a batch needs a sample on each
    GPU. For example:

        total in S-VRT     per GPU here      total here
        8 for 4 GPUs       2                 8
        10 for 4 GPUs      2                 8             reported as a difference
        4 for 8 GPUs       1                 8             reported as a difference
        0 for 4 GPUs       0                 0             workers: the main process reads samples
    """
    gpus = _gpu_count(conversion)
    if gpus <= 1:
        return
    for name in TOTALS:  # dataloader_batch_size, dataloader_num_workers
        key = f"datasets.train.{name}"
        total = conversion.values.get(key)
        if not isinstance(total, int):
            continue
        least = min(total, 1)  # 1, or 0 for 0 workers
        per_gpu = max(total // gpus, least)
        new_total = per_gpu * gpus
        note = f"{total} for {gpus} GPUs in all -> {per_gpu} per GPU, {new_total} in all"
        conversion.set_ours(key, per_gpu, note=note)
        if new_total != total:
            conversion.differences[key] = (
                f"{total} in all is no multiple of {gpus} GPUs: {per_gpu} per GPU is {new_total} "
                "in all"
            )


def _gpu_count(conversion: Conversion) -> int:
    """Return the number of GPUs of a training by the file of S-VRT. Without `dist`, it is 1."""
    ids = conversion.values.get("gpu_ids")
    if conversion.values.get("dist") and isinstance(ids, list):
        return len(ids)
    return 1


# ---- The test split ---------------------------------------------------------------------------


def convert_test_split(conversion: Conversion) -> None:
    """Name the dataset of the test split, and give the split spikes if the training has spikes.

    A network that was trained with spikes needs spikes in the test, too. In S-VRT, the test split
    may name no spikes. A file without a training split has no spikes to copy, so its test split
    stays as it is.
    """
    train, test = SPLITS
    has_spikes = conversion.has(f"{train}.spike")
    if has_spikes and has_test_split(conversion):
        name_dataset_with_spikes(conversion)
        if not conversion.has(f"{test}.spike"):
            copy_spike_section(conversion)
        assume_spike_folder(conversion)
    elif not has_spikes and conversion.has(train):
        # The training has no spikes. The class TestDataset of S-VRT has another name here.
        key = f"{test}.dataset_type"
        if conversion.values.get(key) == "TestDataset":
            conversion.set_ours(key, "VideoRecurrentTestDataset")


def has_test_split(conversion: Conversion) -> bool:
    """Return whether the file has a test split that is not empty."""
    _, test = SPLITS
    # `flatten` (dotted_keys.py) keeps an empty section as a value of its own key. E.g. `values` has
    # {"datasets.test": {}} or {"datasets.test": None}.
    is_empty = test in conversion.values and not conversion.values[test]
    return conversion.has(test) and not is_empty


def name_dataset_with_spikes(conversion: Conversion) -> None:
    """Set the dataset class of the test split that reads spikes, and report the change."""
    _, test = SPLITS
    key = f"{test}.dataset_type"
    name = conversion.values.get(key)
    if name != "TestDatasetRGBSpike":
        note = f"{name} -> TestDatasetRGBSpike: the network reads spikes"
        conversion.set_ours(key, "TestDatasetRGBSpike", note=note)


def copy_spike_section(conversion: Conversion) -> None:
    """Let the test read its spikes as the training does: copy the section `spike`."""
    train, test = SPLITS
    for name in SPIKE_KEYS:
        key_of_train = f"{train}.spike.{name}"
        key_of_test = f"{test}.spike.{name}"
        if key_of_train in conversion.values:
            conversion.values[key_of_test] = conversion.values[key_of_train]
    conversion.renamed[f"{test}.spike"] = "the section of training, because the test has none"


def assume_spike_folder(conversion: Conversion) -> None:
    """Set the folder of the test's spikes, if the file does not name it, and report it.

    If the folder of the training ends with "train", the folder of the test is assumed beside it:
    "spikes/train" -> "spikes/test". For any other name, no folder is set.
    """
    train, test = SPLITS
    key = f"{test}.dataroot_spike"
    root = str(conversion.values.get(f"{train}.dataroot_spike", "")).rstrip("/")
    if key in conversion.values or not root.endswith("train"):
        return
    assumed = f"{root.removesuffix('train')}test"
    conversion.values[key] = assumed
    conversion.renamed[key] = f"{assumed}, assumed, because the folder of training ends with train"
