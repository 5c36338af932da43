# shellcheck shell=bash disable=SC2034
# Choose the Python of a run, and set the variables of its ranks. Every script that starts ranks
# sources this file in bash. It sets $python, and keeps each variable that the user has set.
#
# What must stay: the names of the variables, which torch, NCCL and OpenMP read.
# Free to change: the order. Tests: tests/stories/test_launch.py

# ---- A limit that makes runs fail ----

limit=$(ulimit -v)
if [[ $limit != unlimited ]]; then
    {
        printf 'warning: ulimit -v limits the address space to %s GB. ' $((limit / 1000000))
        printf 'torch maps several GB of files, CUDA far more: '
        printf 'a MemoryError, exit code 134 or 139 may come from it. '
        printf 'What to do: ulimit -v unlimited\n'
    } >&2
fi

# ---- Python ----

# The Python of an active environment comes first, then .venv of the repository, then the system's.
# An active conda environment may have no python of its own, so look whether it is there.
repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
python_of_venv=$repository/.venv/bin/python
if [[ -x ${VIRTUAL_ENV:-/dev/null}/bin/python || -x ${CONDA_PREFIX:-/dev/null}/bin/python ]]; then
    python=python
elif [[ -x $python_of_venv ]]; then
    python=$python_of_venv
else
    python=python3
fi

# ---- Variables of the ranks ----

# With 1, an error of NCCL ends the rank. The second variable is the old name of the first one.
export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export NCCL_ASYNC_ERROR_HANDLING="${NCCL_ASYNC_ERROR_HANDLING:-1}"
# The number of work queues from a process to its GPU. With 1, kernels begin in the order in which
# they are launched.
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"
# With this setting, clips of several sizes do not break the memory of a GPU into small pieces.
# PYTORCH_CUDA_ALLOC_CONF is the old name. If the user has set it, do not set the new one.
if [[ -z ${PYTORCH_CUDA_ALLOC_CONF:-} ]]; then
    export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"
fi
# With "passive", threads that wait for one another sleep. If they wait actively, a step on the CPU
# takes 0.6 of the time on idle cores. But it takes two to three times as long as soon as another
# program wants a core (docs/benchmarks/net_details.md).
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
# Without InfiniBand, NCCL need not look for it.
if [[ -z ${NCCL_IB_DISABLE:-} && -z $(ls -A /sys/class/infiniband 2>/dev/null) ]]; then
    export NCCL_IB_DISABLE=1
fi
# torch has no gradient of grid_sample on Apple's GPUs, so the CPU computes it.
export PYTORCH_ENABLE_MPS_FALLBACK="${PYTORCH_ENABLE_MPS_FALLBACK:-1}"
