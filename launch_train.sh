#!/usr/bin/env bash
# Train on N processes of this machine.
#
#   ./launch_train.sh N [FILE] [section.key=value ...] [--resume auto|none|PATH] [--use_amp ...]
#
# N=1: plain python; N>1: torchrun. FILE defaults to the GoPro reference experiment. The exit code is the run's own.
set -euo pipefail

fail() { printf 'DistError: %s\n  in        launch_train.sh\n  expected  %s\n  do        %s\n' "$1" "$2" "$3" >&2; exit 2; }

[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || fail "N is '${1:-}'" "./launch_train.sh N [FILE] [key=value ...]" "give the number of processes"
count=$1; shift
file=options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json
if [[ ${1:-} == *.json || ${1:-} == *.json5 ]]; then file=$1; shift; fi
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"

if [[ -n ${RANK:-} && ${WORLD_SIZE:-1} != 1 ]]; then
    # torchrun would overwrite the variables in silence, and every rank would start a world of its own.
    fail "a platform has injected RANK=$RANK and WORLD_SIZE=$WORLD_SIZE" "no launcher inside a launch" \
        "python -u main_train_vrt.py --opt $file $*"
fi

if [[ -n ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]]; then python=python
elif [[ -x .venv/bin/python ]]; then python=.venv/bin/python
else python=python3; fi

export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export NCCL_ASYNC_ERROR_HANDLING="${NCCL_ASYNC_ERROR_HANDLING:-1}" # the old name
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"
cores=$(($(nproc) / count))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > 0 ? cores : 1))}"
if [[ -z ${NCCL_IB_DISABLE:-} && -z $(ls -A /sys/class/infiniband 2>/dev/null) ]]; then export NCCL_IB_DISABLE=1; fi

if [[ $count -eq 1 ]]; then
    # Inside a SLURM allocation the task variables describe the allocation, not this one process.
    exec env -u SLURM_PROCID -u WORLD_SIZE "$python" -u main_train_vrt.py --opt "$file" "$@"
fi

# torchrun, with the run's exit code; more ranks than GPUs are refused there.
exec "$python" scripts/torchrun_quiet.py --standalone --nproc_per_node="$count" main_train_vrt.py --opt "$file" "$@"
