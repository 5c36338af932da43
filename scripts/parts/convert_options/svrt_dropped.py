"""Leave out options of S-VRT that have no counterpart here.

These are options that change no result, and the options that --drop names.

What must stay: secrets are never copied
(test_secrets_of_services_reach_neither_the_new_file_nor_the_output), and each key that is left out
is reported (test_each_dropped_key_of_s_vrt_is_named).
Free to change: DROPPED_UNASKED may get keys that change no result.
"""

import re

from scripts.parts.convert_options.dotted_keys import prefixes
from scripts.parts.convert_options.svrt_conversion import Conversion
from utils.errors import OptionError
from utils.secrets import KEY

# Keys of S-VRT that are always left out, also without --drop: pattern -> the reason, for the
# report. A pattern must match the whole key of an option or of a section. The first two patterns:
#
#     (.*\.)?(use_)?(swanlab|logfire)(_.*)?    `swanlab`, `use_swanlab`, `train.logfire_token`
#     .*KEY.pattern                            `logging.wandb_api_key`: KEY matches "_api_key", the
#                                              name of a secret, and .* matches what is before it
#
# Add only keys that change no result. A key that changes a result must be a problem, so that the
# user decides.
DROPPED_UNASKED = {
    r"(?i)(.*\.)?(use_)?(swanlab|logfire)(_.*)?": "reports go to TensorBoard and Weights & "
    "Biases; nothing is copied",
    f".*{KEY.pattern}": "secrets are never copied; give WANDB_API_KEY in the environment",
    r"datasets\.\w+\.keep_legacy_l": "it only kept a second copy of the input in the batch",
    r"datasets\.\w+\.scale": "it follows from the sizes of the frames",
    r"datasets\.test\.dataloader_(shuffle|num_workers|batch_size)": "clips are tested one by "
    "one, without a loader",
}


def drop_without_counterpart(conversion: Conversion) -> None:
    """Leave out the options and sections that DROPPED_UNASKED names, and report each of them."""
    for key in list(conversion.values):  # a copy, because `drop` removes keys
        # If a pattern matches a section around the key, `drop` removes the whole section. For the
        # other keys of this section, which come later in the loop, `drop` does nothing.
        for section_or_key in prefixes(key):
            why = _why_dropped(section_or_key)
            if why is not None:
                conversion.drop(section_or_key, why)


def _why_dropped(section_or_key: str) -> str | None:
    """Return why a section or key is left out (DROPPED_UNASKED). Returns None if it stays."""
    for pattern, why in DROPPED_UNASKED.items():
        if re.fullmatch(pattern, section_or_key):
            return why
    return None


def drop_as_asked(conversion: Conversion, keys: list[str], file: str) -> None:
    """Leave out the keys of --drop. Raises OptionError if the file does not have such a key."""
    for key in keys:
        # A key that `drop_without_counterpart` has removed is no error.
        if not conversion.has(key) and key not in conversion.dropped:
            raise OptionError(
                what=f"--drop {key}: no such key",
                where=file,
                expected="dotted keys of the file",
                do="correct --drop",
            )
        conversion.drop(key, "as asked with --drop")
