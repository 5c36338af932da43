"""An accelerator of any make: a package brings one to torch, and no program knows its name."""

import json
import re

import pytest
import torch

from tests.dist.launching import run_ranks
from tests.helpers import standin
from tests.helpers.train_files import experiment, history, latest, train, write_options
from tests.helpers.weights_files import make_home
from utils import device as devices
from utils.errors import DistError
from utils.image import imread_rgb

pytestmark = pytest.mark.slow

STANDS_IN = (
    "torch's operators stand in for our kernels, which are for NVIDIA's GPUs; "
    "our own sampling stands in for torchvision's deformable convolution"
)
CPU = {"CUDA_VISIBLE_DEVICES": "-1"}


@pytest.fixture(scope="module")
def accelerator(tmp_path_factory):
    """Variables with which a process has it."""
    if standin.missing():
        pytest.skip(standin.missing())
    return standin.install(tmp_path_factory.mktemp("standin"))


def trained(folder, env, *overrides, ranks=1):
    """The options of a finished run, and what it printed."""
    folder.mkdir()
    options = write_options(folder)
    done = train(options, "train.total_iter=2", *overrides, ranks=ranks, env=env)
    assert done.exit_codes == [0] * ranks, done.text
    return options, done.text


def assert_close(options, expected, rtol=1e-3, atol=1e-5):
    """Whether two runs have the same weights but for rounding."""
    found = latest(options)["model_state_dict"]
    for name, tensor in latest(expected)["model_state_dict"].items():
        torch.testing.assert_close(found[name], tensor, rtol=rtol, atol=atol)


def test_a_run_trains_on_it_as_on_the_cpu_and_says_in_a_line_what_stands_in(tmp_path, accelerator):
    own, said = trained(tmp_path / "own", accelerator)
    on_cpu, said_on_cpu = trained(tmp_path / "cpu", CPU)

    assert f"1 on 1 host: 1 x Stand-in; {STANDS_IN}\n" in said
    about = json.loads((experiment(own) / "environment.json").read_text())
    assert about["device"] == "Stand-in"
    assert "CUDA" not in about
    # Of the device's tensors: a process with torch has ten times as much.
    assert 0.01 < history(own)["train/memory_gb"][-1][1] < 0.15
    assert "1 x CPU, 1 threads; as CUDA_VISIBLE_DEVICES asks\n" in said_on_cpu
    assert_close(own, on_cpu)


def test_two_ranks_exchange_by_the_backend_of_the_device(tmp_path, accelerator):
    own, said = trained(tmp_path / "own", accelerator | {"STANDIN_COUNT": "2"}, ranks=2)
    on_cpu, said_on_cpu = trained(tmp_path / "cpu", CPU, ranks=2)

    assert "Backend: standccl" in said
    assert "Backend: gloo" in said_on_cpu
    assert "2 on 1 host: 2 x Stand-in; ranks exchange by standccl; torch's operators" in said
    assert_close(own, on_cpu)


def test_two_ranks_on_one_device_are_refused(tmp_path, accelerator):
    options = write_options(tmp_path)
    done = train(options, ranks=2, env=accelerator)
    assert done.exit_codes == [2, 2]
    assert re.search(r"ranks (0 and 1|1 and 0) use the same GPU, standin:0 on ", done.text)


def test_mixed_precision_and_fitted_memory_are_those_of_the_device(tmp_path, accelerator):
    options, said = trained(
        tmp_path / "run",
        accelerator,
        "train.amp.enable=true",
        "netG.checkpoint=auto",
        "train.empty_cache=true",
    )

    assert "mixed precision in bfloat16" in said
    assert "of 1.80 GB (kept" in said  # 0.9 of what the device has
    assert all(loss < 0.2 for _, loss in history(options)["train/loss"])


@pytest.mark.parametrize("how", ["the option", "the variable"])
def test_whoever_asks_for_the_cpu_gets_it(tmp_path, accelerator, how):
    asked = {"the option": ((), ["gpu_ids=[]"]), "the variable": (CPU, [])}
    env, overrides = asked[how]
    _, said = trained(tmp_path / "run", accelerator | dict(env), *overrides)

    assert "1 x CPU, 1 threads; as CUDA_VISIBLE_DEVICES asks\n" in said
    assert "Stand-in" not in said


def test_clips_are_restored_on_it_as_on_the_cpu(tmp_path, accelerator):
    home = make_home(tmp_path)
    pictures = {}
    for name, env in (("own", accelerator), ("cpu", CPU)):
        done = run_ranks(
            1, "main_test_vrt.py", "--opt", home / "options.json", "--weights", home / "spike.pth",
            "--output", home / name, "--save", "frames", env=env,
        )  # fmt: skip
        assert done.exit_codes == [0], done.text
        pictures[name] = [
            imread_rgb(path).astype(int) for path in sorted((home / name / "test2").rglob("*.png"))
        ]
        assert ("device: Stand-in; torch's" in done.text) == (name == "own")
    assert len(pictures["own"]) == 4
    for own, on_cpu in zip(pictures["own"], pictures["cpu"], strict=True):
        assert abs(own - on_cpu).max() <= 1


def test_the_doctor_counts_and_names_it(accelerator):
    done = run_ranks(1, "scripts/doctor.py", env=accelerator | {"STANDIN_COUNT": "3"})
    assert "; 3 x Stand-in" in done.text


# ---- What is there, and not used ---------------------------------------------------------------


def reasons(root):
    """Return what is said of devices below `root` that a run on the CPU does not use."""
    return devices.unused(torch.device("cpu"), root)


def made(root, *files):
    """Make empty files below `root`, in place of devices. Return `root`."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


@pytest.fixture
def nobody_asks_for_the_cpu(monkeypatch):
    """Remove the variable by which the tests ask for the CPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("nobody_asks_for_the_cpu")
@pytest.mark.parametrize(("file", "reason"), [
    ("dev/davinci0", "an Ascend NPU is not used: torch_npu is not installed"),
    ("dev/mtgpu.0", "a Moore Threads GPU is not used: torch_musa is not installed"),
    ("dev/kfd", "an AMD GPU is not used: this torch is not built for it (ROCm)"),
])  # fmt: skip
def test_an_accelerator_without_its_torch_is_said_with_what_is_missing(tmp_path, file, reason):
    assert reasons(tmp_path) == []
    assert reasons(made(tmp_path, file)) == [reason]


@pytest.mark.usefixtures("nobody_asks_for_the_cpu")
def test_a_package_that_does_not_load_is_said_with_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "torch_npu.py").write_text("raise OSError('libascendcl.so: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    found = reasons(made(tmp_path, "dev/davinci0"))

    assert found == [
        "an Ascend NPU is not used: torch_npu does not load (libascendcl.so: cannot open)"
    ]


@pytest.mark.usefixtures("nobody_asks_for_the_cpu")
@pytest.mark.parametrize(("address", "is_said"), [("0000:03:00.0", True), ("0000:00:02.0", False)])
def test_an_intel_gpu_is_said_unless_it_is_the_small_one_of_the_processor(
    tmp_path, address, is_said
):
    made(tmp_path, f"sys/devices/{address}/vendor")
    (tmp_path / f"sys/devices/{address}/vendor").write_text("0x8086\n")
    (tmp_path / "sys/class/drm/renderD128").mkdir(parents=True)
    (tmp_path / "sys/class/drm/renderD128/device").symlink_to(tmp_path / f"sys/devices/{address}")
    expected = ["an Intel GPU is not used: this torch is not built for it (xpu)"] * is_said

    assert reasons(tmp_path) == expected


def test_whoever_asks_for_the_cpu_is_told_of_no_accelerator(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert reasons(made(tmp_path, "dev/davinci0")) == []


def test_a_kind_without_a_backend_is_refused_in_words():
    with pytest.raises(DistError, match="torch has no backend for ranks on meta"):
        devices.backend(torch.device("meta"))
