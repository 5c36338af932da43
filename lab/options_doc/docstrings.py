"""Find where the docstring of a part explains its keys, e.g. "height, width: in pixels".

The document of the options shows this text for a key that has no description of its own.

    key list        the names before the colon, e.g. "height, width: "
    note            the text after the colon, up to the next key list, e.g. "in pixels"

What must stay: the form of a key list, because docstrings in the whole project have this form. With
another form, the document would not explain the keys of these docstrings.
tests/parts/utils/test_option_files.py compares the written documents.
"""

import inspect
import re

from utils.options.registry import Registry
from utils.options.section import Section

# Matches a list of words before a colon, e.g. "height, width: " in "A plane. height, width: in
# pixels." With re.VERBOSE a space of the pattern is ignored, so a space is written as [ ].
WORDS_BEFORE_COLON = re.compile(
    r"""
    (?: ^ | (?<= [.;)] [ ] ) )       # at the start of the text, or after ". ", "; " or ") "
    (?P<words> \w+ (?: ,[ ] \w+ )* ) # words with commas between them, e.g. "height, width"
    :[ ]
    """,
    re.VERBOSE,
)


def key_lists_in(text: str, model: type[Section]) -> list[re.Match[str]]:
    """Return the lists of keys of the model in a docstring, e.g. the match of "height, width: ".

    Other words before a colon, e.g. "Note: ", are left out.
    """
    key_lists = []
    for match in WORDS_BEFORE_COLON.finditer(text):
        words = match["words"].split(", ")
        if all(word in model.model_fields for word in words):
            key_lists.append(match)
    return key_lists


def notes_on_keys(text: str, model: type[Section]) -> dict[str, str]:
    """Return key -> its note in a docstring.

    E.g. "height, width: of a plane. rate: at full light." -> {"height": "of a plane.", "width":
    "of a plane.", "rate": "at full light."}
    """
    text = " ".join(text.split())
    key_lists = key_lists_in(text, model)
    # A note ends where the next list of keys begins. The last note ends with the text. The example
    # above has 47 characters, and its lists begin at 0 and 27. So its notes end at 27 and 47.
    ends_of_notes = [key_list.start() for key_list in key_lists[1:]] + [len(text)]
    notes: dict[str, str] = {}
    # strict=False: a text without keys has one end, and no key list.
    for key_list, end in zip(key_lists, ends_of_notes, strict=False):
        note = text[key_list.end() : end].strip(" ;")
        for key in key_list["words"].split(", "):
            # A docstring may explain a key at two places. Then join both notes.
            earlier_note = notes.get(key, "")
            notes[key] = f"{earlier_note} {note}".strip()
    return notes


def text_for_users(registry: Registry, name: str) -> str:
    """Return the paragraphs of a part's docstring that the document of the options shows.

    The document shows the first paragraph, and each paragraph that begins with keys. The other
    paragraphs are for people who read the code.
    """
    model = registry.model(name)
    docstring = inspect.getdoc(model.constructor) or ""
    first, *others = docstring.split("\n\n")
    chosen = [first]
    for paragraph in others:
        key_lists = key_lists_in(paragraph, model)
        if key_lists and key_lists[0].start() == 0:  # the paragraph begins with keys
            chosen.append(paragraph)
    return "\n\n".join(chosen)
