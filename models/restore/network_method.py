"""Restore with a network: the method of a test, and the tiles that its options and flags ask for.

    network_for_test_set     the network with tiles for the clips of an option file
    network_for_own_clips    the network with tiles for a user's clips

main_test_vrt.py passes weights that `read_saved` has read (models/portable.py), and the flags of
the network (request.py). The result is a `NetworkMethod`, which is a `Method` of utils/contract.py.
run_job.py asks the `NetworkMethod` for a `Restorer` (tiles/restorer.py), which restores the clips.

What must stay: the keys of `NetworkMethod.settings`, because an interrupted test is continued only
if its settings are equal (test_results_of_other_settings_are_not_taken_over). Free to change: the
tiles for a user's clips (`network_for_own_clips`). With other tiles, the results differ from the
results of former versions.

Tests: tests/stories/test_main_test.py, test_protocols.py, tests/parts/models/test_tiling.py
"""

import hashlib
import json
from typing import Any

import torch

from models.released_networks import RELEASED_TILES
from models.restore.request import NetworkFlags, TileFlags
from models.restore.tiles.plan import WHOLE, Tiling
from models.restore.tiles.restorer import Restorer
from models.saved_network import SavedNetwork
from models.vrt.forms import log_device
from utils import device as devices
from utils import utils_dist
from utils.errors import OptionError
from utils.files import sha256_of
from utils.options.loader_options import LoaderOptions
from utils.options.section import read_section
from utils.options.val_options import ValOptions

# The dtype of torch's autocast for each value of --dtype. If the dtype is None, autocast is not
# used. flags.py repeats the values (DTYPES), so a new value needs an entry in both files.
DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The fields of a SavedNetwork that say how the network is built and how spikes are read.
NETWORK_FIELDS = ("netG", "scale", "spike_channels", "spike", "spike_data")


class NetworkMethod:
    """A method (utils.contract.Method) that restores frames with a network, in tiles.

    saved: the network and its weights.
    tiling: how clips are cut into tiles.
    dtype: key of DTYPES.
    sigma: noise level 0..255 for a non-blind denoiser (a denoiser that is told the noise level), or
        None for any other network.
    """

    is_grey = False  # a network restores frames in colour, so all metrics can score them

    def __init__(
        self, saved: SavedNetwork, tiling: Tiling, dtype: str, sigma: float | None
    ) -> None:
        self.saved = saved
        self.tiling = tiling
        self.dtype = dtype
        self.sigma = sigma
        # The number of sharp frames that the network makes of each blurry frame, usually 1. Each
        # sharp frame shows one instant of the exposure.
        self.instants = saved.spec.out_instants
        self.center_frame_only = tiling.center_frame_only
        # Whether a clip may be cut, so that several ranks each restore some of its frames. In three
        # cases this saves no time:
        #
        #     a tile is the whole clip    each rank would compute the whole clip
        #     flip_seq is true            each rank would compute the clip and the reversed clip
        #     center_frame_only is true   the clip has only one frame to restore
        is_tile_whole_clip = tiling.num_frame_testing == WHOLE
        needs_whole_clip = is_tile_whole_clip or tiling.flip_seq
        self.can_cut = not needs_whole_clip and not tiling.center_frame_only

    def settings(self) -> dict[str, Any]:
        """Return everything that the restored frames depend on, for run.json.

        A test continues an earlier test only if the settings of both are equal. If you add a key,
        tell `refuse_another_test` (earlier_results.py) the value that older versions used, because
        their run.json lacks the key.
        """
        # A digest of how the network is built. The digest of the weights is not enough, because an
        # option file may describe another network for the same weights.
        values = [getattr(self.saved, field) for field in NETWORK_FIELDS]
        text = json.dumps(values, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        tile = self.tiling.describe()
        if self.tiling.may_halve:
            tile += ", halved where memory is short"
        return {
            "weights": sha256_of(self.saved.path),
            "network": digest[:12],
            "tile": tile,
            "dtype": self.dtype,
            "sigma": self.sigma,
        }

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the protocol of a test."""
        # `known_from` says where the description of the network comes from, e.g. "the weights file"
        # or "the option file".
        path = self.saved.path
        weights = f"{path} (sha256 {sha256_of(path)[:12]}), network from {self.saved.known_from}"
        words = {"weights": weights, "dtype": self.dtype}
        if self.sigma is not None:
            words["noise level"] = f"{self.sigma:g} of 255"
        if self.center_frame_only:
            words["frames"] = "the middle one"
        return words

    def restorer(self, device: torch.device) -> Restorer:
        """Return the object that restores frames on a device."""
        log_device(device)  # e.g. which kernels the device uses
        return Restorer(
            self.saved.build(),
            self.tiling,
            device,
            dtype=DTYPES[self.dtype],
            noise_sigma=self.sigma,
        )


def network_for_test_set(
    saved: SavedNetwork, flags: NetworkFlags, val: ValOptions, section: LoaderOptions
) -> NetworkMethod:
    """Return the network with the tiles of the section `val`, changed by the command line.

    flags: the flags of the network.
    val: the section `val` of the option file.
    section: the section datasets.test.
    """
    tile_options = val.plain()  # a dict with the keys of the section `val`
    # `getattr`, because only some kinds of datasets have the keys `pad_sequence` and `sigma`.
    # `pad_sequence` means the same as the key `pad_seq` of `val`: repeat the last frame. One of the
    # two keys is enough.
    if getattr(section, "pad_sequence", False):
        tile_options["pad_seq"] = True
    if flags.tiles.tile == "auto":
        tile_options |= {"num_frame_testing": "auto", "size_patch_testing": "auto"}
    # `sigma` is the noise level, which only a non-blind denoiser takes.
    sigma = getattr(section, "sigma", None) if saved.spec.noise_map else None
    # For a test set, `blend` and `may_halve` keep their defaults (`_tiling`), so `changes` is
    # empty.
    tiling = _tiling(saved, tile_options, flags.tiles, changes={})
    return NetworkMethod(saved, tiling, flags.dtype, sigma)


def network_for_own_clips(saved: SavedNetwork, flags: NetworkFlags) -> NetworkMethod:
    """Return the network with tiles for a user's clips, changed by the command line.

    Published weights get the tiles of their authors. With other weights,
    a tile is the whole frame on a GPU. On a CPU, it has the default side of the section `val`.
    """
    # The value of --tile: (frames, side), "auto", or None if the flag is not given. If it is
    # (frames, side), it replaces the sizes that are chosen here (`_options_of_flags`).
    tile = flags.tiles.tile
    # The defaults of the section `val`. In its keys, "num_frame" is the length of a tile in frames,
    # and "size_patch" is its side in pixels.
    tile_options = ValOptions().plain()
    if saved.released and tile is None:
        # `released` is the name of the published weights, e.g. "006_VRT_videodeblurring_GoPro". The
        # name begins with the number of the weights, e.g. "006". The overlap of the authors, 2
        # frames and 20 pixels, is the default of `ValOptions`.
        number = saved.released[:3]
        frames, side = RELEASED_TILES[number]
        tile_options |= {"num_frame_testing": frames, "size_patch_testing": side}
    elif not devices.swaps_when_full(utils_dist.get_device()):
        # On a GPU, begin with the whole frame. If the memory runs out, the tiles are halved. A CPU
        # would swap instead of raising an error, so on a CPU the default side stays.
        tile_options["size_patch_testing"] = WHOLE
    # Tiles that the user chose are not halved when the memory is full.
    may_halve = tile is None or tile == "auto"
    # "smooth" leaves no visible seams between the tiles. The default "kair" is for test sets,
    # because the published scores were made with it.
    changes = {"blend": "smooth", "may_halve": may_halve}
    tiling = _tiling(saved, tile_options, flags.tiles, changes)
    return NetworkMethod(saved, tiling, flags.dtype, flags.sigma)


def _tiling(
    saved: SavedNetwork,
    tile_options: dict[str, Any],
    flags: TileFlags,
    changes: dict[str, Any],
) -> Tiling:
    """Return the tiles that follow from options and flags.

    A field of `Tiling` gets its value from the first of these places that has one:

        1. `flags`
        2. `changes`
        3. `tile_options`
        4. the default of the field

    At the end, `Tiling.of` changes some values:

    * A size "auto" becomes a number. If a size is "auto", the default of `blend` is "smooth" in
      place of "kair", and the default of `may_halve` is True in place of False.
    * A network that interpolates new frames always gets tiles of the number of frames that it takes
      at once.

    tile_options: keys and values of the section `val`.
    flags: the flags of the command line.
    changes: the fields `blend` and `may_halve` of `Tiling`, or {}. The section `val` lacks both.
    """
    val = read_section(ValOptions, tile_options | _options_of_flags(flags), "val")
    if flags.blend:
        changes = changes | {"blend": flags.blend}
    # A network that interpolates gets the frames around each gap, one gap after the other. E.g. of
    # the clip 0 1 2 3 4, it gets 0 1 2 3 for the gap after frame 1, then 1 2 3 4 for the gap after
    # frame 2. These frames are one sequence, 0 1 2 3 1 2 3 4. --flip-seq would reverse the sequence
    # and not the clip, and --pad-seq would repeat the last frame of the sequence.
    if saved.spec.interpolates and (val.flip_seq or val.pad_seq):
        raise OptionError(
            what="these weights interpolate new frames",
            where="--flip-seq, --pad-seq",
            expected="neither --flip-seq nor --pad-seq",
            do="drop these flags",
        )
    return Tiling.of(val, saved.spec, **changes)


def _options_of_flags(flags: TileFlags) -> dict[str, Any]:
    """Return the options of the section `val` that flags of the command line replace.

    E.g. `--tile 12,256 --flip-seq` -> {"num_frame_testing": 12, "size_patch_testing": 256,
    "flip_seq": True}. `--tile auto` is left to the callers of `_tiling`.
    """
    options: dict[str, Any] = {}
    if isinstance(flags.tile, tuple):
        frames, side = flags.tile
        options["num_frame_testing"] = frames
        options["size_patch_testing"] = side
    if flags.overlap is not None:
        frames, pixels = flags.overlap
        options["num_frame_overlapping"] = frames
        options["size_patch_overlapping"] = pixels
    if flags.batch_tiles is not None:
        options["batch_tiles"] = flags.batch_tiles
    # If one of these flags is not given, its option in the section `val` stays.
    for key in ("flip_seq", "pad_seq", "center_frame_only"):
        if getattr(flags, key):
            options[key] = True
    return options


def refuse_other_frames(saved: SavedNetwork) -> None:
    """Raise OptionError if the network cannot make the frames with which the joint solution begins.

    The joint solution (--method joint --weights FILE) solves equations of the blurry frames and
    their spikes. The solution begins with the frames of the network. So the network must return one
    sharp frame in colour for each blurry frame, in the same size.
    """
    spec = saved.spec
    # What may be wrong, in the words of the error -> whether it is wrong with these weights.
    is_wrong = {
        "take no spikes": not spec.spike_channels,
        "enlarge the frames": spec.scale != 1,
        "make frames between the frames": spec.interpolates,
        "restore several instants of each exposure": spec.out_instants != 1,
        "restore grey frames": spec.image_channels != 3,
    }
    faults = [words for words in is_wrong if is_wrong[words]]
    if faults:
        raise OptionError(
            what=f"--method joint cannot begin with weights that {', and '.join(faults)}",
            where=str(saved.path),
            expected="weights that restore each blurry frame from RGB and spikes, in its size",
            do="give other weights, such as weights/operator.pth, or leave out --weights",
        )
