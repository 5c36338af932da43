"""Find where the docstring of a part explains its keys, e.g. "height, width: in pixels".

A key without a description of its own is explained there.

What must stay: docstrings all over the project have this form, so another form here would leave
keys unexplained. tests/parts/utils/test_option_files.py compares the written documents.
"""

import inspect
import re

from utils.options.registry import Registry
from utils.options.section import Section

# Where a docstring begins to explain keys, at the start of a sentence: "height, width: ...".
_SENTENCE_BEGIN = r"(?:^|(?<=[.;)] ))"  # the start of the text, or a place after ". ", "; " or ") "
_NAMES = r"\w+(?:, \w+)*"  # words with commas between them, e.g. "height, width"
# E.g. it finds "height, width: " in "A plane. height, width: in pixels."
KEYS_IN_TEXT = re.compile(rf"{_SENTENCE_BEGIN}(?P<names>{_NAMES}): ")


def marks_of(text: str, model: type[Section]) -> list[re.Match[str]]:
    """Return the places where a docstring explains keys of the model, e.g. "height, width: "."""
    marks = []
    for mark in KEYS_IN_TEXT.finditer(text):
        names = mark["names"].split(", ")
        if all(name in model.model_fields for name in names):
            marks.append(mark)
    return marks


def notes_on_keys(text: str, model: type[Section]) -> dict[str, str]:
    """Return key -> what a docstring says of it.

    E.g. "height, width: of a plane. rate: at full light." -> {"height": "of a plane.", "width":
    "of a plane.", "rate": "at full light."}
    """
    text = " ".join(text.split())
    marks = marks_of(text, model)
    notes: dict[str, str] = {}
    for mark_index, mark in enumerate(marks):
        # The note goes on up to the next mark, or to the end of the text.
        is_last = mark_index + 1 == len(marks)
        end = len(text) if is_last else marks[mark_index + 1].start()
        note = text[mark.end() : end].strip(" ;")
        for key in mark["names"].split(", "):
            # A docstring may explain a key at two places. Both notes count.
            earlier_note = notes.get(key, "")
            notes[key] = f"{earlier_note} {note}".strip()
    return notes


def to_read(registry: Registry, name: str) -> str:
    """Return the docstring of a part for the page: first paragraph, and paragraphs about keys.

    The other paragraphs are for readers of the code.
    """
    model = registry.model(name)
    first, *others = (inspect.getdoc(model.constructor) or "").split("\n\n")
    chosen = [first]
    for text in others:
        marks = marks_of(text, model)
        if marks and marks[0].start() == 0:  # it begins with keys
            chosen.append(text)
    return "\n\n".join(chosen)
