#!/usr/bin/env bash
# Test on N processes of this machine; clips, and parts of long clips, are shared out, the numbers do not depend on N.
#
# usage: ./launch_test.sh N FILE [section.key=value ...] [--weights PATH ...]
#        ./launch_test.sh N --weights PATH --input PATH --output DIR [...]
#
#   ./launch_test.sh 2 options/vrt/000_train_vrt_sample_rgbspike.json --save comparison
#   ./launch_test.sh 4 --weights models/500_G.pth --input blur/ --spike spikes/ --output restored
#
# FILE: an option file with datasets.test. Without N: NPROC_PER_NODE, as platforms set it that start one process per
# node. More in docs/testing.md. The exit code is the run's own.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit; fi
count=''
if [[ -z ${PET_NPROC_PER_NODE:-${NPROC_PER_NODE:-}} || ${1:-} =~ ^[0-9]+$ ]]; then count=${1:-}; shift || true; fi
if [[ ${1:-} == *.json || ${1:-} == *.json5 ]]; then set -- --opt "$@"; fi
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
exec "$here/scripts/launch.sh" launch_test.sh main_test_vrt.py "$count" "$@"
