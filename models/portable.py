"""Find the network that the tensors of a weights file belong to.

`read_saved` takes the path of a weights file, and perhaps what an option file says of its network.
`read_saved` returns a `SavedNetwork` (saved_network.py), which builds the network with its weights.
A weights file may be

    ours        <step>_G.pth or <step>_E.pth, or a full checkpoint: the file describes its network
    published   one of the nine VRT files 001 to 009: its network is recognised by its tensors
    foreign     a state dict of any network: an option file must describe the network

A file of ours describes its network in a table with the keys of DESCRIPTION:

    {"scale": 1, "netG": {...}, "spike_channels": 9, "spike": {...}, "spike_data": {...}}

What must stay: these keys, because they are part of the file format. `read_saved` must refuse spike
channels that are not of the kind of the training, because the results would be wrong without an
error. Free to change: the texts of errors.

Tests: tests/parts/models/test_weights.py, test_any_weights.py
"""

import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from models.recognise import file_of, published_network
from models.saved_network import FROM_FILE, SavedNetwork
from models.select_network import kind_differences
from models.weights_file import read_content, tensors_in
from utils import utils_dist
from utils.errors import CheckpointError
from utils.run import changed_options

logger = logging.getLogger(__name__)

# The keys under which our files describe their network. The names are part of the file format. A
# new key must be optional, as "spike_data" is, because files of older versions lack the key.
DESCRIPTION = ("scale", "netG", "spike_channels", "spike", "spike_data")
# Keys of the section `spike` that say what the spike channels show, besides all keys that begin
# with "representation.". context: number of planes that are read before and after the planes of a
# frame. resize: interpolation of the channels to the RGB grid. The other keys describe the camera
# and its files.
SHOWN_BY_CHANNELS = ("context", "resize")


def read_saved(path: str | Path, description: dict[str, Any] | None = None) -> SavedNetwork:
    """Return the weights in a file, and their network. Averaged weights are preferred.

    description: the description of the network in an option file, a table with the keys of
    DESCRIPTION (`Options.portable` in utils/options/models.py). None without an option file.

    The tensors belong to the network of the first case that holds:

        case                                                    network
        `description` is given                                  the network of the option file
        the file describes its network                          the network in the file
        a published network has tensors of the same names       this published network
            and shapes

    Raises CheckpointError if the file holds no weights, or the network is unknown, or the option
    file gives spike channels of a different kind from the training, e.g. another representation.
    Warns if a setting within this kind differs, e.g. representation.half_window.
    """
    # The path of a file stays. A name such as "vrt/006" becomes the path of the published file. If
    # this file is missing, it is downloaded.
    path = file_of(path)
    # The file is read as data, so no code in it runs.
    content = read_content(path, key="--weights")
    # Name -> tensor on the CPU. A checkpoint has the averaged weights under "ema_state_dict".
    weights = tensors_in(content, path, prefer="ema_state_dict")
    options = _options_in(content)
    if description is not None:
        in_file = options if options is not None else {}
        return _with_option_file(path, weights, in_file, description)
    if options is not None:
        # The keys of DESCRIPTION are the names of fields of SavedNetwork.
        return SavedNetwork(path, weights, **options, known_from=FROM_FILE)

    saved = published_network(path, weights)
    if saved is None:
        raise CheckpointError(
            what=f"the file does not say what network its {len(weights)} tensors belong to",
            where=str(path),
            expected="weights saved by this project, or a published VRT network, 001 to 009",
            do="give the option file of the training: --opt FILE",
        )
    return saved


def _options_in(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return what one of our files says of its network: a table with the keys of DESCRIPTION.

    content: all that is in the file. Returns None if the file was not written by this program.
    """
    # A file of ours has one of these forms, or both:
    #
    #     {"network": {"scale": 1, "netG": {...}, "spike_channels": 9, ...}}
    #     {"options": {"scale": 1, "netG": {...}, "datasets": {"train": {"spike": {...}, ...}}}}
    #
    # The second form is an option file. Files of earlier versions have only this form, and full
    # checkpoints have both. If a file has both, the first form is used.
    description = content.get("network", content.get("options"))
    if not isinstance(description, dict):
        return None
    if isinstance(description.get("datasets"), dict):  # the second form
        description = _description_of_option_file(description)
    return description if _is_description(description) else None


def _description_of_option_file(options: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a network in the content of an option file. Keys may be missing.

    In an option file, the description of the spikes is in the section of a dataset: of the training
    data, or if there are none, of the test data.
    """
    datasets = options["datasets"]
    section = datasets.get("train") or datasets.get("test")
    if not isinstance(section, dict):
        section = {}
    values = {
        **options,
        "spike_channels": section.get("spike_channels") or 0,  # 0 if it is null or missing
        "spike": section.get("spike"),
        "spike_data": section.get("spike_data"),
    }
    return {key: values[key] for key in DESCRIPTION if key in values}


def _is_description(options: dict[str, Any]) -> bool:
    """Return whether this program wrote the options in a weights file, and not another program.

    If so, the options have the keys of DESCRIPTION and values of the right types
    (test_what_another_program_says_of_its_network_is_not_taken_for_ours).
    """
    for key in options:
        if key not in DESCRIPTION:
            return False
    for key in DESCRIPTION:
        if key != "spike_data" and key not in options:  # older files lack "spike_data"
            return False
    for key in ("scale", "spike_channels"):
        if type(options[key]) is not int:  # isinstance would accept True and False
            return False
    for section in (options["spike"], options.get("spike_data")):
        if section is not None and not isinstance(section, dict):
            return False
    return isinstance(options["netG"], dict)


def _with_option_file(
    path: Path, weights: dict[str, Tensor], in_file: dict[str, Any], description: dict[str, Any]
) -> SavedNetwork:
    """Return weights with the network of an option file. Warns if spikes are read differently.

    in_file: what the weights file says of its network, or {}.
    description: what the option file says of its network (`Options.portable`).

    Raises CheckpointError if the spike channels are not of the kind of the training.
    """
    # Prefer what the weights file says of the training data, because the option file may name other
    # data (test_the_weights_know_their_spikes_better_than_an_option_file_without_its_data).
    spike_data = in_file.get("spike_data") or description["spike_data"]
    fields = {**description, "spike_data": spike_data}  # has the keys of DESCRIPTION
    saved = SavedNetwork(path, weights, **fields, known_from="the option file")
    spike_of_training = in_file.get("spike")
    has_two_sections = spike_of_training is not None and saved.spike is not None
    # `saved.spec` is read last, because it builds the network, and building takes time.
    if has_two_sections and saved.spec.spike_channels > 0:
        _compare_spikes(spike_of_training, saved.spike, path)
    return saved


def _compare_spikes(training: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuse spike channels that are not of the kind of the training. Warn of other differences.

    The kind is the representation and the gamma, e.g. "voxel" and 1.0. Channels of another kind may
    have the same number. In this case, they fit the weights, but the results would be wrong without
    an error.

    training, now: the section `spike` of the weights file `path`, and of the option file.
    """
    first_difference = next(kind_differences(training, now), None)  # the error needs only one
    if first_difference is not None:
        key, training_value, other_value = first_difference
        raise CheckpointError(
            what=f"the spike channels have {key} {other_value}, but the weights were trained with "
            f"{training_value}",
            where=str(path),
            expected=f"the {key} of the training, {training_value}",
            do=f"take other weights, or set spike.{key} to {training_value}",
        )
    # The user may intend other differences in what the channels show, so warn only. The camera and
    # its files are not compared, because another camera and other files are no error.
    changes = []
    for key, change in changed_options.differences(training, now).items():
        if key.startswith("representation.") or key in SHOWN_BY_CHANNELS:
            changes.append(f"{key} {change.then} -> {change.now}")
    if changes and utils_dist.is_main_process():
        logger.warning(
            "the weights were trained with other spike channels than the options give: %s",
            ", ".join(changes),
        )
