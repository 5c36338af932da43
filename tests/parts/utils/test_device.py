"""Accelerators that a package adds to torch: our programs use them without knowing their names.

tests/helpers/standin is such a package. The tests compile it. Its device has the name "Stand-in"
and computes on the CPU. The second half of this file is about accelerators that a machine has and
torch cannot use.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.dist.launching import run_ranks
from tests.helpers import standin
from tests.helpers.train_files import (
    folder_of_run,
    history,
    latest_checkpoint,
    train,
    write_options,
)
from tests.helpers.weights_files import make_home
from utils import device as devices
from utils.errors import DistError
from utils.image import imread_rgb

pytestmark = pytest.mark.slow

# Exit code of a run that the user must start in another way, e.g. with fewer ranks.
CHANGE_START = 2
# The log line of a run on such a device. Our kernels and torchvision's deformable convolution do
# not run on the device. The line says what replaces them.
STANDS_IN = (
    "torch's operators stand in for our kernels, which are for NVIDIA's GPUs; "
    "our own sampling stands in for torchvision's deformable convolution"
)
# Variables with which a process uses no accelerator.
CPU = {"CUDA_VISIBLE_DEVICES": "-1"}


@pytest.fixture(scope="module")
def accelerator(tmp_path_factory) -> dict[str, str]:
    """Give environment variables with which a process finds the accelerator "Stand-in".

    Without a compiler the test is skipped.
    """
    if standin.missing():
        pytest.skip(standin.missing())
    return standin.install(tmp_path_factory.mktemp("standin"))


class TrainedRun(NamedTuple):
    """A finished run of two steps."""

    options: Path  # the option file
    text: str  # what the run printed


def train_two_steps(
    folder: Path, env: dict[str, str], *overrides: str, ranks: int = 1
) -> TrainedRun:
    """Train for two steps."""
    folder.mkdir()
    options = write_options(folder)
    done = train(options, "train.total_iter=2", *overrides, ranks=ranks, env=env)
    assert done.exit_codes == [0] * ranks, done.text
    return TrainedRun(options, done.text)


def assert_same_weights(found: TrainedRun, expected: TrainedRun) -> None:
    """Check that two runs have the same weights but for rounding."""
    weights = latest_checkpoint(found.options)["model_state_dict"]
    for name, tensor in latest_checkpoint(expected.options)["model_state_dict"].items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-5)


# ---- A run on the accelerator ----


@pytest.fixture(scope="module")
def on_device(accelerator, tmp_path_factory) -> TrainedRun:
    """Give a run on the accelerator "Stand-in". It computes on the CPU."""
    return train_two_steps(tmp_path_factory.mktemp("device") / "run", accelerator)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory) -> TrainedRun:
    """Give the same run on the CPU."""
    return train_two_steps(tmp_path_factory.mktemp("cpu") / "run", CPU)


def test_a_run_trains_on_the_accelerator_as_on_the_cpu(on_device, on_cpu):
    assert_same_weights(on_device, on_cpu)


def test_a_run_says_in_a_line_which_parts_are_replaced(on_device):
    assert f"1 on 1 host: 1 x Stand-in; {STANDS_IN}\n" in on_device.text


def test_a_run_says_that_it_is_on_the_cpu_as_asked(on_cpu):
    assert "1 x CPU, 1 thread; as CUDA_VISIBLE_DEVICES asks\n" in on_cpu.text


def test_the_record_of_a_run_names_the_accelerator(on_device):
    about = json.loads((folder_of_run(on_device.options) / "environment.json").read_text())

    assert about["device"] == "Stand-in"
    assert "CUDA" not in about


def test_the_memory_of_a_run_counts_the_tensors_on_the_accelerator(on_device):
    _step, memory_gb = history(on_device.options)["train/memory_gb"][-1]

    # The tensors take less than 0.15 GB. A larger number would be the memory of the whole process,
    # which is ten times as large.
    assert 0.01 < memory_gb < 0.15


def test_two_ranks_exchange_by_the_backend_of_the_device(tmp_path, accelerator):
    # The package standin reads the number of its devices from STANDIN_COUNT. Ranks exchange tensors
    # by its backend, "standccl".
    two_devices = accelerator | {"STANDIN_COUNT": "2"}

    found = train_two_steps(tmp_path / "device", two_devices, ranks=2)
    expected = train_two_steps(tmp_path / "cpu", CPU, ranks=2)

    assert "Backend: standccl" in found.text
    assert "Backend: gloo" in expected.text
    message = "2 on 1 host: 2 x Stand-in; ranks exchange by standccl; torch's operators"
    assert message in found.text
    assert_same_weights(found, expected)


def test_two_ranks_on_one_device_are_refused(tmp_path, accelerator):
    done = train(write_options(tmp_path), ranks=2, env=accelerator)

    assert done.exit_codes == [CHANGE_START, CHANGE_START]  # 2
    assert re.search(r"ranks (0 and 1|1 and 0) use the same GPU, standin:0 on ", done.text)


def test_mixed_precision_and_fitted_memory_follow_the_device(tmp_path, accelerator):
    run = train_two_steps(
        tmp_path / "run",
        accelerator,
        "train.amp.enable=true",
        "netG.checkpoint=auto",
        "train.empty_cache=true",
    )

    assert "mixed precision in bfloat16" in run.text
    # The device has 2 GB. A step may use 0.9 of this memory (GPU_SHARE of models/network_vrt.py),
    # 1.80 GB. The line of the log goes on with the memory of the tensors that are kept for the
    # backward pass: "(kept ... GB".
    assert "of 1.80 GB (kept" in run.text
    losses = [loss for _step, loss in history(run.options)["train/loss"]]
    assert max(losses) < 0.2


@pytest.mark.parametrize(
    ("variables", "overrides"),
    [
        pytest.param({}, ["gpu_ids=[]"], id="by the option"),
        pytest.param(CPU, [], id="by CUDA_..."),  # CUDA_VISIBLE_DEVICES is -1
    ],
)
def test_a_run_that_asks_for_the_cpu_gets_the_cpu(tmp_path, accelerator, variables, overrides):
    run = train_two_steps(tmp_path / "run", accelerator | variables, *overrides)

    # With gpu_ids=[], the run itself sets CUDA_VISIBLE_DEVICES to "" (`choose_gpus` of
    # utils/dist/gpu.py). So the log has the same line as with a variable from outside.
    assert "1 x CPU, 1 thread; as CUDA_VISIBLE_DEVICES asks\n" in run.text
    assert "Stand-in" not in run.text


class RestoredClips(NamedTuple):
    """The test clips after they were restored."""

    text: str  # what the program printed
    frames: list[np.ndarray]  # the 4 frames of clip test2


def restore_clips(home: Path, name: str, env: dict[str, str]) -> RestoredClips:
    """Restore the test clips into home/name."""
    files = ["--opt", home / "options.json", "--weights", home / "spike.pth"]
    out = home / name
    done = run_ranks(1, "main_test_vrt.py", *files, "--output", out, "--save", "frames", env=env)
    assert done.exit_codes == [0], done.text
    frames = [imread_rgb(path).astype(int) for path in sorted((out / "test2").rglob("*.png"))]
    return RestoredClips(done.text, frames)


def test_clips_are_restored_on_the_accelerator_as_on_the_cpu(tmp_path, accelerator):
    home = make_home(tmp_path)

    found = restore_clips(home, "device", accelerator)
    expected = restore_clips(home, "cpu", CPU)

    assert "device: Stand-in; torch's" in found.text
    assert "device: Stand-in; torch's" not in expected.text
    assert len(found.frames) == 4
    # Rounding may change a value by one level of 8 bits.
    for of_device, of_cpu in zip(found.frames, expected.frames, strict=True):
        assert np.abs(of_device - of_cpu).max() <= 1


def test_the_doctor_counts_and_names_the_accelerators(accelerator):
    done = run_ranks(1, "scripts/doctor.py", env=accelerator | {"STANDIN_COUNT": "3"})

    assert "; 3 x Stand-in" in done.text


# ---- What is there, and not used ---------------------------------------------------------------


def reasons(root: Path) -> list[str]:
    """Return the notes on devices below `root` that a run on the CPU does not use."""
    return devices.notes_on_unused(torch.device("cpu"), root)


def make_files(root: Path, *files: str) -> Path:
    """Make empty files below `root`, in place of devices. Return `root`.

    Linux shows each device as a file, e.g. /dev/kfd for GPUs of AMD.
    """
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


@pytest.fixture
def nobody_asks_for_the_cpu(monkeypatch) -> None:
    """Remove the variable by which the tests ask for the CPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("nobody_asks_for_the_cpu")
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        pytest.param(
            "dev/davinci0", "an Ascend NPU is not used: torch_npu is not installed", id="Ascend"
        ),
        pytest.param(
            "dev/mtgpu.0",
            "a Moore Threads GPU is not used: torch_musa is not installed",
            id="Moore Threads",
        ),
        pytest.param(
            "dev/kfd", "an AMD GPU is not used: this torch is not built for it (ROCm)", id="AMD"
        ),
    ],
)
def test_an_accelerator_without_its_torch_is_named_with_the_missing_package(tmp_path, file, reason):
    assert reasons(tmp_path) == []
    assert reasons(make_files(tmp_path, file)) == [reason]


@pytest.mark.usefixtures("nobody_asks_for_the_cpu")
def test_a_package_that_does_not_load_is_named_with_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "torch_npu.py").write_text("raise OSError('libascendcl.so: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)

    found = reasons(make_files(tmp_path, "dev/davinci0"))

    assert found == [
        "an Ascend NPU is not used: torch_npu does not load (libascendcl.so: cannot open)"
    ]


@pytest.mark.usefixtures("nobody_asks_for_the_cpu")
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        pytest.param(
            "0000:03:00.0",
            ["an Intel GPU is not used: this torch is not built for it (xpu)"],
            id="a card",
        ),
        # The small GPU within an Intel processor has this address on the PCI bus.
        pytest.param("0000:00:02.0", [], id="the GPU of the processor"),
    ],
)
def test_an_intel_gpu_is_named_unless_it_is_a_part_of_the_processor(tmp_path, address, expected):
    device = tmp_path / f"sys/devices/{address}"
    make_files(tmp_path, f"sys/devices/{address}/vendor")
    (device / "vendor").write_text("0x8086\n")  # the number of Intel
    (tmp_path / "sys/class/drm/renderD128").mkdir(parents=True)
    (tmp_path / "sys/class/drm/renderD128/device").symlink_to(device)

    assert reasons(tmp_path) == expected


def test_a_run_that_asks_for_the_cpu_is_not_told_of_accelerators(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert reasons(make_files(tmp_path, "dev/davinci0")) == []


def test_a_kind_of_device_without_a_backend_is_refused_in_words():
    with pytest.raises(DistError, match="torch has no backend for ranks on meta"):
        devices.backend(torch.device("meta"))
