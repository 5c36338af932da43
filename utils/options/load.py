"""Read the options of a run: file -> base -> command line -> a frozen, typed tree.

    sources = Sources("train.json")           notes where each key comes from, for messages
    raw = read_with_base(path, sources)       reads the file and its base
    apply_override(raw, "a.b=1", sources)     sets one section.key=value of the command line
    read_options(raw, parts, sources)         checks all keys, adds the defaults: an `Options`

The base is a second file, which the key `base` names. A key of the file replaces the same key of
the base. `raw` is a dict as JSON gives it: key -> value, and a section is a dict within it.

`load_options` takes these four steps. Each step is in a module of its own: sources.py,
option_file.py, override.py, typed.py. A wrong key, type or value is an OptionError that names the
file and line, the dotted key, what was expected and the nearest valid key.

The keys of an option file are the fields of the sections that utils/options/models.py lists,
and the parameters of registered parts.

What must stay: the order of the steps, because a later source replaces the values of an earlier
one.

Tests: tests/parts/utils/test_option.py, tests/parts/utils/test_option_files.py,
tests/parts/utils/test_hostile_options.py
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from utils.errors import OptionError
from utils.options.models import Options
from utils.options.option_file import read_with_base
from utils.options.override import apply_override
from utils.options.sources import Sources
from utils.options.typed import Parts, read_options


def load_options(
    path: str | Path,
    overrides: Sequence[str],
    parts: Parts,
    check: Sequence[Callable[[Options], object]] = (),
) -> Options:
    """Return the options of a file, completed with every default.

    The two main programs and several scripts call this. Raises OptionError with file and line.

    path: the option file
    overrides: "section.key=value" of the command line. The value is read as JSON, or else as text
    parts: the registries of "netG" (networks), "datasets" and "train" (losses)
    check: additional checks, e.g. that the folders of the clips exist. A check raises OptionError
        with the dotted key in `where`, e.g. "train.epochs". This function replaces the key by its
        file and line, e.g. "a.json, line 3", because file and line help the user more
    """
    # The file replaces values of its base, and an override replaces values of the file.
    sources = Sources(str(path))
    raw = read_with_base(Path(path), sources)
    for override in overrides:
        apply_override(raw, override, sources)
    try:
        opt = read_options(raw, parts, sources)
        for function in check:
            function(opt)
    except OptionError as e:
        raise OptionError(e.what, sources.place(e.where), e.expected, e.do) from e
    return opt
