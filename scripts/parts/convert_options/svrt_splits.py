"""Convert the data sets of S-VRT, except their spikes: frames, totals, and the test split.

    convert_frames       size of a crop, and normalization of the frames
    divide_totals        batch size and number of workers: per GPU here, of all GPUs in S-VRT
    convert_test_split   gives the test split the spikes of the training

What must stay: the converted file trains on data in the layout of S-VRT
(test_the_converted_file_trains_on_data_of_its_layout; the tests before it compare the lines of the
report about the test split).
Free to change: the texts of the report, except where
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
    """Convert the options of a split that concern its RGB frames: crop size and normalization."""
    # S-VRT gives height and width of the crop, e.g. [256, 256]. Our crop is square, so it is one
    # number, 256. A crop of unequal sides stays as it is, and `refuse_problems`
    # (option_problems.py) names the key.
    key = f"{split}.gt_size"
    sizes = conversion.values.get(key)
    if isinstance(sizes, list) and sizes:
        is_square = all(size == sizes[0] for size in sizes)
        if is_square:
            conversion.set_ours(key, sizes[0])

    key = f"{split}.rgb_normalize"
    kind = conversion.take(key)
    if kind:
        conversion.differences[key] = f"{kind!r}: {NORMALIZED}"


def divide_totals(conversion: Conversion) -> None:
    """Divide batch size and number of workers: S-VRT counts all GPUs together, we count each."""
    gpus = _gpu_count(conversion)
    if gpus <= 1:
        return
    for name in TOTALS:  # dataloader_batch_size, dataloader_num_workers
        key = f"datasets.train.{name}"
        total = conversion.values.get(key)
        if not isinstance(total, int):
            continue
        # The number per GPU is rounded down, e.g. 10 samples on 4 GPUs become 2 per GPU, 8 in all.
        # It is at least 1, e.g. for 4 samples on 8 GPUs, because a batch needs a sample on each
        # GPU. 0 workers stay 0: then the main process reads the samples itself.
        least = min(total, 1)
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
    """Give the test split spikes, if the training has spikes.

    S-VRT's test section may name no spikes. A network that was trained with spikes needs spikes in
    the test, too.
    """
    train, test = SPLITS
    key = f"{test}.dataset_type"
    name = conversion.values.get(key)

    # In a training without spikes, only the dataset class has another name: S-VRT's `TestDataset`
    # is `VideoRecurrentTestDataset` here.
    if not conversion.has(f"{train}.spike"):
        if name == "TestDataset" and conversion.has(train):
            conversion.set_ours(key, "VideoRecurrentTestDataset")
        return

    # Without a test split there is nothing to do. There are two forms of a missing test split:
    #
    #     is_empty         the file has the key `datasets.test` with the value {} or null, which
    #                      `flatten` (dotted_keys.py) keeps as one key
    #     not has(test)    the file has neither the key `datasets.test` nor a key below it
    is_empty = test in conversion.values and not conversion.values[test]
    if is_empty or not conversion.has(test):
        return
    if name != "TestDatasetRGBSpike":
        note = f"{name} -> TestDatasetRGBSpike: the network reads spikes"
        conversion.set_ours(key, "TestDatasetRGBSpike", note=note)
    if not conversion.has(f"{test}.spike"):
        copy_spike_section(conversion)
    assume_spike_folder(conversion)


def copy_spike_section(conversion: Conversion) -> None:
    """Let the test read its spikes as the training does: copy the section `spike`."""
    train, test = SPLITS
    for spike_key in SPIKE_KEYS:
        key_in_training = f"{train}.spike.{spike_key}"
        if key_in_training in conversion.values:
            conversion.values[f"{test}.spike.{spike_key}"] = conversion.values[key_in_training]
    conversion.renamed[f"{test}.spike"] = "the section of training, because the test has none"


def assume_spike_folder(conversion: Conversion) -> None:
    """Set the folder of the test's spikes, if the file does not name it, and say so.

    The folders are assumed to be .../train and .../test.
    """
    train, test = SPLITS
    root = str(conversion.values.get(f"{train}.dataroot_spike", "")).rstrip("/")
    if f"{test}.dataroot_spike" in conversion.values or not root.endswith("train"):
        return
    assumed = f"{root.removesuffix('train')}test"
    conversion.values[f"{test}.dataroot_spike"] = assumed
    conversion.renamed[f"{test}.dataroot_spike"] = (
        f"{assumed}, assumed, because the folder of training ends with train"
    )
