"""Builds an accelerator for tests, as an installed package: "standin".

It takes the place of an accelerator of a vendor, which the machine of the tests need not have.
tests/parts/utils/test_device.py calls `missing` and `install`. device.cpp is the accelerator, and
spikevrt_standin.py registers it with torch.
"""

import shutil
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGE = "spikevrt_standin"


def missing() -> str:
    """Return why the accelerator cannot be built on this machine, or "" if it can."""
    return "" if shutil.which("g++") else "needs g++, which compiles the accelerator"


def install(folder: Path) -> dict[str, str]:
    """Compile the accelerator, and write it into the folder as an installed package.

    Returns environment variables with which a process finds the package there.
    """
    _compile(folder / "standin.so")
    shutil.copy(HERE / f"{PACKAGE}.py", folder)
    # These two files make it an installed package. torch imports each package that has an entry
    # point of the group torch.backends, and calls the function that the entry point names.
    about = folder / f"{PACKAGE}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[torch.backends]\n{PACKAGE} = {PACKAGE}:register\n")
    # An empty value removes the variable by which the tests ask for the CPU.
    return {"PYTHONPATH": f"{folder}:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}


def _compile(library: Path) -> None:
    """Compile device.cpp to a library, against the installed torch."""
    from torch.utils.cpp_extension import include_paths  # here, because it imports setuptools

    includes = []
    for path in include_paths():
        includes += ["-isystem", path]
    torch_libraries = Path(torch.__file__).parent / "lib"
    # -O0: without optimization, because the compiler is then fastest. -w: no warnings.
    options = ["-shared", "-fPIC", "-O0", "-std=c++20", "-w"]
    source = HERE / "device.cpp"
    links = [f"-L{torch_libraries}", "-ltorch_cpu", "-lc10"]
    command = ["g++", *options, *includes, source, "-o", library, *links]
    subprocess.run(command, check=True)
