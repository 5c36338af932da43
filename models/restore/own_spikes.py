"""Say how the spikes of a user's own clips are read.

`spikes_for_network` begins with the section `spike` of a weights file, because spikes must be read
as in the training. The result is this section with the user's changes, e.g. "spike.rate=0.4"
(request.py). main_test_vrt.py and scripts/show_motion.py hand the section to the reader of the
clips (data/clips/clip_reader.py). A formula has no weights, so for a formula both programs call
only `changed_spikes`.

The user may not change the keys `representation` and `gamma`, because the network was trained with
channels of this kind (`kind_differences` in models/select_network.py compares these keys).

What must stay: each refusal, because a network gives wrong frames for channels of another kind,
without an error. A new key of the section `spike` that describes the files of a training must be
dropped in `spikes_for_network`.

Tests: tests/stories/test_main_test.py, test_reconstruct.py
"""

import logging
from collections.abc import Sequence
from typing import Any

from models.restore.request import NetworkFlags, OwnFiles
from models.saved_network import SavedNetwork
from models.select_network import kind_differences
from utils.errors import OptionError
from utils.options.override import apply_override
from utils.options.sources import Sources

logger = logging.getLogger(__name__)


def spikes_for_network(
    saved: SavedNetwork, files: OwnFiles, network: NetworkFlags
) -> dict[str, Any] | None:
    """Return the spike section of the training, with the user's changes, for a user's clips.

    saved: the network with its weights.
    files: the user's files.
    network: the flags of the network.

    Returns None if no spikes are read.

    Raises OptionError if the network needs an input that is not given, if it does not take an input
    that is given, or if the channels are of another kind (representation or gamma) than in the
    training.
    """
    _refuse_wrong_inputs(saved, files, network)
    if not files.spike:
        return None
    if saved.spike is None:
        logger.warning("these weights take no spikes: --spike is not read")
        return None
    # A section may be only its type, e.g. "dat".
    spike = {"type": saved.spike} if isinstance(saved.spike, str) else dict(saved.spike)
    # Remove `rate` (spikes per plane at full light) and `light` ("linear" or "display"), because
    # the values of the training may be wrong for a user's spikes. Keep `rate` and `light` in two
    # cases:
    #
    #     rate is "match"       the rate is measured in each clip, and the measurement needs `light`
    #     an old weights file   nothing else says what rate and light are, because the file has no
    #                           `spike_data` (the properties of the training spikes)
    if saved.spike_data is not None and spike.get("rate") != "match":
        spike |= {"rate": None, "light": None}  # None means not known
    # Remove the keys that describe the files of the training, because a user's files differ.
    for key in ("calibration", "exposure", "first", "count"):
        spike.pop(key, None)
    changed = changed_spikes(spike, files, source=network.weights or "")
    # The first difference, if there is one, is an error.
    for key, training_value, other_value in kind_differences(spike, changed):
        raise OptionError(
            what=f"spike.{key} is {other_value}, but the network was trained with {training_value}",
            where=f"spike.{key}",
            expected=f"{training_value}, as in the training",
            do=f"leave spike.{key} out",
        )
    return changed


def changed_spikes(
    spike: dict[str, Any],
    files: OwnFiles,
    source: str = "",
    keys_of_method: Sequence[str] = (),
    method_name: str | None = None,
) -> dict[str, Any]:
    """Return a spike section with the changes of the command line.

    E.g. "spike.rate=0.4" sets the key "rate" to 0.4. --spike-size 250 400 sets the keys "h" and
    "w".

    spike: the section to change. Only a copy is changed, so `spike` itself stays as it is.
    files: the user's files, with the changes.
    source: the file that `spike` comes from, or "" if there is no file.
    keys_of_method: keys that the formula of --method sets, so that the user cannot change them.
    method_name: name of this formula, for the error.

    Raises OptionError for a change of one of `keys_of_method`, and for options of other sections.
    """
    # `apply_override` changes a table of sections, {name of a section: its keys}.
    table = {"spike": dict(spike)}
    if files.spike_size is not None:
        height, width = files.spike_size
        table["spike"]["h"] = height
        table["spike"]["w"] = width
    for override in files.overrides:
        # For a user's own clips, only the section `spike` can be changed. (request.py has taken out
        # "method.key=value" before.)
        if not override.startswith("spike."):
            raise OptionError(
                what=f"cannot set {override}",
                where="the command line",
                expected="spike.key=value in the form with --input",
                do="use the flags of --help, or --opt without --input",
            )
        name = override.partition("=")[0]  # "spike.rate=0.5" -> "spike.rate"
        key = name.split(".")[1]  # the key within the section: "rate"
        if key in keys_of_method:
            raise OptionError(
                what=f"{override} has no effect with --method {method_name}",
                where="the command line",
                expected=f"other keys than {', '.join(keys_of_method)}",
                do="set method.key=value",
            )
        # `apply_override` notes in a `Sources` where the option comes from, for later errors. Here
        # nothing reads the note.
        apply_override(table, override, Sources(source))
    return table["spike"]


def _refuse_wrong_inputs(saved: SavedNetwork, files: OwnFiles, network: NetworkFlags) -> None:
    """Raise OptionError if the flags do not give what the network takes."""
    spec = saved.spec
    # A network that interpolates makes new frames between the frames. No sharp frame of --gt shows
    # the same moment as a new frame, and --center-frame-only is meant for frames that are restored.
    if spec.interpolates and (files.gt or network.tiles.center_frame_only):
        raise OptionError(
            what="these weights interpolate new frames",
            where=str(saved.path),
            expected="no --gt, --center-frame-only",
            do="drop the flag",
        )
    # A denoiser with a noise map takes the noise level --sigma. No other network takes it.
    needs_sigma = spec.noise_map
    has_sigma = network.sigma is not None
    if needs_sigma != has_sigma:
        wants = "need" if needs_sigma else "do not take"
        raise OptionError(
            what=f"these weights {wants} a noise level",
            where="--sigma",
            expected="0..255 for 008",  # the published denoiser, 008_VRT_videodenoising_DAVIS
            do="add or drop --sigma",
        )
    if spec.spike_channels and not files.spike:
        raise OptionError(
            what="these weights need spikes",
            where="--spike",
            expected="a .dat of the clip, or a folder of .dat files",
            do="add --spike PATH --spike-size H W, or use weights trained only on RGB",
        )
