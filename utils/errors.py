"""Define the errors that a user sees.

An error has four parts (what, where, expected, do), and the exit code with which it ends the
program. For example, with exit code 3:

    DataError: the frames differ in size
      in        trainsets/gopro/clip0
      expected  frames of one size
      do        leave out the others

What must stay: the exit codes, because launchers and users' scripts use them to decide whether to
start a run again. For a new kind of error, add a class with an exit code of the table in
docs/ddp_reference.md.
"""

import re

from utils.secrets import without_secrets

# The address of the weights of VRT and of its flow network SpyNet, from the authors of VRT.
PUBLISHED_ADDRESS = "https://github.com/JingyunLiang/VRT/releases/tag/v0.0"
# A word in the path of a released file or data set -> where it can be downloaded. docs/links.md has
# the papers.
ADDRESSES = {
    "/meta_info_": "https://github.com/cszn/KAIR/tree/master/data/meta_info",
    "/spynet_sintel": PUBLISHED_ADDRESS,
    "_VRT_": PUBLISHED_ADDRESS,
    "/alexnet-owt": "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth",
    "/GOPRO": "https://seungjunnah.github.io/Datasets/gopro",
    "/GoPro": "https://seungjunnah.github.io/Datasets/gopro",
    "/REDS": "https://seungjunnah.github.io/Datasets/reds",
    "/vimeo": "http://toflow.csail.mit.edu/",
    "/DVD": "https://www.cs.ubc.ca/labs/imager/tr/2017/DeepVideoDeblurring/",
    "/DAVIS": "https://davischallenge.org/",
}


def address_of(path: object) -> str:
    """Return what to add to the advice on a missing file: "; download: <address>".

    Returns "" if the path names no released file.
    """
    for word, url in ADDRESSES.items():
        # A word such as "/DAVIS" must begin the name of a file or folder. The "/" is put in front
        # of the path so that "DAVIS/x" is found, too. "_VRT_" has no "/": it may stand anywhere.
        if word in f"/{path}":
            return f"; download: {url}"
    return ""


# Characters that `printable` writes out.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters; \x09 is tab, \x0a line feed
    "\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # separators of lines, and directions of writing
)


def printable(text: str) -> str:
    """Return `text` with control characters written out, such as \\x1b.

    Names of files and keys of options come from other people, and may have control characters. A
    terminal would carry out such characters, e.g. erase a line.
    """
    return CONTROLS.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    """Return a character as an escape, e.g. the character ESC as the four characters \\x1b."""
    return match[0].encode("unicode_escape").decode()


# `SpikeVRTError.__str__` prints the advice after the 12 characters "  do        ". So if an advice
# has several lines, its second line and each later line must begin with 12 blanks.
INDENT_OF_DO = " " * 12


class SpikeVRTError(Exception):
    """An error in four parts: what is wrong, where, what was expected, what to do.

    `where`, `expected` and `do` have defaults, because torch rebuilds the error of a DataLoader
    worker from its message alone. Then the whole message is in `what`.
    """

    exit_code = 1  # the exit code of a program that this error ends

    def __init__(self, what: str, where: str = "", expected: str = "", do: str = "") -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.do = do
        super().__init__(what, where, expected, do)

    def __str__(self) -> str:
        lines = [f"{type(self).__name__}: {self.what}"]
        for name, text in (("in", self.where), ("expected", self.expected), ("do", self.do)):
            if text:
                lines.append(f"  {name:<9} {text}")  # INDENT_OF_DO is 2 + 9 + 1 blanks
        # A part may quote an option, whose value may be a secret.
        return printable(without_secrets("\n".join(lines)))


class OptionError(SpikeVRTError):
    """An option file or a command-line override is wrong.

    Several errors may be found at once. Then this error has the message of the first error, and
    `found` has all errors. If only one error was found, `found` is empty.
    """

    exit_code = 2
    found: "tuple[OptionError, ...]" = ()


class DistError(SpikeVRTError):
    """The ranks (processes of a run) cannot start together, or have different options."""

    exit_code = 2


class DataError(SpikeVRTError):
    """A file or folder of the data is missing, short, corrupt or inconsistent."""

    exit_code = 3


class CheckpointError(SpikeVRTError):
    """A checkpoint or a weights file cannot be written, read or matched."""

    exit_code = 3


class NonFiniteError(SpikeVRTError):
    """Loss or gradients are NaN or Inf in too many steps in a row, or weights are NaN or Inf."""

    exit_code = 4


class StallError(SpikeVRTError):
    """A rank (a process of a run) hangs, does not answer, or has died."""

    exit_code = 70
