"""Find the ranks of this node, if a platform has started one process for the whole node (host).

torchrun then takes the place of this process, and starts the ranks of the node. `node_variables`
returns the numbers of ranks and nodes under torchrun's names, whatever the platform calls them.

What must stay: which variables are read, because users' job scripts rely on them. Tests
(tests/stories/test_launch.py): test_a_process_that_stands_for_a_node_knows_its_place,
test_a_rank_does_not_stand_for_a_node.
"""

import os

from utils.dist.launch_variables import (
    MemberNames,
    checked_number,
    count_of_members,
    member_of,
    refuse_faults,
)
from utils.dist.launcher_cells import Env

# The variables that describe a node: torchrun's name -> the name on PAI-DLC. torchrun's names stand
# for its flags, e.g. PET_NNODES for --nnodes. If an environment has both names of a variable,
# torchrun's name is used. E.g. Kubeflow sets PET_NNODES to the number of nodes, and WORLD_SIZE to
# the number of ranks, so PET_NNODES must be used.
NODE_NAMES = {
    "PET_NPROC_PER_NODE": "NPROC_PER_NODE",  # number of ranks on this node
    "PET_NNODES": "WORLD_SIZE",  # number of nodes
    "PET_NODE_RANK": "RANK",  # number of this node
    "PET_MASTER_ADDR": "MASTER_ADDR",  # host of node 0
    "PET_MASTER_PORT": "MASTER_PORT",  # free port of this host
}


def node_variables(env: Env, gpu_count: int = 0) -> dict[str, str]:
    """Return torchrun's variables for the ranks of this node, or {} if this process is a rank.

    A platform that starts one process for each node sets no LOCAL_RANK. There are two kinds:

        platform   ranks of a node      number of nodes   number of this node   WORLD_SIZE counts
        PAI-DLC    NPROC_PER_NODE       WORLD_SIZE        RANK                  nodes
        Kubeflow   PET_NPROC_PER_NODE   PET_NNODES        RANK                  ranks

    For example, these variables of PAI-DLC

        NPROC_PER_NODE=8 WORLD_SIZE=2 RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500

    become PET_NPROC_PER_NODE=8 PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=10.0.0.1 ...

    gpu_count: number of GPUs that this process sees, for NPROC_PER_NODE "auto" and "gpu".

    Raises one DistError that lists every variable that is missing, not a number, or out of range.
    """
    names = _names_in(env)
    values = {}  # torchrun's name of a variable -> its value
    for torchruns_name, name in names.items():
        if env.get(name):
            values[torchruns_name] = env[name].strip()
    if "PET_NPROC_PER_NODE" not in values or _is_rank(env):
        return {}

    ranks_text = _in_digits(values["PET_NPROC_PER_NODE"], gpu_count)
    values["PET_NPROC_PER_NODE"] = ranks_text
    # In an elastic job, nodes may come and go. torchrun's own variables describe such a job, and
    # torchrun itself checks these variables.
    is_elastic = "PET_RDZV_ENDPOINT" in env
    if is_elastic:
        return values

    # The functions below append a text for each wrong variable. `refuse_faults` raises one error.
    faults: list[str] = []
    ranks_per_node = checked_number(ranks_text, names["PET_NPROC_PER_NODE"], faults, low=1)
    node_count = count_of_members(env, names["PET_NNODES"], faults)  # the members are nodes here
    if node_count > 1:
        names_of_node = MemberNames(
            count=names["PET_NNODES"],
            number=names["PET_NODE_RANK"],
            addr=names["PET_MASTER_ADDR"],
            port=names["PET_MASTER_PORT"],
        )
        # Called only to find faults. torchrun reads the values itself.
        member_of(env, names_of_node, faults)
    else:
        values["PET_STANDALONE"] = "1"  # torchrun then chooses address and port itself
    refuse_faults(faults, env)
    # With one rank on each node, this process need not start torchrun, because it can be the rank
    # of its node itself. `read_launch` (platforms.py) then reads WORLD_SIZE and RANK as the number
    # of ranks and the number of this rank:
    #
    #     PAI-DLC   NPROC_PER_NODE=1 WORLD_SIZE=2 RANK=1                    node 1 is rank 1
    #     Kubeflow  PET_NPROC_PER_NODE=1 PET_NNODES=2 WORLD_SIZE=2 RANK=1   node 1 is rank 1
    #
    # Without WORLD_SIZE, a process counts as the only rank. This is right for a single node, and
    # wrong for several nodes. So several nodes without WORLD_SIZE need torchrun.
    world_size = env.get("WORLD_SIZE", "1")
    if ranks_per_node == 1 and world_size == str(node_count):
        return {}
    return values


def _in_digits(ranks_text: str, gpu_count: int) -> str:
    """Return the number of ranks of a node in digits, e.g. "8" for "auto" with 8 visible GPUs.

    torchrun takes the words "auto", "gpu" and "cpu" in place of a number. Any other text is
    returned unchanged, so it may be wrong.
    """
    if ranks_text in ("auto", "gpu"):
        return str(max(1, gpu_count))  # without GPUs, one rank on the CPU
    if ranks_text == "cpu":
        return str(os.cpu_count())
    return ranks_text


def _names_in(env: Env) -> dict[str, str]:
    """Return for each variable of NODE_NAMES the name that is used in this environment.

    E.g. {"PET_NNODES": "WORLD_SIZE", ...} if PET_NNODES is not set.
    """
    names = {}
    for torchruns_name, other_name in NODE_NAMES.items():
        names[torchruns_name] = torchruns_name if env.get(torchruns_name) else other_name
    return names


def _is_rank(env: Env) -> bool:
    """Return whether this process is a rank itself, so that it needs no torchrun."""
    if env.get("LOCAL_RANK"):
        return True  # this process has a number among the ranks of its node
    # srun sets SLURM_PROCID, and starts one process for each rank. A platform on top of SLURM that
    # starts one process for each node sets WORLD_SIZE as well, and srun does not.
    return "SLURM_PROCID" in env and "WORLD_SIZE" not in env
