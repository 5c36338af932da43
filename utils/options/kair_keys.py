"""List the keys of KAIR's option files that have no effect here, and warn of KAIR's totals.

KAIR is the program in which VRT was published.

    KAIR_ONLY        the keys that only KAIR has, each with the reason why it has no effect here
    FORMERLY_OURS    the keys of KAIR_ONLY that older versions of this project saved, too
    note_on_totals   the warning that KAIR's numbers of the loader are totals of all GPUs

utils/options/typed.py uses the tables when it reads a file. docs/options.md prints the reasons.

What must stay: every key of KAIR_ONLY. Without a key in KAIR_ONLY, an old file with this key would
be refused (tests/stories/test_kair_files.py reads each of them). Free to change: the reasons; then
run lab/make_options_doc.py. A key may be added.
"""

from typing import Any

# Reasons that several keys share.
_FOLDER = "the folder is <path.root>/<task>"
_SPLIT = "datasets.train is for training, datasets.test for testing"
_INIT = "the network is initialized as VRT is"
_REGULARIZER = "there is no such regularizer"
_FEATURE_LOSS = "there is no feature loss"
# Key of datasets.train and of datasets.test -> the reason why it has no effect.
_DATASET = {
    "val_partition": "only VideoRecurrentTrainDataset leaves clips out",
    "test_mode": _SPLIT,
    "phase": _SPLIT,
    "spike_channels": "it follows from the representation",
    "spike_data": "it follows from the spikes",
}
# Section -> key -> the reason why the key has no effect here. The keys come from option files of
# KAIR, and from files that former versions of this project saved. `drop_without_effect` of
# utils/options/typed.py removes the keys with one warning, unless a registered part (such as a
# network) has a parameter of this name.
KAIR_ONLY = {
    "path": {
        "task": _FOLDER,
        "log": _FOLDER,
        "models": _FOLDER,
        "images": _FOLDER,
        "options": _FOLDER,
        "pretrained_optimizerG": "states of other programs cannot be resumed",
    },
    "train": {
        "G_optimizer_reuse": "a resumed run always continues with its optimizer",
        "G_optimizer_momentum": "Adam has betas instead",
        "G_regularizer_orthstep": _REGULARIZER,
        "G_regularizer_clipstep": _REGULARIZER,
        "E_param_strict": "path.pretrained_netE is matched as G_param_strict says",
        "F_lossfn_type": _FEATURE_LOSS,
        "F_lossfn_weight": _FEATURE_LOSS,
    },
    "datasets.train": _DATASET,
    "datasets.test": _DATASET,
    "netG": {
        "init_type": _INIT,
        "init_bn_type": _INIT,
        "init_gain": _INIT,
        "recal_all_flows": "it never had an effect",
    },
}
# The keys of KAIR_ONLY that former versions of this project saved, too. If a file has no other key
# of KAIR_ONLY, it counts as a file of this project: the numbers of its loader are per GPU.
FORMERLY_OURS = {"spike_channels", "spike_data"}


def note_on_totals(keys: list[str], loader: Any, ranks: int) -> str:
    """Return the warning for an option file of KAIR on several ranks, or "" if none is needed.

    In KAIR the numbers of the loader are totals of all GPUs. Here they are numbers per GPU. So with
    4 ranks, a batch of 8 becomes 32 clips per step. The warning names the override
    datasets.train.dataloader_batch_size=2, with which the total is 8 again.

    keys: the field `kair_totals` of the options, e.g. ["dataloader_batch_size"].
    loader: the section datasets.train.
    ranks: number of processes.
    """
    # With one rank, the total and the number per GPU are the same.
    if ranks == 1 or not keys:
        return ""
    totals = []  # e.g. "dataloader_batch_size 8 x 4 ranks = 32 in all, in KAIR 8"
    overrides = []  # e.g. "datasets.train.dataloader_batch_size=2": with it the total is 8
    indivisible = []  # e.g. "a batch of 9 cannot be divided evenly among 4 ranks"
    for key in keys:
        value = getattr(loader, key)
        totals.append(f"{key} {value} x {ranks} ranks = {value * ranks} in all, in KAIR {value}")
        if key == "dataloader_batch_size" and value % ranks:
            indivisible.append(f"a batch of {value} cannot be divided evenly among {ranks} ranks")
        else:
            value_per_rank = value // ranks
            # If KAIR had workers, each rank gets at least 1. E.g. 2 workers for 4 ranks: 2 // 4 is
            # 0, and with 0 workers the training process would read the samples itself.
            if value > 0:
                value_per_rank = max(1, value_per_rank)
            overrides.append(f"datasets.train.{key}={value_per_rank}")
    return (
        "This option file has keys that only KAIR has. KAIR divides the loader's numbers among "
        f"the GPUs; here they are per GPU: {'; '.join(totals)}. For the published totals: "
        f"{' '.join([*overrides, *indivisible])}"
    )
