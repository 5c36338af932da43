#!/usr/bin/env bash
# Try other versions of torch, and of Python: a virtual environment for each (about 5 GB) and the fast tests in it.
#
# usage: lab/try_versions.sh [VERSION ...]                   default: the oldest supported, 2.11.0 and the newest
#
#   PYTHON=python3.10 lab/try_versions.sh 2.8.0
#   TESTS="tests" lab/try_versions.sh 2.8.0                  all tests instead of the fast ones
#
# VERSION: of torch; "newest": what requirements.txt installs today. The environments are kept in .venvs/. Exit code 1
# if a test failed; the failed versions are printed at the end.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit; fi
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
if [[ $# -eq 0 ]]; then
    set -- "$(sed -n 's/^torch>=\([0-9.]*\).*/\1.0/p' requirements.txt)" 2.11.0 newest
fi
fast=(
    tests/stories/test_launch.py tests/dist/test_torchrun.py tests/dist/test_dist.py # launchers, two ranks, signals
    tests/parts/models/test_vrt_modules.py tests/parts/models/test_spynet.py tests/parts/models/test_network_vrt.py tests/parts/models/test_block.py # golden vectors
    tests/stories/test_main_train.py tests/stories/test_checkpoint.py tests/parts/models/test_weights.py # training, resume, weights
    tests/parts/data/test_spike_formats.py tests/parts/data/test_spike_represent.py tests/parts/utils/test_option.py tests/parts/utils/test_option_files.py
)
read -r -a tests <<< "${TESTS:-${fast[*]}}"
python=${PYTHON:-python3}
failed=()
for version in "$@"; do
    name=python$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')-torch$version
    home=$PWD/.venvs/$name
    if [[ ! -e $home/.installed || $version == newest ]]; then
        "$python" -m venv "$home"
        pin=torch; [[ $version == newest ]] || pin="torch==$version"
        "$home/bin/python" -m pip install --quiet --upgrade "$pin" -r requirements-test.txt
        touch "$home/.installed"
    fi
    echo "== $name"
    # The launchers use the active environment.
    VIRTUAL_ENV=$home PATH=$home/bin:$PATH OMP_NUM_THREADS=1 "$home/bin/python" -m pytest -n 3 --dist loadscope "${tests[@]}" ||
        failed+=("$name")
done
if [[ ${#failed[@]} -gt 0 ]]; then echo "failed: ${failed[*]}"; exit 1; fi
