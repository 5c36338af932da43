# shellcheck shell=bash disable=SC2034
# Sourced by whatever starts ranks, in bash: $python, and the variables that the user has not set.

limit=$(ulimit -v)
if [[ $limit != unlimited ]]; then
    echo "warning: ulimit -v limits the address space to $((limit / 1000000)) GB. torch maps several GB of files, CUDA" \
        "far more: a MemoryError, exit code 134 or 139 may come from it. What to do: ulimit -v unlimited" >&2
fi

# An active conda environment may have no python of its own.
own=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")/.venv/bin/python
if [[ -x ${VIRTUAL_ENV:-/dev/null}/bin/python || -x ${CONDA_PREFIX:-/dev/null}/bin/python ]]; then python=python
elif [[ -x $own ]]; then python=$own
else python=python3; fi

export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export NCCL_ASYNC_ERROR_HANDLING="${NCCL_ASYNC_ERROR_HANDLING:-1}" # the old name
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"
# Memory of clips of several sizes does not fall into pieces.
if [[ -z ${PYTORCH_CUDA_ALLOC_CONF:-} ]]; then
    export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"
fi
# Threads that wait for one another sleep. Spinning is faster on idle cores (a step on the CPU takes 0.6 of the time), but
# two to three times slower as soon as anything else wants a core: docs/benchmarks/net.md.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
if [[ -z ${NCCL_IB_DISABLE:-} && -z $(ls -A /sys/class/infiniband 2>/dev/null) ]]; then export NCCL_IB_DISABLE=1; fi
# torch has no gradient of grid_sample on Apple's GPUs: the CPU computes it.
export PYTORCH_ENABLE_MPS_FALLBACK="${PYTORCH_ENABLE_MPS_FALLBACK:-1}"
