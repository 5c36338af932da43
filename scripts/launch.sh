# shellcheck shell=bash disable=SC2154
# Start a program on N processes of this machine. launch_train.sh and launch_test.sh source this
# file, and set before:
#
#     main       the program, e.g. main_train_vrt.py
#     default    its option file if the user gives none; empty if the user must give one
#
# What is started, by the number of processes:
#
#     one                     python
#     several                 scripts/torchrun_quiet.py, which starts the ranks
#     one process per node    python; main_train_vrt.py then starts torchrun on its node
#
# What must stay: the exit code is the code of the run, because `exec` replaces this shell. A secret
# of the user is never printed. Tests: tests/stories/test_launch.py

# --help prints the comment at the head of the script that sources this file: its lines from line 2
# to the line `set -euo pipefail`, without "# ".
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[1]}"
    exit
fi

# ---- The arguments ----

# A platform that starts one process per node (PAI-DLC, Kubeflow) says how many GPUs a node has.
# Then the user need not give N.
per_node=${PET_NPROC_PER_NODE:-${NPROC_PER_NODE:-}}
count=''
if [[ -z $per_node || ${1:-} =~ ^[0-9]+$ ]]; then
    count=${1:-}
    shift || true # there is nothing to shift if no argument is given
fi

# `project` is the folder of the project, as an absolute path. `here` is put in front of the names
# of programs. `here` is empty if the caller is in the folder of the project, else it is `project`.
project=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")/
here=$project
if [[ . -ef $project ]]; then here=''; fi
main=$here$main
# A first argument with the ending of an option file is the option file.
if [[ ${1:-} == *.json || ${1:-} == *.json5 ]]; then
    set -- --opt "$@"
elif [[ -n $default ]]; then
    set -- --opt "$project$default" "$@"
fi
launcher=${BASH_SOURCE[1]##*/} # e.g. launch_train.sh

# ---- What is refused ----

# Print an error in the form of DistError (utils/errors.py), and end with its exit code.
# Arguments: what is wrong, what was expected, what to do.
fail() {
    printf 'DistError: %s\n  in        %s\n  expected  %s\n  do        %s\n' \
        "$1" "$launcher" "$2" "$3" >&2
    exit 2
}

# If LOCAL_RANK is set, the platform has started this script once for each rank, and not once for
# the node.
if [[ -n ${LOCAL_RANK:-} ]]; then per_node=''; fi
count=${count:-$per_node}
if [[ ! $count =~ ^([1-9][0-9]*|auto|gpu)$ ]]; then
    fail "N is '$count'" "./$launcher N [FILE] [key=value ...]" "give the number of processes"
fi

# Ranks look at one another through /proc, so several ranks need it.
if [[ ! -e /proc/self/stat && (-n $per_node || $count != 1 || ${WORLD_SIZE:-1} != 1) ]]; then
    fail "several ranks on a system that does not show its processes in /proc: $(uname -s)" \
        "Linux (on Windows: WSL), or one process" "./$launcher 1 [FILE] [key=value ...]"
fi

# If RANK and WORLD_SIZE are set, a platform may have started this script once for each rank.
# torchrun would overwrite the variables without a warning, and each of these ranks would start a
# complete training. So suggest the command that the platform should start instead.
if [[ -z $per_node && -n ${RANK:-} && ${WORLD_SIZE:-1} != 1 ]]; then
    again="python -u $main"
    # Print "..." in place of a value that may be a secret. This test is simpler than the test in
    # utils/secrets.py, and hides more values. E.g.
    #     --hf-token abc          becomes   --hf-token ...
    #     logging.x=pwd:abc       becomes   logging.x=...
    secret='key|token|secret|passw|passphrase|pwd|auth|bearer|credential|webhook|dsn|cookie|session'
    secret+='|://[^ ]*@' # a password in an address, e.g. https://user:abc@host
    is_value='' # whether the argument is the value of the flag before it, which names a secret
    for argument in "$@"; do
        if [[ -n $is_value ]]; then
            argument=...
            is_value=''
        elif [[ ${argument,,} =~ $secret ]]; then # ,, gives small letters
            if [[ $argument == --* && $argument != *=* ]]; then
                is_value=1
            else
                argument="${argument%%=*}=..."
            fi
        fi
        again+=" $(printf '%q' "$argument")" # %q: quoted, so that it can be typed
    done
    # Without LOCAL_RANK the platform may also start one process per node.
    if [[ -z ${LOCAL_RANK:-} ]]; then
        again+=$'\n            one process per node:  '"NPROC_PER_NODE=$count $again"
    fi
    fail "a platform has injected RANK=$RANK and WORLD_SIZE=$WORLD_SIZE" \
        "no launcher inside a launch" "$again"
fi

# ---- The start of several processes ----

given_wait_policy=${OMP_WAIT_POLICY:-} # the user's value, before environment.sh sets the variable
# shellcheck source=scripts/environment.sh
source "${here}scripts/environment.sh"
if [[ -n $per_node ]]; then
    PET_NPROC_PER_NODE=$count exec "$python" -u "$main" "$@"
fi
if [[ $count != 1 ]]; then
    torchrun=${here}scripts/torchrun_quiet.py
    exec "$python" "$torchrun" --standalone --nproc_per_node="$count" "$main" "$@"
fi

# ---- The start of one process ----

# Print how many other processes of this machine are running. E.g. if /proc/loadavg is
# "0.20 0.18 0.12 3/345 6789", then 3 of 345 are running. The process that reads the file is one of
# them, so subtract 1. If the system does not tell, print a large number, as if all cores were busy.
running_elsewhere() {
    local now
    if [[ -r /proc/loadavg ]]; then
        read -r _ _ _ now _ </proc/loadavg
        echo $((${now%%/*} - 1))
    else
        echo 1000000
    fi
}

# If less than half of the cores are busy, let the threads of this process wait actively for some
# microseconds (GOMP_SPINCOUNT) before they sleep. On idle cores a step then takes 0.6 of the time,
# and on busy cores it would take longer. How threads wait changes no result, but another number of
# threads would change the last bits.
if [[ -z $given_wait_policy ]]; then
    # Count three times and take the smallest number, so that short work of others does not count.
    others=$(for _ in 1 2 3; do
        running_elsewhere
        sleep 0.1
    done | sort -n | sed -n 1p)
    cores=$(getconf _NPROCESSORS_ONLN)
    if [[ $((2 * others)) -lt $cores ]]; then
        export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-3000}"
    fi
fi
# macOS has no nproc.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)}"
# Inside a SLURM allocation the task variables describe the allocation, not this one process. So
# remove them.
exec env -u SLURM_PROCID -u WORLD_SIZE -u RANK "$python" -u "$main" "$@"
