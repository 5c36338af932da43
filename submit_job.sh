#!/usr/bin/env bash
# Train under SLURM.
#
# usage: sbatch [options of sbatch] submit_job.sh [FILE] [section.key=value ...]
#
#   sbatch submit_job.sh FILE train.amp.enable=true
#   sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 submit_job.sh FILE
#
# Adapt the #SBATCH lines and the line for modules to the cluster, or override the #SBATCH lines as
# in the second example. If the cluster has no GPUs of the name "gpu", change the line
# --gpus-per-node, or put --gres=... in its place.
# At its time limit, or if SLURM preempts it, the job saves, is queued again and resumes. After
# scancel the job is not queued again.
#SBATCH --job-name=spikevrt
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=6
#SBATCH --time=24:00:00
#SBATCH --output=slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@180
set -euo pipefail

# What must stay: the exit codes by which a job is queued again, and that scancel ends it. No file
# of another user is run. Tests: tests/dist/test_slurm.py, which starts a SLURM on one machine.

# --help prints the comment above, without "# ": the lines from line 2 to the first #SBATCH.
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^#SBATCH/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit
fi
if [[ -z ${SLURM_JOB_ID:-} ]]; then
    echo "no SLURM job: start it with sbatch in the place of bash" >&2
    exit 2
fi

# ---- Where the project is ----

# A task of a job array has a name of its own, e.g. 71_3. The number of the array, 71, would mean
# all of its tasks.
job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi

# SLURM runs a copy of this script from its spool folder, so ask SLURM for the path that was given
# to sbatch. The answer has the arguments after the path, e.g. "/home/me/SpikeVRT/submit_job.sh
# FILE". A path may have blanks, too. So take words off the end until a file is left.
command=$(
    scontrol --oneliner show job "$job" | sed -n 's/.* Command=\(.*\) WorkDir=.*/\1/p' || true
)
until [[ -f $command || $command != *' '* ]]; do
    command=${command% *}
done
# The folder of the project, or '' for the folder of sbatch, to which relative paths belong.
here=$(dirname "$(readlink -f "$command")")/
if [[ -n ${SPIKEVRT_HOME:-} ]]; then
    here=$SPIKEVRT_HOME/
elif [[ -f $command && . -ef $here ]]; then
    here=''
elif [[ ! -f $command || ! -f ${here}main_train_vrt.py ]]; then
    # The script is a copy outside of the project, or SLURM does not answer. So the folder of sbatch
    # must be the project. Other users may write into this folder, too. So the two files that would
    # be run must belong to this user.
    here=''
    if [[ ! -O main_train_vrt.py || ! -O scripts/environment.sh ]]; then
        echo "submit_job.sh: SLURM does not say where SpikeVRT is, and $PWD is no SpikeVRT of" \
            "this user: set SPIKEVRT_HOME=/path/to/SpikeVRT" >&2
        exit 2
    fi
fi

# ---- What the ranks get ----

file=${here}options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json
if [[ ${1:-} == *.json || ${1:-} == *.json5 ]]; then
    file=$1
    shift
fi
# What the cluster needs before python is there, e.g.:
# module load cuda; source ~/miniconda3/bin/activate spikevrt
# shellcheck source=scripts/environment.sh
source "${here}scripts/environment.sh"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
# Since SLURM 22.05 srun does not take over sbatch's --cpus-per-task.
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
    export SRUN_CPUS_PER_TASK="${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}"
fi

# A secret that the ranks share, so that nobody else can join them. It is 64 random hex digits,
# fresh for each start, and written nowhere.
SPIKEVRT_JOB_KEY=${SPIKEVRT_JOB_KEY:-$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')}
export SPIKEVRT_JOB_KEY
# A free port of this host, which is the first host of the job. Port 0 lets the system choose. A
# port that is derived from the job's number could be guessed.
if [[ -z ${MASTER_PORT:-} ]]; then
    free_port='import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
    # shellcheck disable=SC2154 # environment.sh sets $python
    MASTER_PORT=$("$python" -c "$free_port")
    export MASTER_PORT
fi

# ---- Signals ----

step=''         # process id of srun
is_time_up=''   # 1 after the signal of the time limit
is_cancelled='' # 1 after scancel
limit=0         # time of the limit, in seconds since 1970

# SLURM sends USR1 only to this shell, 180 s before the time limit (B:USR1@180). This function sends
# it to srun, which sends it to every rank.
on_time_up() {
    is_time_up=1
    limit=$(squeue --noheader --jobs="$job" --format=%e) || limit='' # e.g. 2026-11-27T15:20:46
    # If SLURM does not answer, or if the job has no limit, `date` fails. Then the limit is taken to
    # be 100 s after this signal.
    limit=$(date -d "${limit:-none}" +%s 2>/dev/null) || limit=$((EPOCHSECONDS + 100))
    if [[ -n $step ]]; then
        kill -s USR1 "$step" 2>/dev/null || true # srun may have ended
    fi
}

# SLURM sends TERM to the ranks and to this shell, at the time limit and after scancel. A TERM before
# the time limit comes from scancel.
on_term() {
    if [[ -z $is_time_up ]] || ((EPOCHSECONDS < limit)); then
        is_cancelled=1
    fi
}

trap on_time_up USR1
trap on_term TERM

# ---- The training ----

srun --kill-on-bad-exit=0 "$python" -u "${here}main_train_vrt.py" --opt "$file" "$@" &
step=$!
code=0
while true; do
    wait "$step" && code=0 || code=$?
    # A signal to this shell ends `wait`, although srun still runs. `kill -0` only asks whether it
    # runs.
    if ! kill -0 "$step" 2>/dev/null; then break; fi
done

# ---- Queued again, or ended ----

# If SLURM preempts a job with a grace time, only the ranks get a signal. If the job ends within the
# grace time, SLURM does not queue it again, so this script has to do it.
is_preempted() {
    [[ $(scontrol --oneliner show job "$job") == *" PreemptTime="[0-9]* ]]
}

# 75: stopped with a checkpoint. 138 and 143 (128 + USR1, 128 + TERM): the signal came before the
# training could listen. The job resumes in a new allocation.
if [[ $code =~ ^(75|138|143)$ && -z $is_cancelled ]]; then
    if [[ -n $is_time_up ]] || is_preempted; then
        scontrol requeue "$job"
    fi
fi
exit "$code"
