"""Join several errors of the data into one error, so that a user sees all of them at once.

list_source (source.py) joins the errors of several roots. manifest.py joins the problems of all
roots.

What must stay: no text is lost. Free to change: how the texts are put together.

Tests: tests/parts/data/test_manifest.py
"""

from collections.abc import Iterable, Sequence

from utils.errors import DataError


def joined_errors(errors: Sequence[DataError], layout: str = "") -> DataError:
    """Return one error for several errors. A text that several errors have appears once.

    layout: lines that show the folders of a data set. They are added to what is expected.
    """
    return DataError(
        what=joined_texts(e.what for e in errors),
        where=joined_texts(e.where for e in errors),
        expected=joined_texts(e.expected for e in errors) + layout,
        do=joined_texts(e.do for e in errors),
    )


def joined_texts(texts: Iterable[str]) -> str:
    """Join the first lines of texts into one line, and put the other lines of the texts below it.

    First lines are split at semicolons into pieces. Equal pieces appear once, and equal texts below
    the first lines appear once. E.g. "a; b" and "b; c\\nd" -> "a; b; c\\nd".
    """
    # Dicts are used as ordered sets: the keys are the pieces, and the values mean nothing.
    pieces: dict[str, None] = {}
    below: dict[str, None] = {}
    for text in texts:
        first_line, _, rest = text.partition("\n")
        for piece in first_line.split("; "):
            pieces[piece] = None
        if rest:
            below[f"\n{rest}"] = None
    return "; ".join(pieces) + "".join(below)
