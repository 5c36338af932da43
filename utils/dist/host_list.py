"""Read a node list of SLURM, e.g. "gpu[003-007,9],cpu1": its number of hosts, its first host.

What must stay: the first host. Every task computes it by itself, and all tasks meet there.

Tests (tests/stories/test_launch.py): test_the_hosts_of_a_node_list_are_counted,
test_the_first_host_of_a_node_list_is_read.
"""

import re

# A node list of SLURM is cut into names at its commas, but not at the commas within a bracket:
#
#     list                   names
#     a,b                    "a", "b"
#     gpu[003-007,9],cpu1    "gpu[003-007,9]", "cpu1"
#
# So a name consists of pieces, and a piece is one of two things:
#     [^,\[]       a character, but no comma and no opening bracket
#     \[[^\]]*\]   a bracket with all that it encloses, e.g. "[003-007,9]"
PIECE_OF_NAME = r"(?:[^,\[]|\[[^\]]*\])"


def host_count(nodelist: str) -> int:
    """Return the number of hosts of a SLURM node list: 6 for "gpu[003-007],cpu1"."""
    count = 0
    names = re.findall(rf"{PIECE_OF_NAME}+", nodelist)  # e.g. ["gpu[003-007]", "cpu1"]
    for name in names:
        # If a name has several brackets, their numbers multiply: "rack[1-2]gpu[1-4]" stands for
        # 2 x 4 hosts. A name without a bracket is one host.
        hosts_of_name = 1
        # The text within each bracket, e.g. "003-007,9", which stands for 5 + 1 numbers.
        for ranges in re.findall(r"\[([^\]]*)\]", name):
            numbers_in_bracket = sum(_length_of_range(text) for text in ranges.split(","))
            hosts_of_name *= numbers_in_bracket
        count += hosts_of_name
    return count


def _length_of_range(text: str) -> int:
    """Return how many numbers "003-007" stands for, here 5. "9" stands for 1."""
    low, dash, high = text.partition("-")
    is_range = dash and low.isdecimal() and high.isdecimal()
    if not is_range:
        return 1
    return int(high) - int(low) + 1


def first_host(nodelist: str) -> str:
    """Return the first host of a SLURM node list: "gpu[003-007,9],cpu1" -> "gpu003".

    The zeros in front of a number stay.
    """
    # The name up to the first comma outside of brackets: "gpu[003-007,9]". The pattern also matches
    # an empty text, so there always is a first match.
    first_name = re.findall(rf"{PIECE_OF_NAME}*", nodelist.strip())[0]
    # Replace each bracket by its first number:
    #
    #     gpu[003-007,9]       gpu003
    #     rack[1-2]gpu[3,5]    rack1gpu3
    #
    # Group 1 of the pattern is this number, which ends before "-", "," or "]". After group 1, the
    # pattern matches the rest of the bracket.
    return re.sub(r"\[([^\],\-]*)[^\]]*\]", r"\1", first_name)
