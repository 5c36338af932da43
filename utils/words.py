"""Words of messages: a count with its noun, and its verb.

Free to add: what several messages say in the same way. Tests: tests/parts/utils/test_words.py.
"""


def counted(count: int, noun: str, form: str = "") -> str:
    """Return a count and its noun, e.g. "1 clip", "3 clips" or "0 clips".

    noun: in the singular; its plural must end in "s", as of "clip" and "pixel".
    form: how the count is written, as in an f-string. With "," 12000 is "12,000".
    """
    plural = "" if count == 1 else "s"
    return f"{count:{form}} {noun}{plural}"


def are(count: int) -> str:
    """Return the verb for a count of things: "is" for 1, else "are"."""
    return "is" if count == 1 else "are"
