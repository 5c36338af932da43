#!/usr/bin/env bash
# Train under SLURM.
#
# usage: sbatch [options of sbatch] submit_job.sh [FILE] [section.key=value ...]
#
#   sbatch submit_job.sh FILE train.amp.enable=true
#   sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 submit_job.sh FILE
#
# Adapt the #SBATCH lines, and the line for modules, to the cluster, or override them as in the second example.
# Where a cluster has no GPUs of the name "gpu", change the line --gpus-per-node, or put --gres=... in its place.
# At its time limit, or preempted, the job saves, is queued again and resumes; scancel ends it for good.
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

if [[ ${1:-} == -h || ${1:-} == --help ]]; then sed -n '2,/^#SBATCH/{/^#SBATCH/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit; fi
if [[ -z ${SLURM_JOB_ID:-} ]]; then echo "no SLURM job: start it with sbatch in the place of bash" >&2; exit 2; fi

# A task of a job array by its own name: the number of the array means all of its tasks.
job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi

# SLURM runs a copy of this script from its spool folder. Relative paths belong to the folder of sbatch.
command=$(scontrol --oneliner show job "$job" | sed -n 's/.* Command=\(.*\) WorkDir=.*/\1/p' || true) # with arguments
until [[ -f $command || $command != *' '* ]]; do command=${command% *}; done
here=$(dirname "$(readlink -f "$command")")/
if [[ -n ${SPIKEVRT_HOME:-} ]]; then here=$SPIKEVRT_HOME/
elif [[ -f $command && . -ef $here ]]; then here=''
elif [[ ! -f $command || ! -f ${here}main_train_vrt.py ]]; then # the script is a copy, or SLURM does not answer
    here=''
    # In a folder that others share, files of these names may be anybody's.
    if [[ ! -O main_train_vrt.py || ! -O scripts/environment.sh ]]; then
        echo "submit_job.sh: SLURM does not say where SpikeVRT is, and $PWD is no SpikeVRT of this user: set SPIKEVRT_HOME=/path/to/SpikeVRT" >&2
        exit 2
    fi
fi
file=${here}options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json
if [[ ${1:-} == *.json || ${1:-} == *.json5 ]]; then file=$1; shift; fi
# module load cuda; source ~/miniconda3/bin/activate spikevrt    # what the cluster needs before python is there
# shellcheck source=scripts/environment.sh
source "${here}scripts/environment.sh"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
# Since SLURM 22.05 srun does not take over sbatch's --cpus-per-task.
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK="${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}"; fi

# A secret that the ranks share: nobody else can join them. It is fresh for each start, and written nowhere.
SPIKEVRT_JOB_KEY=${SPIKEVRT_JOB_KEY:-$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')}
export SPIKEVRT_JOB_KEY
# A free port of this host, which is the first of the job. A port derived from the job's number could be guessed.
if [[ -z ${MASTER_PORT:-} ]]; then
    # shellcheck disable=SC2154 # environment.sh sets it
    MASTER_PORT=$("$python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
    export MASTER_PORT
fi

step='' is_time_up='' is_cancelled='' limit=0
# This shell alone gets USR1, before the time limit (B:USR1): srun hands it to every rank.
on_time_up() {
    is_time_up=1
    limit=$(squeue --noheader --jobs="$job" --format=%e) || limit=''
    # Where SLURM does not answer, or with no time (a job without a limit): some time after this signal.
    limit=$(date -d "${limit:-none}" +%s 2>/dev/null) || limit=$((EPOCHSECONDS + 100))
    [[ -z $step ]] || kill -s USR1 "$step" 2>/dev/null || true
}
# SLURM sends TERM to the ranks itself. Here it means scancel, or that the time limit itself has come.
on_term() { if [[ -z $is_time_up ]] || ((EPOCHSECONDS < limit)); then is_cancelled=1; fi; }
trap on_time_up USR1; trap on_term TERM

srun --kill-on-bad-exit=0 "$python" -u "${here}main_train_vrt.py" --opt "$file" "$@" &
step=$! code=0
while wait "$step" && code=0 || code=$?; kill -0 "$step" 2>/dev/null; do :; done # a signal interrupts wait

# Pre-emption with a grace time signals the ranks alone; SLURM does not requeue a job that then ends by itself.
is_preempted() { [[ $(scontrol --oneliner show job "$job") == *" PreemptTime="[0-9]* ]]; }
# 75: stopped with a checkpoint; 138, 143: the signal came before training could listen. Resume in a new allocation.
if [[ $code =~ ^(75|138|143)$ && -z $is_cancelled ]] && { [[ -n $is_time_up ]] || is_preempted; }; then scontrol requeue "$job"; fi
exit "$code"
