"""Find the line of each key of an option file, so that a message can name it.

json and json5 read the values, but do not tell the line of a key. So `key_lines` goes through the
text once more. `key_lines` also refuses a text with too many nested brackets, or with too long a
key, before json or json5 read the text.

What must stay: the time is in proportion to the length of the text, because hostile files of a
megabyte are read, too (tests/parts/utils/test_hostile_options.py goes beyond each limit).

Tests: tests/parts/utils/test_hostile_options.py, tests/parts/utils/test_option_files.py.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from utils.errors import OptionError

# The tokens of JSON5, as far as needed to find the keys. The named group that matches says the kind
# of the token.
#
# The closing mark of a comment or of a text is optional: (?: \*/ )?, "? and '?. A comment without
# its mark ends at the end of the file, and a text without its mark at the end of its line. If the
# closing mark were required, a file of many opening marks would be searched to its end for each
# opening mark.
TOKEN = re.compile(
    r"""
    (?P<skip> // [^\n]*                                # a comment up to the end of the line
        | /\* (?: [^*] | \* (?!/) )* (?: \*/ )?         # /* a comment */: any character but a star,
                                                       # or a star that no slash follows
    )
    | (?P<text> " (?: \\. | [^"\\\n] )* "?             # "a text", which may have escapes: \"
        | ' (?: \\. | [^'\\\n] )* '?                   # 'a text'
    )
    | (?P<word> [\w$.+\-]+ )                           # a name without quotes, or a number
    | (?P<mark> [{}\[\],:] )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass
class _Bracket:
    """An object or a list that is open at some point of an option file."""

    name: str  # dotted key of the object or list, e.g. "logging.writers". "" for the whole file
    is_list: bool
    key: str = ""  # only for an object: dotted key of the entry that is read now
    index: int = 0  # only for a list: index of the item that is read now

    def name_of_value(self) -> str:
        """Return the dotted key of the value that is read now.

        Each item of a list has a name of its own, e.g. "logging.writers.2". Without the number, two
        objects in one list would seem to give the same key twice.
        """
        if self.is_list:
            return _dotted(self.name, str(self.index))
        return self.key


def _dotted(section: str, key: str) -> str:
    """Return the dotted key of a key within a section, e.g. "train", "amp" -> "train.amp"."""
    # A key outside of any section has the section "". So remove the dot of e.g. ".train".
    return f"{section}.{key}".lstrip(".")


def key_lines(text: str, where: str) -> list[tuple[str, int]]:
    """Return (dotted key, line) of every key of an option file, in the order of the file.

    A key that is given twice is in the list twice. The name of a key within a list has the index of
    the item. For example, these two lines

        {"logging": {"progress": "bar",
                     "writers": [{"type": "table"}]}}

    give ("logging", 1), ("logging.progress", 1), ("logging.writers", 2) and
    ("logging.writers.0.type", 2). A colon makes the last word a key, a comma begins the next item
    of a list, and brackets open and close objects and lists. E.g. the last of the four keys:

        token      what happens
        "writers"
        :          the key is "logging.writers"
        [          opens the list "logging.writers", which begins with item 0
        {          opens the object "logging.writers.0"
        "type"
        :          the key is "logging.writers.0.type"

    For a text that is not valid JSON the result is meaningless, but option_file.py refuses this
    text afterwards.

    Raises OptionError if too many brackets are open at once, or if a key is too long.

    where: the file, for the message
    """
    lines_of_keys: list[tuple[str, int]] = []
    # The open brackets, the innermost last. The first item stands for the whole file, so that each
    # bracket of the text has an item before it. The first item gives the name "" to the outermost
    # bracket.
    whole_file = _Bracket(name="", is_list=False)
    open_brackets = [whole_file]
    # The last text, word or number, and its line. `word` is a key if a colon follows.
    word = ""
    word_line = 1
    for token, line in _tokens_with_lines(text):
        bracket = open_brackets[-1]  # the innermost open bracket
        # A token is a word, a text or a mark. Comments are tokens too, and match no case below.
        mark = token["mark"]  # None if the token is no mark
        if token["word"]:
            word = token["word"]
            word_line = line
        elif token["text"]:
            word = token["text"][1:-1]  # without the quotes
            word_line = line
        elif mark == ":":
            bracket.key = _dotted(bracket.name, word)
            _refuse_long_key(bracket.key, word_line, where)
            lines_of_keys.append((bracket.key, word_line))
        elif mark == "," and bracket.is_list:
            bracket.index += 1
        elif mark in ("{", "["):
            _refuse_depth(len(open_brackets), line, where)
            # The new object or list is the value that is read now in the bracket around it.
            name = bracket.name_of_value()
            open_brackets.append(_Bracket(name, is_list=mark == "["))
        elif mark in ("}", "]"):
            # A text that closes more brackets than it opens is not JSON: option_file.py refuses it.
            if bracket is not whole_file:
                open_brackets.pop()
    return lines_of_keys


def _tokens_with_lines(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield each token of a text, and the line on which it begins, from 1."""
    line = 1
    counted_up_to = 0  # position in the text
    for token in TOKEN.finditer(text):
        # Count only the line ends since the last token, so that the text is read once in all.
        line += text.count("\n", counted_up_to, token.start())
        counted_up_to = token.start()
        yield token, line


# Largest number of brackets within one another, chosen by hand. Files of this project need 6. The
# limit must be far below 1000: json and json5 call themselves for each bracket, and Python allows
# some 1000 calls within one another.
DEEPEST = 64


def _refuse_depth(depth: int, line: int, where: str) -> None:
    """Raise OptionError if more than DEEPEST brackets are open on this line.

    depth: number of brackets within one another, including the new bracket
    where: the file, for the message
    """
    if depth > DEEPEST:
        raise OptionError(
            what="the option file is no valid JSON for this program: more than "
            f"{DEEPEST} brackets within one another on line {line}",
            where=where,
            expected="fewer brackets within one another",
            do="correct the file there or just above",
        )


# Largest number of characters of a dotted key, such as "netG.fusion.type". The limit is chosen by
# hand. Our longest key has some 50 characters. The limit bounds the memory, because each dotted key
# holds the names of the sections around it. E.g. 20,000 keys in a section whose name has 500,000
# characters would take 10 GB.
MOST_KEY_CHARACTERS = 500


def _refuse_long_key(key: str, line: int, where: str) -> None:
    """Raise OptionError if a dotted key has more than MOST_KEY_CHARACTERS characters.

    where: the file, for the message
    """
    if len(key) > MOST_KEY_CHARACTERS:
        raise OptionError(
            what=f"a key has more than {MOST_KEY_CHARACTERS} characters: {key[:40]}...",
            where=f"{where}, line {line}",
            expected="a key, with the names of its sections, as in docs/options.md",
            do="correct the key",
        )
