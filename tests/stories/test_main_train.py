"""Training from the front door: what a run leaves, resume, several ranks, the modes of a step.

Each test starts main_train_vrt.py as a user does, with a tiny network on clips of 32 x 32 pixels
(tests/helpers/train_files.py). Then it reads the files and the output of the run. The tests of the
first part share one finished run.
"""

import json
import re
import shutil

import pytest
import torch

from main_train_vrt import read_options
from tests.dist.launching import ROOT, run_ranks
from tests.helpers.checked import present
from tests.helpers.terminal import in_terminal
from tests.helpers.train_files import (
    MAIN,
    events_of,
    experiment,
    history,
    latest,
    same,
    state_of,
    train,
    write_options,
)
from utils.run.history import newest_options


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Give the option file of a finished run, and its output.

    The run has four steps on one rank, with a validation and a checkpoint after steps 2 and 4.
    """
    options = write_options(tmp_path_factory.mktemp("finished"))
    result = train(
        options,
        "logging.use_tensorboard=true",
        "train.checkpoint_test=2",
        "train.checkpoint_save=2",
    )
    assert result.exit_codes == [0], result.text
    return options, result


def test_a_run_leaves_log_weights_checkpoints_curves_and_pictures(finished):
    options, result = finished
    folder = experiment(options)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    weights = {f"models/{step}_{letter}.pth" for step in (2, 4) for letter in "GE"}
    pictures = {f"images/test{clip}/{step}.png" for step in (2, 4) for clip in range(3)}
    checkpoints = {f"checkpoints/checkpoint_{name}.pth" for name in ("latest", "best")}
    overview = {
        "training_history.jsonl",
        "training_history.json",
        "curves.png",
        "report.html",
        "environment.json",
    }
    assert left >= weights | pictures | checkpoints | overview | {"log/train.log"}
    page = (folder / "report.html").read_text()
    assert page.count('type="range"') == 3
    assert f"main_train_vrt.py --opt {options}" in page
    assert any(name.startswith("tb_logger/events") for name in left)
    assert any(name.startswith("options/") for name in left)
    log = (folder / "log" / "train.log").read_text()
    line = (
        r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] Epoch: 1, Iter: 3, Loss: \d\.\d{4}, lr: .*, it/s: \d"
    )

    assert re.search(line, log, re.MULTILINE)
    assert result.text.count("validating 3 clips, tiles of 12 frames x 256 px, ") == 2
    assert "Finished at iter 4" in result.text
    assert re.search(r"^mean over clips  ", result.text, re.MULTILINE)


def test_the_version_of_the_project_is_in_all_that_a_run_leaves(finished):
    folder = experiment(finished[0])
    shown = {
        run_ranks(1, program, "--version").stdout[0].strip()
        for program in (MAIN, "main_test_vrt.py")
    }
    (version,) = (text.removeprefix("SpikeVRT ") for text in shown)
    assert f'\nversion = "{version}"' in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert latest(finished[0])["version"] == version
    assert f"<dt>SpikeVRT</dt><dd>{version}</dd>" in (folder / "report.html").read_text()
    record = present(newest_options(folder / "options"))

    assert json.loads(record.read_text())["$version"] == version
    assert read_options(["--opt", str(record)]).task == "run"


def test_event_files_hold_options_hyperparameters_strips_and_the_scores_of_each_clip(finished):
    messages = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    events = events_of(finished[0])
    clips = {f"clips/{metric}/test{clip}" for metric in ("psnr", "ssim") for clip in range(3)}
    tags = events.Tags()
    assert set(tags["scalars"]) >= clips | {
        "train/loss",
        "train/lr",
        "train/it_per_s",
        "val/psnr",
        "val/ssim",
    }
    means = [event.value for event in events.Scalars("val/psnr")]
    of_clips = [
        [event.value for event in events.Scalars(f"clips/psnr/test{clip}")] for clip in range(3)
    ]
    assert means == pytest.approx(
        [sum(values) / 3 for values in zip(*of_clips, strict=True)], abs=1e-4
    )
    assert set(tags["images"]) == {f"val/test{clip}" for clip in range(3)}
    (text,) = events.Tensors("options/text_summary")
    assert b'"G_optimizer_lr": 0.001' in text.tensor_proto.string_val[0]
    contents = events.PluginTagToContent("hparams")
    read = messages.HParamsPluginData.FromString
    about = {name: read(content) for name, content in contents.items()}
    values = about["_hparams_/session_start_info"].session_start_info.hparams
    assert values["train.G_optimizer_lr"].number_value == 1e-3
    assert values["netG.net_type"].string_value == "vrt"
    metrics = {info.name.tag for info in about["_hparams_/experiment"].experiment.metric_infos}

    assert metrics == {"val/psnr", "val/ssim", "train/loss"} <= set(tags["scalars"])


def test_saved_weights_load_into_the_network_without_trust(finished):
    options, _ = finished
    folder = experiment(options)
    weights = torch.load(folder / "models" / "4_G.pth", weights_only=True)
    state = torch.load(folder / "checkpoints" / "checkpoint_latest.pth", weights_only=True)
    previous = torch.load(
        folder / "checkpoints" / "checkpoint_latest_previous.pth", weights_only=True
    )

    assert previous["step"] == 2  # the last step is saved before and after its validation
    assert weights["iter"] == 4
    assert state["step"] == 4
    assert weights["options"]["netG"]["net_type"] == "vrt"
    assert same(weights["params"], state["model_state_dict"])


# wandb takes seconds of a core. tests/dist/test_life.py has a run with wandb for each `make test`.
@pytest.mark.slow
def test_weights_and_biases_runs_offline_and_the_key_reaches_no_file(tmp_path):
    options = write_options(tmp_path)
    key = "0123456789abcdef0123456789abcdef01canary"  # of the length that wandb asks for
    wandb = (
        "logging.use_wandb=true",
        f"logging.wandb_api_key={key}",
        "logging.use_tensorboard=true",
    )
    # The first start is on a terminal and has no key, for which wandb itself would ask there. The
    # second start has a key, and asks for an offline run. Both are offline.
    env = {"HOME": str(tmp_path), "WANDB_MODE": ""}
    code, written = in_terminal(
        MAIN, "--opt", str(options), "train.total_iter=1", wandb[0], env=env
    )
    second = train(
        options, "train.total_iter=2", *wandb, "datasets.test={}", env={"WANDB_MODE": "offline"}
    )
    first = written.decode()
    assert code == 0, first + second.text
    assert second.exit_codes == [0], first + second.text
    assert "this run is recorded offline; upload it later with: wandb sync" in first
    runs = {path.name.split("-")[-1] for path in experiment(options).glob("wandb/offline-run-*")}
    assert runs == {latest(options)["wandb_id"]}
    assert key not in first + second.text
    found = {
        path: path.read_bytes() for path in (tmp_path / "experiments").rglob("*") if path.is_file()
    }
    assert found
    assert not [path for path, content in found.items() if key.encode() in content]
    records = [content for path, content in found.items() if path.suffix == ".wandb"]

    # The records of wandb have the options.
    assert records
    assert all(b"G_optimizer_lr" in content for content in records)


def test_resume_gives_the_same_weights_as_no_interruption(tmp_path):
    # One training clip is left, which makes an epoch of 4 steps. So the stop after step 2 is in the
    # middle of the first epoch, and the end after step 5 is in the second one.
    options = write_options(tmp_path)
    for root in ("GOPRO_Large", "GOPRO_Large_spike_seq"):
        shutil.rmtree(tmp_path / root / "train/train1")
    # With a prefix, the last start is a new Python and no fork. So the result must not depend on
    # what differs between two Pythons, e.g. the hash of a string.
    train(options, "task=whole", "train.total_iter=5", "datasets.test={}")
    train(options, "task=parts", "train.total_iter=2", "datasets.test={}")
    second = train(options, "task=parts", "train.total_iter=5", "datasets.test={}", prefix=("env",))
    assert "at iter 2" in second.text, second.text
    assert same(state_of(options, "whole"), state_of(options, "parts"))
    whole_loss = history(options, "whole")["train/loss"]
    parts_loss = history(options, "parts")["train/loss"]

    assert whole_loss == parts_loss


def test_impossible_tiles_are_refused_before_the_first_step(tmp_path):
    options = write_options(tmp_path)
    result = train(options, "val.size_patch_testing=7")

    assert result.exit_codes == [2], result.text
    assert "tiles of 7 that overlap by 20" in result.text, result.text
    assert not (experiment(options) / "checkpoints").exists()
    assert "starting at iter" not in result.text


def test_validation_writes_the_middle_frames_where_asked(finished):
    options, _ = finished
    result = train(options, "val.save_img=true", "val.center_frame_only=true")
    assert result.exit_codes == [0], result.text
    written = {
        f"{path.parent.name}/{path.name}" for path in experiment(options).glob("images/*/0*.png")
    }

    assert written == {"test0/000001.png", "test1/000001.png", "test2/000002.png"}


def test_two_ranks_train_on_different_samples_and_only_rank_0_writes(tmp_path):
    options = write_options(tmp_path)
    result = train(options, "train.total_iter=2", "debug.every=1", "datasets.test={}", ranks=2)
    assert result.exit_codes == [0, 0], result.text
    line = r"\[Rank (\d)/2\] Step (\d), Batch size: 1, Loss: \d+\.\d+, Samples: (\S+)"
    seen = [re.findall(line, out) for out in result.stdout]

    assert [[(rank, step) for rank, step, _ in found] for found in seen] == [
        [("0", "1"), ("0", "2")], [("1", "1"), ("1", "2")],
    ]  # fmt: skip
    assert [key for _, _, key in seen[0]] != [key for _, _, key in seen[1]]
    assert "Iter:" in result.stdout[0]
    assert "Iter:" not in result.stdout[1] + result.stderr[1]


@pytest.mark.parametrize("overrides", [
    "--use_amp train.G_scheduler_type=MultiStepLR train.G_scheduler_milestones=[2] "
    "netG.fusion=none",
    "train.amp.enable=true train.amp.dtype=float16 train.G_optimizer_type=adamw "
    "train.G_optimizer_clipgrad=0.1 train.accumulation_steps=2",
])  # fmt: skip
def test_the_modes_of_a_step_train_and_resume(tmp_path, overrides):
    options = write_options(tmp_path)
    overrides = overrides.split()
    first = train(options, "train.total_iter=1", *overrides, "datasets.test={}")
    second = train(options, "train.total_iter=2", *overrides)

    assert first.exit_codes == [0], first.text + second.text
    assert second.exit_codes == [0], first.text + second.text
    assert [step for step, _ in history(options)["train/loss"]] == [1, 2]
    assert all(
        torch.isfinite(value).all() for value in latest(options)["model_state_dict"].values()
    )


@pytest.mark.parametrize(
    "override",
    [
        "use_static_graph=true",
        # The same story with the other way in which DDP finds the parameters of a step.
        pytest.param("find_unused_parameters=true", marks=pytest.mark.slow),
    ],
)
def test_frozen_parts_are_released_on_all_ranks_without_a_restart(tmp_path, override):
    options = write_options(tmp_path)
    frozen = ("train.fix_iter=3", 'train.fix_keys=["spynet","deform"]', "train.fix_lr_mul=0.5")
    recomputed = (
        "netG.use_checkpoint_attn=true",
        "netG.use_checkpoint_ffn=true",
        "train.checkpoint_save=1",
    )
    result = train(options, override, *frozen, *recomputed, "datasets.test={}", ranks=2)
    assert result.exit_codes == [0, 0], result.text
    files = [experiment(options) / f"models/{step}_G.pth" for step in (1, 2, 4)]
    weights = [torch.load(file, weights_only=True)["params"] for file in files]
    slow = [key for key in weights[0] if "deform" in key and key.endswith("weight")]

    assert slow
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in slow)
    assert any(not torch.equal(weights[1][key], weights[2][key]) for key in slow)
