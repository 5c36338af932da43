#!/usr/bin/env bash
# Test on N processes of this machine. The clips, and the parts of long clips, are divided among the
# processes. The results do not depend on N.
#
# usage: ./launch_test.sh N FILE [section.key=value ...] [--weights PATH ...]
#        ./launch_test.sh N --weights PATH --input PATH --output DIR [...]
#
#   ./launch_test.sh 2 options/vrt/000_train_vrt_sample_rgbspike.json --save comparison
#   ./launch_test.sh 4 --weights models/500_G.pth --input blur/ --spike spikes/ --output restored
#
# FILE is an option file with datasets.test. N may be left out if NPROC_PER_NODE is set. Platforms
# that start one process per node set it. More in docs/testing.md. The exit code is the code of the
# run.
set -euo pipefail

# What launch.sh starts. There is no option file if the user gives none.
main=main_test_vrt.py
default=''
# shellcheck source=scripts/launch.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/launch.sh"
