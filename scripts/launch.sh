#!/usr/bin/env bash
# Start a main script on N processes of this machine; launch_train.sh and launch_test.sh end here.
#
# usage: scripts/launch.sh LAUNCHER MAIN N ARGUMENTS...
#
#   scripts/launch.sh launch_train.sh main_train_vrt.py 2 --opt FILE
#   scripts/launch.sh launch_test.sh main_test_vrt.py 1 --opt FILE
#
# N=1: plain python; N>1: torchrun. LAUNCHER is the name to use in messages. The exit code is the run's own.
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help ]]; then sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit; fi
launcher=$1 main=$2 count=$3; shift 3
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

fail() { printf 'DistError: %s\n  in        %s\n  expected  %s\n  do        %s\n' "$1" "$launcher" "$2" "$3" >&2; exit 2; }

[[ $count =~ ^[1-9][0-9]*$ ]] || fail "N is '$count'" "./$launcher N [FILE] [key=value ...]" "give the number of processes"

if [[ -n ${RANK:-} && ${WORLD_SIZE:-1} != 1 ]]; then
    # torchrun would overwrite the variables in silence, and every rank would start a world of its own.
    fail "a platform has injected RANK=$RANK and WORLD_SIZE=$WORLD_SIZE" "no launcher inside a launch" \
        "python -u $main $*"
fi

# One process usually has the cores to itself: its threads spin for some microseconds before they sleep. On idle cores a
# step takes 0.6 of the time of threads that sleep at once, beside another busy process 1.8 times as long.
if [[ $count -eq 1 && -z ${OMP_WAIT_POLICY:-} ]]; then export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-3000}"; fi
source scripts/environment.sh
cores=$(($(nproc) / count))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > 0 ? cores : 1))}"

if [[ $count -eq 1 ]]; then
    # Inside a SLURM allocation the task variables describe the allocation, not this one process.
    exec env -u SLURM_PROCID -u WORLD_SIZE "$python" -u "$main" "$@"
fi

# torchrun, with the run's exit code; more ranks than GPUs are refused there.
exec "$python" scripts/torchrun_quiet.py --standalone --nproc_per_node="$count" "$main" "$@"
