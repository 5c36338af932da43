"""Make the page docs/options.md, in English or translated.

The pages are filled from the template options.md.jinja beside this file. docs/zh/options.json has
the translations: English text -> Chinese text, for each paragraph of a docstring and each
description of a key.

What must stay: the headings, because other pages link to them. If a translation is missing, the
program must end (test_a_key_without_translation_is_named). Free to change: the form of the page.
"""

import inspect
import json
import sys
from collections.abc import Callable

import jinja2
from pydantic.fields import FieldInfo

from lab.options_doc.docstrings import text_for_users
from lab.options_doc.parts import MARK, PARTS
from lab.tools import ROOT
from utils.options.loader_options import LoaderOptions
from utils.options.models import Options
from utils.options.registry import Registry
from utils.options.section import Section
from utils.options.type_words import describe

CHINESE = json.loads((ROOT / "docs/zh/options.json").read_text(encoding="utf-8"))


def make_page(translations: dict[str, str] | None = None) -> str:
    """Return the page docs/options.md, in English or translated.

    Ends the program if a translation is missing. It also ends the program if a translation belongs
    to no text of the page.

    translations: English paragraph in one line -> its translation. None makes the English page.
    """
    # Each paragraph of the page -> its place on the page, for the message. The template calls
    # `translate`, and `translate` adds an entry for each paragraph.
    texts: dict[str, str] = {}

    def translate(text: str, where: str) -> str:
        """Return a text translated, paragraph by paragraph. Adds each paragraph to `texts`.

        The template calls this as the filter `say` for each text of the page. On the English page
        the text stays as it is.
        """
        result = []
        for paragraph in text.strip("\n").split("\n\n"):
            in_one_line = " ".join(paragraph.split())
            texts[in_one_line] = where
            if translations is None:
                result.append(paragraph)
            else:
                # A missing translation is reported below.
                result.append(translations.get(in_one_line, paragraph))
        return "\n\n".join(result)

    page = _filled_template(translate, is_english=translations is None)
    if translations is not None:
        _refuse_missing_or_unused(translations, texts)
    return page


def _filled_template(translate: Callable[[str, str], str], *, is_english: bool) -> str:
    """Fill the template options.md.jinja, and return its text.

    translate: takes a text and its place on the page, and returns the text in the language of the
        page.
    """
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "lab/options_doc"),
        undefined=jinja2.StrictUndefined,  # an unknown name in the template is an error
        extensions=["jinja2.ext.do"],  # the template calls functions without using their result
        trim_blocks=True,  # a line with only a command of the template leaves no empty line
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters["say"] = translate
    if is_english:
        link_to_other_language = "[简体中文](zh/options.md)"
    else:
        link_to_other_language = "[English](../options.md)"
    # The names that the template uses: first values, then functions that it calls.
    return pages.get_template("options.md.jinja").render(
        link_to_other_language=link_to_other_language,
        mark=MARK,  # "Written by lab/make_options_doc.py; ..."
        options=Options,  # the whole option file
        loader=LoaderOptions,  # the keys of the loader, which every dataset has
        parts=PARTS,  # where an option file names a part -> the registry of such parts
        describe=describe,  # field -> its type in words
        dumps=json.dumps,  # default value -> JSON
        string=str,  # default value that JSON cannot write, e.g. a path -> text
        key_rows=key_rows,  # registry -> keys with a description
        own_keys=own_keys,  # registry, name of a part -> keys that the page lists with this part
        text_for_users=text_for_users,  # registry, name of a part -> text of its docstring
        is_section=_is_section,  # type of a field -> whether it is a section
    )


def _refuse_missing_or_unused(translations: dict[str, str], texts: dict[str, str]) -> None:
    """End the program if a text has no translation, or if a translation belongs to no text.

    The words of the message must stay, because test_a_key_without_translation_is_named and the next
    test in the same file compare the message.

    texts: each paragraph of the page -> where it is.
    """
    faults = []
    for text, where in texts.items():
        if text not in translations:
            faults.append(f"no translation for {where}: {text}")
    for text in translations:
        if text not in texts:
            faults.append(f"nothing has this text any more: {text}")
    if faults:
        sys.exit("\n".join(["correct docs/zh/options.json:", *faults]))


def _is_section(kind: object) -> bool:
    """Return whether the type of a field is a section of options, with keys of its own.

    A section without fields does not count, because the page would list no key of it.
    """
    return inspect.isclass(kind) and issubclass(kind, Section) and bool(kind.model_fields)


def key_rows(registry: Registry) -> list[tuple[str, FieldInfo]]:
    """Return the keys with a description of all parts of a registry: (key, field).

    Equal descriptions of a key give one row. A description is left out if a longer description of
    the same key begins with it. E.g. three networks have the key `width`:

        "Width."               left out, because "Width in pixels." begins with it
        "Width in pixels."     a row
        "Width in pixels."     no second row
    """
    rows: dict[tuple[str, str], FieldInfo] = {}  # (key, description) -> field
    for name in registry.names():
        fields = registry.model(name).model_fields
        for key in registry.keys(name):
            text = fields[key].description
            if text and (key, text) not in rows:
                rows[key, text] = fields[key]

    chosen = []
    for (key, text), field in rows.items():
        # Leave the text out if another text of the key continues it.
        texts_of_key = [other_text for other_key, other_text in rows if other_key == key]
        if not any(_continues(other_text, text) for other_text in texts_of_key):
            chosen.append((key, field))
    return chosen


def _continues(longer: str, text: str) -> bool:
    """Return whether `longer` begins with `text` (without the "." at its end) and goes on."""
    return longer != text and longer.startswith(text.rstrip("."))


def own_keys(registry: Registry, name: str) -> list[str]:
    """Return the keys that the page lists with a part, because they are special to the part.

    These are the keys without a description, and the keys that fewer than half of the parts of the
    registry have, e.g. 3 of 7 networks.
    """
    keys_of_all = []
    for other in registry.names():
        keys_of_all += registry.keys(other)
    described = {key for key, _ in key_rows(registry)}
    special_keys = []
    for key in registry.keys(name):
        is_rare = 2 * keys_of_all.count(key) < len(registry.names())
        if key not in described or is_rare:
            special_keys.append(key)
    return special_keys
