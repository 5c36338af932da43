#!/usr/bin/env bash
# Try other versions of torch, and of Python: make a virtual environment for each version (about
# 5 GB), and run the fast tests in it.
#
# usage: lab/try_versions.sh [VERSION ...]     default: the oldest supported, 2.11.0 and the newest
#
#   PYTHON=python3.10 lab/try_versions.sh 2.8.0
#   TESTS="tests" lab/try_versions.sh 2.8.0    all tests instead of the fast ones
#
# VERSION is a version of torch; "newest" is what requirements.txt installs today. The environments
# are kept in .venvs/. The exit code is 1 if a test failed. The failed versions are printed at the
# end.
set -euo pipefail

# --help prints the comment above: the lines from line 2 to `set`, without "# ".
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." # the repository
if [[ $# -eq 0 ]]; then
    # The oldest supported version, from the line "torch>=2.8,..." of requirements.txt: 2.8.0.
    oldest=$(sed -n 's/^torch>=\([0-9.]*\).*/\1.0/p' requirements.txt)
    set -- "$oldest" 2.11.0 newest
fi
fast=(
    # Launchers, two ranks, signals.
    tests/stories/test_launch.py
    tests/dist/test_torchrun.py
    tests/dist/test_dist.py
    # The network gives the stored results.
    tests/parts/models/test_vrt_modules.py
    tests/parts/models/test_spynet.py
    tests/parts/models/test_network_vrt.py
    tests/parts/models/test_block.py
    # Training, resume, weights.
    tests/stories/test_main_train.py
    tests/stories/test_checkpoint.py
    tests/parts/models/test_weights.py
    # Spikes and options.
    tests/parts/data/test_spike_formats.py
    tests/parts/data/test_spike_represent.py
    tests/parts/utils/test_option.py
    tests/parts/utils/test_option_files.py
)
read -r -a tests <<< "${TESTS:-${fast[*]}}" # the words of $TESTS, else the fast tests
python=${PYTHON:-python3}
failed=()
for version in "$@"; do
    python_version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
    name=python$python_version-torch$version # e.g. python3.11-torch2.8.0
    home=$PWD/.venvs/$name
    # The file .installed says that an earlier call has installed everything. "newest" may be
    # another version today, so it is always installed.
    if [[ ! -e $home/.installed || $version == newest ]]; then
        "$python" -m venv "$home"
        package=torch
        if [[ $version != newest ]]; then
            package="torch==$version"
        fi
        "$home/bin/python" -m pip install --quiet --upgrade "$package" -r requirements-test.txt
        touch "$home/.installed"
    fi
    echo "== $name"
    # The launchers use the active environment, so make this one active.
    if ! VIRTUAL_ENV=$home PATH=$home/bin:$PATH OMP_NUM_THREADS=1 \
        "$home/bin/python" -m pytest -n 3 --dist loadscope "${tests[@]}"; then
        failed+=("$name")
    fi
done
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
