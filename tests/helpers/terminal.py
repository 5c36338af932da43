"""Runs a script in a pseudo-terminal, and tells what a person would see there.

    run_in_terminal    runs the script, and returns the bytes that it wrote
    screen             returns the rows that these bytes show

Free to add: a control sequence in `screen`, which fails if it meets a sequence that it does not
know.
"""

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from collections import defaultdict

from tests.dist.fork_server import clean_env, fork_server
from tests.dist.launching import PATIENCE, kill_session

# Rows and columns of the terminal.
SIZE = (50, 200)
# Longest time, in seconds, to read the last output after the end of the script. Without this limit,
# a process that the script has started in another session could keep the terminal open forever.
LAST_S = 10.0
# Matches one part of what a script writes. A control sequence begins with the character ESC (\x1b)
# and "[". Then come a number (group 1), which may be missing, and a letter (group 2):
#
#     part        what it is                    group 1   group 2
#     "\x1b[2A"   control sequence: 2 rows up   "2"       "A"
#     "\x1b[K"    control sequence              ""        "K"
#     "\r"        to the beginning of the row   None      None
#     "\n"        line end                      None      None
#     "epoch 3"   text                          None      None
ESCAPE = re.compile(r"\x1b\[(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


def run_in_terminal(
    script: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    limit_s: float = 120,
    size: tuple[int, int] = SIZE,
) -> tuple[int, bytes]:
    """Run a script in a terminal of this size. Return its exit code, and all that it wrote.

    The script can also read from the terminal. `screen` tells from the bytes what a person sees.

    env: additional variables of the environment. An empty value removes a variable.
    limit_s: longest time of the script on an idle machine. A busy machine gets PATIENCE times as
        long.
    size: rows and columns of the terminal.
    """
    # The two ends of the terminal: this process reads what the script writes.
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    parts: list[bytes] = []  # what the script writes, as it is read, part by part

    def read() -> None:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # EIO: the last process has closed its end
                return
            if not part:
                return
            parts.append(part)

    # The variables of `env` replace those of the same name. Then drop each variable with an empty
    # value.
    all_variables = {**clean_env(), **(env or {})}
    variables = {key: value for key, value in all_variables.items() if value}
    reader = threading.Thread(target=read, daemon=True)
    # The script gets a copy of `theirs`, and this process closes its own copy at the end of the
    # block. So when the script has closed its copy, nobody holds this end of the terminal any more,
    # and `read` ends.
    with os.fdopen(theirs, "wb", buffering=0) as stream:
        process = fork_server().start([script, *arguments], variables, stream, stream)
    reader.start()
    try:
        code = process.wait(limit_s * PATIENCE)  # PATIENCE: a busy machine takes longer
    finally:
        kill_session(process)
        reader.join(LAST_S)
        os.close(ours)
    return code, b"".join(parts)


def screen(written: bytes) -> list[str]:
    """Return the rows that a terminal of endless length shows in the end.

    written: what a script wrote, with control sequences, e.g. of a progress bar.
    """
    # Row -> column -> the character at this place.
    rows: dict[int, dict[int, str]] = defaultdict(dict)
    row = 0
    column = 0
    for token in ESCAPE.finditer(written.decode()):
        text = token[0]
        # The number in a control sequence: 2 in "\x1b[2A", 1 in "\x1b[A". Unused for other parts.
        count = int(token[1] or 1)
        code = token[2]  # of a control sequence: its letter, else None
        if text == "\r":  # to the beginning of the row
            column = 0
        elif text == "\n":
            row += 1
        elif code == "A":  # up by `count` rows
            row -= count
        elif code == "K":  # remove the rest of the row
            # `at` is the column of a character, and `sign` is the character.
            rows[row] = {at: sign for at, sign in rows[row].items() if at < column}
        elif code is None:
            for sign in text:
                rows[row][column] = sign
                column += 1
        else:
            raise AssertionError(f"a code that is not known here: {text!r}")

    last_row = max(rows, default=-1)
    return [_text_of_row(rows[number]) for number in range(last_row + 1)]


def _text_of_row(signs: dict[int, str]) -> str:
    """Return a row as text. Columns without a character become spaces, except at the row's end.

    signs: column -> the character in this column.
    """
    last_column = max(signs, default=-1)
    text = "".join(signs.get(column, " ") for column in range(last_column + 1))
    return text.rstrip()
