#!/usr/bin/env bash
# Train under SLURM:   sbatch submit_job.sh [FILE] [section.key=value ...]
# Adapt the lines below to the cluster, or override them: sbatch --nodes=2 --ntasks-per-node=4 submit_job.sh FILE
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

file=options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json
if [[ ${1:-} == *.json || ${1:-} == *.json5 ]]; then file=$1; shift; fi
# SLURM runs a copy of this script from its spool folder: the repository is where sbatch was called.
cd "${SLURM_SUBMIT_DIR:-.}"

if [[ -n ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]]; then python=python
elif [[ -x .venv/bin/python ]]; then python=.venv/bin/python
else python=python3; fi

export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export NCCL_ASYNC_ERROR_HANDLING="${NCCL_ASYNC_ERROR_HANDLING:-1}" # the old name
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
if [[ -z ${NCCL_IB_DISABLE:-} && -z $(ls -A /sys/class/infiniband 2>/dev/null) ]]; then export NCCL_IB_DISABLE=1; fi

srun --kill-on-bad-exit=0 "$python" -u main_train_vrt.py --opt "$file" "$@" &
step=$!
# The time limit signals this shell alone (B:USR1): pass it on to srun, which hands it to every rank.
trap 'kill -s USR1 "$step" 2>/dev/null || true' USR1 TERM
code=0
while wait "$step" && code=0 || code=$?; kill -0 "$step" 2>/dev/null; do :; done # a signal interrupts wait
# 75: stopped with a checkpoint; 138: USR1 came before training could listen. Go on in a new allocation.
if [[ $code -eq 75 || $code -eq 138 ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
