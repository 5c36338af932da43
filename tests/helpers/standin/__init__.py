"""Builds the accelerator that stands in for one that is not here, as an installed package."""

import shutil
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGE = "spikevrt_standin"


def missing() -> str:
    """Return why it cannot be built here, or "" if it can."""
    return "" if shutil.which("g++") else "needs g++, which compiles the accelerator"


def install(folder: Path) -> dict[str, str]:
    """Compile the accelerator, and write it into the folder as an installed package.

    Returns environment variables with which a process finds it there.
    """
    from torch.utils.cpp_extension import include_paths  # it imports setuptools

    torch_folder = Path(torch.__file__).parent
    includes = [word for path in include_paths() for word in ("-isystem", path)]
    libraries = [f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    how = ["-shared", "-fPIC", "-O0", "-std=c++20", "-w"]
    files = [HERE / "device.cpp", "-o", folder / "standin.so"]
    subprocess.run(["g++", *how, *includes, *files, *libraries], check=True)
    shutil.copy(HERE / f"{PACKAGE}.py", folder)
    about = folder / f"{PACKAGE}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[torch.backends]\n{PACKAGE} = {PACKAGE}:register\n")
    # An empty value removes the variable by which the tests ask for the CPU.
    return {"PYTHONPATH": f"{folder}:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
