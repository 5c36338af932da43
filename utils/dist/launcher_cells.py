"""Read one value, e.g. the number of ranks, from the environment that a launcher has made.

The table of launchers (utils/dist/launcher_table.py) consists of cells. A cell is a function that
takes an environment and returns the text of one value, or "" if the environment lacks the value:

    size = var("OMPI_COMM_WORLD_SIZE")        # a cell for the number of ranks
    size({"OMPI_COMM_WORLD_SIZE": "4"})       # "4"
    size({})                                  # ""

`var`, `first_of`, `count_of` and `position_in` make cells. The functions below them are cells
themselves, each for one launcher that describes its processes in a form of its own.

What must stay: a cell raises no error, because an environment may hold anything.

Tests: tests/stories/test_launch.py.
"""

import json
import re
from collections.abc import Callable, Mapping

Env = Mapping[str, str]  # the environment: name of a variable -> its text
Cell = Callable[[Env], str]


def var(name: str) -> Cell:
    """Return a cell that reads the variable `name`."""

    def read(env: Env) -> str:
        return env.get(name, "").strip()

    return read


def no_variable(env: Env) -> str:
    """Return "". This is the cell of a value that no variable of the launcher holds."""
    return ""


def split_list(text: str) -> list[str]:
    """Split a list of hosts, or of other items. A number of processes after a host is left out.

    The list is in JSON, or divided by commas, blanks or lines:

        '["a", "b"]'               ->  ["a", "b"]
        "a:8,b:8"                  ->  ["a", "b"]
        "fe80::1 fe80::2"          ->  ["fe80::1", "fe80::2"]
        "[fe80::1]:8,[fe80::2]:8"  ->  ["fe80::1", "fe80::2"]
    """
    # A bracket begins a list in JSON, or an IPv6 address. In an address, a colon comes before any
    # quote, comma, blank or "]":
    #
    #     '["a", "b"]'     JSON
    #     '["fe80::1"]'    JSON: a quote comes before the colon
    #     "[fe80::1]:8"    an address
    begins_with_address = re.match(r'\[[^\s,"\]]*:', text) is not None
    if text.startswith("[") and not begins_with_address:
        try:
            all_items = [str(item) for item in json.loads(text)]
        except (ValueError, RecursionError):  # not JSON, or too many brackets for Python
            all_items = []
    else:
        all_items = re.split(r"[,\s]+", text.strip())
    return [_host_of(item) for item in all_items if item]  # an empty text has the item ""


def _host_of(item: str) -> str:
    """Return an item of a list without its number of processes, e.g. "a:8" -> "a"."""
    if item.startswith("["):  # e.g. "[fe80::1]:8"
        return item[1:].partition("]")[0]
    if item.count(":") > 1:  # an IPv6 address without brackets: all its colons belong to it
        return item
    return item.partition(":")[0]


def first_of(name: str) -> Cell:
    """Return a cell that reads the first item of the list in the variable `name`."""

    def read(env: Env) -> str:
        hosts = split_list(env.get(name, ""))
        return hosts[0] if hosts else ""

    return read


def count_of(name: str) -> Cell:
    """Return a cell that reads the number of items of the list in the variable `name`."""

    def read(env: Env) -> str:
        hosts = split_list(env.get(name, ""))
        return str(len(hosts)) if hosts else ""

    return read


def position_in(name: str, host_name: str) -> Cell:
    """Return a cell that reads the position of this host in a list, counted from 0.

    E.g. "1" if the list is "a,b" and this host is "b".

    name: the variable that holds the list.
    host_name: the variable that holds the name of this host.
    """

    def read(env: Env) -> str:
        hosts = split_list(env.get(name, ""))
        host = env.get(host_name, "")
        return str(hosts.index(host)) if host in hosts else ""

    return read


def flux_ranks_on_one_host(env: Env) -> str:
    """Read the number of ranks on this host, which Flux tells if the job has a single host."""
    if env.get("FLUX_JOB_NNODES") == "1":
        return env.get("FLUX_JOB_SIZE", "")
    return ""


def hydra_size(env: Env) -> str:
    """Read the number of ranks if the launcher Hydra has started them.

    Other launchers set PMI_SIZE as well, but only Hydra sets MPI_LOCALRANKID.
    """
    if "MPI_LOCALRANKID" in env:
        return env.get("PMI_SIZE", "")
    return ""


def pmi_size(env: Env) -> str:
    """Read the number of processes of any launcher that sets PMI_RANK and PMI_SIZE.

    Hydra sets both variables as well, but `with_standard_names` (launchers.py) looks at the row of
    Hydra first. So this cell only decides for other launchers.
    """
    if "PMI_RANK" in env:
        return env.get("PMI_SIZE", "")
    return ""


def lsf_hosts(env: Env) -> str:
    """Read the number of hosts of a job of LSF, e.g. "2" from "hosta 4 hostb 4".

    LSF lists each host with its number of slots. A slot may be a core or a process, so only the
    hosts are counted.
    """
    hosts_and_slots = env.get("LSB_MCPU_HOSTS", "").split()  # e.g. ["hosta", "4", "hostb", "4"]
    return str(len(hosts_and_slots) // 2)
