#!/usr/bin/env bash
# Train on N processes of this machine.
#
# usage: ./launch_train.sh N [FILE] [section.key=value ...] [--resume auto|none|PATH] [--use_amp ...]
#
#   ./launch_train.sh 1 options/vrt/000_train_vrt_sample_rgbspike.json
#   ./launch_train.sh 4 FILE --use_amp train.accumulation_steps=2
#
# N=1: plain python; N>1: torchrun. Without N: NPROC_PER_NODE, as platforms set it that start one process per node.
# FILE defaults to the GoPro reference experiment. The exit code is the run's own.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit; fi
count=''
if [[ -z ${PET_NPROC_PER_NODE:-${NPROC_PER_NODE:-}} || ${1:-} =~ ^[0-9]+$ ]]; then count=${1:-}; shift || true; fi
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
file=$here/options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json
if [[ ${1:-} == *.json || ${1:-} == *.json5 ]]; then file=$1; shift; fi
exec "$here/scripts/launch.sh" launch_train.sh main_train_vrt.py "$count" --opt "$file" "$@"
