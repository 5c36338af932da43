# shellcheck shell=bash disable=SC2154
# Sourced by launch_train.sh and launch_test.sh: starts $main on N processes; $default: its option file, where none is given.
if [[ ${1:-} == -h || ${1:-} == --help ]]; then sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[1]}"; exit; fi

# A platform that starts one process per node (PAI-DLC, Kubeflow) says how many GPUs a node has.
per_node=${PET_NPROC_PER_NODE:-${NPROC_PER_NODE:-}} count=''
if [[ -z $per_node || ${1:-} =~ ^[0-9]+$ ]]; then count=${1:-}; shift || true; fi
# Relative paths belong to the caller's folder, so the programs have absolute ones outside the repository.
here=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")/
if [[ ${1:-} == *.json || ${1:-} == *.json5 ]]; then set -- --opt "$@"
elif [[ -n $default ]]; then set -- --opt "$here$default" "$@"; fi
[[ ! . -ef $here ]] || here=''
main=$here$main launcher=${BASH_SOURCE[1]##*/}

fail() { printf 'DistError: %s\n  in        %s\n  expected  %s\n  do        %s\n' "$1" "$launcher" "$2" "$3" >&2; exit 2; }

if [[ -n ${LOCAL_RANK:-} ]]; then per_node=''; fi
count=${count:-$per_node}
[[ $count =~ ^([1-9][0-9]*|auto|gpu)$ ]] || fail "N is '$count'" "./$launcher N [FILE] [key=value ...]" "give the number of processes"

# Ranks look at one another through /proc.
if [[ ! -e /proc/self/stat && ( -n $per_node || $count != 1 || ${WORLD_SIZE:-1} != 1 ) ]]; then
    fail "several ranks on a system that does not show its processes in /proc: $(uname -s)" \
        "Linux (on Windows: WSL), or one process" "./$launcher 1 [FILE] [key=value ...]"
fi

if [[ -z $per_node && -n ${RANK:-} && ${WORLD_SIZE:-1} != 1 ]]; then
    # torchrun would overwrite the variables in silence, and every rank would start a world of its own.
    again="python -u $main"
    # What may be a secret is left out, with more caution than utils/options/secrets.py needs.
    secret='key|token|secret|passw|passphrase|pwd|auth|bearer|credential|webhook|dsn|cookie|session|://[^ ]*@' is_next=''
    for argument in "$@"; do
        if [[ -n $is_next ]]; then argument=... is_next=''
        elif [[ ${argument,,} =~ $secret ]]; then
            if [[ $argument == --* && $argument != *=* ]]; then is_next=1; else argument="${argument%%=*}=..."; fi
        fi
        again+=" $(printf '%q' "$argument")"
    done
    [[ -n ${LOCAL_RANK:-} ]] || again+=$'\n            one process per node:  '"NPROC_PER_NODE=$count $again"
    fail "a platform has injected RANK=$RANK and WORLD_SIZE=$WORLD_SIZE" "no launcher inside a launch" "$again"
fi

has_wait_policy=${OMP_WAIT_POLICY:-}
# shellcheck source=scripts/environment.sh
source "${here}scripts/environment.sh"
if [[ -n $per_node ]]; then PET_NPROC_PER_NODE=$count exec "$python" -u "$main" "$@"; fi # which starts torchrun
if [[ $count != 1 ]]; then
    exec "$python" "${here}scripts/torchrun_quiet.py" --standalone --nproc_per_node="$count" "$main" "$@"
fi

# One process that has the cores to itself: its threads spin for some microseconds before they sleep. On idle cores a step
# takes 0.6 of the time of threads that sleep at once; where others use half of the cores or more, it takes longer.
# The wait changes no number, as another number of threads would. Three looks: short work of others does not count.
if [[ -z $has_wait_policy ]]; then
    # Where the system does not say what runs, threads sleep at once.
    running() { if [[ -r /proc/loadavg ]]; then read -r _ _ _ now _ </proc/loadavg; echo $((${now%%/*} - 1)); else echo 1000000; fi; }
    others=$(for _ in 1 2 3; do running; sleep 0.1; done | sort -n | sed -n 1p)
    if [[ $((2 * others)) -lt $(getconf _NPROCESSORS_ONLN) ]]; then export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-3000}"; fi
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)}"
# Inside a SLURM allocation the task variables describe the allocation, not this one process.
exec env -u SLURM_PROCID -u WORLD_SIZE -u RANK "$python" -u "$main" "$@"
