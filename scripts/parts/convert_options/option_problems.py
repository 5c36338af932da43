"""Name all problems of an option file in one error, and say for each what to add to the command.

What must stay: all problems come in one error, and whoever follows its advice gets a converted file
(test_the_problems_of_a_file_are_named_at_once,
test_a_file_is_converted_after_its_advice_was_followed).
`_way_out` tells kinds of errors apart by the words of utils/options/section.py. Change both files
together.
Free to change: the words, except where tests/parts/scripts/test_convert_options.py quotes them.
"""

from pathlib import Path
from typing import Any

from scripts.parts.convert_options.svrt_conversion import Conversion, Problem
from utils.errors import OptionError
from utils.options.section import UNKNOWN_OPTION
from utils.options.typed import read_options
from utils.words import counted


def refuse_problems(
    conversion: Conversion, values: dict[str, Any], source: Path, parts: Any
) -> None:
    """Raise one OptionError with all problems, so that the user can answer them in one command.

    The problems of the conversion come first. Then come the keys and values that our programs
    refuse.

    values: the sections of the new file.
    parts: PARTS of main_train_vrt.py, the networks, data sets and losses that a file may name:
        {name of a section: registry of its classes}.
    """
    note_refused_options(conversion, values, parts)
    if not conversion.problems:
        return

    count = len(conversion.problems)
    what = f"{counted(count, 'problem')} in the option file, nothing was written:"
    for key, problem in conversion.problems.items():
        what += f"\n    {key}: {problem.what}\n      do: {problem.do}"
    raise OptionError(
        what=what,
        where=str(source),
        expected="keys and values that this program has",
        do="answer all in one command",
    )


def note_refused_options(conversion: Conversion, values: dict[str, Any], parts: Any) -> None:
    """Add to `conversion.problems` each option of the new file that our programs refuse.

    main_train_vrt.py would refuse the same options: unknown keys, wrong values, and options that do
    not fit the network.

    values: the sections of the new file.
    parts: PARTS of main_train_vrt.py, the networks, data sets and losses that a file may name.
    """
    from models.select_network import check_options  # imported here, because it brings torch

    # The weights of SpyNet may be on another machine, so a missing file is no problem here. If the
    # file is missing, check a copy of the options without its path.
    path = conversion.values.get("netG.spynet_path")
    if isinstance(path, str) and not Path(path).is_file():
        network_without_path = {**values["netG"], "spynet_path": None}
        values = {**values, "netG": network_without_path}

    try:
        opt = read_options(values, parts)
        check_options(opt.netG, opt.datasets, opt.val, opt.scale)
    except OptionError as e:
        # An error about several keys holds one error for each key in `found`. In an error about one
        # key, `found` is empty.
        errors = e.found if e.found else (e,)
        for single in errors:
            what = f"{single.what}; expected {single.expected}"
            # If the conversion has already noted a problem of this key, that problem stays,
            # because its text says more.
            if single.where not in conversion.problems:
                conversion.problems[single.where] = Problem(what, do=_way_out(single))


def _way_out(error: OptionError) -> str:
    """Return what to add to the command so that the error about one key goes away.

    A wrong or missing value needs KEY=VALUE. An unknown key needs --drop, or another name.
    """
    # section.py begins the text of the error of an unknown key with UNKNOWN_OPTION.
    if not error.what.startswith(UNKNOWN_OPTION):
        key = error.where.partition("[")[0]  # `netG.depths[3]` is set as a whole
        return f"give {key}=VALUE"
    drop = f"give --drop {error.where}, if it may be left out"
    # If the key is nearly the name of one of our keys, section.py advises exactly "rename it". The
    # message shows `expected`, with the name of the nearest key, before this advice.
    if error.do == "rename it":
        return f"{error.do}, or {drop}"
    return drop
