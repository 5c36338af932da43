#!/usr/bin/env bash
# Train on N processes of this machine.
#
# usage: ./launch_train.sh N [FILE] [section.key=value ...] [--resume auto|none|PATH] [--use_amp ...]
#
#   ./launch_train.sh 1 options/vrt/000_train_vrt_sample_rgbspike.json
#   ./launch_train.sh 4 FILE --use_amp train.global_batch_size=8
#
# N=1 starts python, a larger N starts scripts/torchrun_quiet.py. N may be left out if
# NPROC_PER_NODE is set. Platforms that start one process per node set it. FILE defaults to the
# GoPro reference experiment. The exit code is the code of the run.
set -euo pipefail

# What launch.sh starts, and the option file if the user gives none.
main=main_train_vrt.py
default=options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json
# shellcheck source=scripts/launch.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/launch.sh"
