"""Training as a user starts it: the files of a run, resume, several ranks, the modes of a step.

Each test starts main_train_vrt.py as a user does, with a tiny network on clips of 32 x 32 pixels
(tests/helpers/train_files.py). Then it reads the files and the output of the run. The tests of the
first part share one finished run.

What is tested: utils/run/run.py has the steps of a run, models/model_vrt.py has the training step,
and utils/run/experiment.py writes the files of a run.
"""

import json
import re
import shutil

import pytest
import torch

from main_train_vrt import read_options
from tests.dist.launching import ROOT, run_ranks
from tests.helpers.checked import not_none
from tests.helpers.terminal import run_in_terminal
from tests.helpers.train_files import (
    MAIN,
    equal_checkpoints,
    events_of,
    folder_of_run,
    history,
    latest_checkpoint,
    state_of,
    train,
    write_options,
)
from utils.run.report import newest_options

# Exit code of a run whose options are wrong.
WRONG_OPTIONS = 2

# ---- The files of a run ----


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Give the option file of a finished run, and its output.

    The run has four steps on one rank, with a validation and a checkpoint after steps 2 and 4.
    """
    options = write_options(tmp_path_factory.mktemp("finished"))
    result = train(
        options,
        "logging.use_tensorboard=true",
        "logging.use_report=true",
        "train.checkpoint_test=2",
        "train.checkpoint_save=2",
    )
    assert result.exit_codes == [0], result.text
    return options, result


def files_below(folder):
    """Return the paths of all files below a folder, relative to it, as texts."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_run_leaves_log_weights_checkpoints_curves_and_pictures(finished_run):
    options, _ = finished_run

    left = files_below(folder_of_run(options))

    assert left >= {
        "log/train.log",
        # Weights of the network (G) and of its moving average (E).
        "models/2_G.pth",
        "models/2_E.pth",
        "models/4_G.pth",
        "models/4_E.pth",
        "checkpoints/checkpoint_latest.pth",
        "checkpoints/checkpoint_best.pth",
        "training_history.jsonl",
        "training_history.json",
        "curves.png",
        "report.html",
        "environment.json",
    }
    # Each validation leaves a strip of pictures of each clip.
    for clip in range(3):
        assert {f"images/test{clip}/2.png", f"images/test{clip}/4.png"} <= left
    assert any(name.startswith("tb_logger/events") for name in left)
    assert any(name.startswith("options/") for name in left)


def test_the_page_of_a_run_shows_each_clip_and_the_command(finished_run):
    options, _ = finished_run

    page = (folder_of_run(options) / "report.html").read_text()

    assert page.count('type="range"') == 3  # a slider for each clip
    assert f"main_train_vrt.py --opt {options}" in page


# E.g. "[2026-11-27 20:00:00] Epoch: 1, Iter: 3, Loss: 0.1234, lr: 1.00e-03, it/s: 5.1".
LOG_LINE = (
    r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] Epoch: 1, Iter: 3, Loss: \d\.\d{4}, lr: .*, it/s: \d"
)


def test_the_log_has_a_line_for_a_step(finished_run):
    options, _ = finished_run

    log = (folder_of_run(options) / "log" / "train.log").read_text()

    assert re.search(LOG_LINE, log, re.MULTILINE)


def test_the_output_tells_of_validations_scores_and_the_end(finished_run):
    _, result = finished_run

    assert result.text.count("validating 3 clips, tiles of 12 frames x 256 px, ") == 2
    assert re.search(r"^mean over clips  ", result.text, re.MULTILINE)
    assert "Finished at iter 4" in result.text


def version_of(program):
    """Return the version that a program prints, e.g. "SpikeVRT 0.3.0" -> "0.3.0"."""
    printed = run_ranks(1, program, "--version").stdout[0].strip()
    return printed.removeprefix("SpikeVRT ")


def test_the_version_of_the_project_is_in_all_that_a_run_leaves(finished_run):
    options, _ = finished_run
    folder = folder_of_run(options)

    version = version_of(MAIN)

    assert version_of("main_test_vrt.py") == version
    # The version is in these files of the project.
    assert f'\nversion = "{version}"' in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
    # The version is in these files of the run: the checkpoint, the page, and the record of its
    # options. The record can be read as an option file.
    assert latest_checkpoint(options)["version"] == version
    assert f"<dt>SpikeVRT</dt><dd>{version}</dd>" in (folder / "report.html").read_text()
    record = not_none(newest_options(folder / "options"))
    assert json.loads(record.read_text())["$version"] == version
    assert read_options(["--opt", str(record)]).task == "run"


def test_saved_weights_load_into_the_network_without_trust(finished_run):
    options, _ = finished_run
    folder = folder_of_run(options)

    # With weights_only, torch runs no code that a file contains.
    weights = torch.load(folder / "models" / "4_G.pth", weights_only=True)
    state = latest_checkpoint(options)

    assert weights["iter"] == 4
    assert state["step"] == 4
    assert weights["options"]["netG"]["net_type"] == "vrt"
    assert equal_checkpoints(weights["params"], state["model_state_dict"])


def test_the_former_checkpoint_has_the_state_of_the_former_step(finished_run):
    options, _ = finished_run
    checkpoints = folder_of_run(options) / "checkpoints"

    previous = torch.load(checkpoints / "checkpoint_latest_previous.pth", weights_only=True)

    # The run saves step 2, step 4 before its validation, and step 4 after its validation. The
    # former checkpoint must be of step 2, and not the first checkpoint of step 4.
    assert previous["step"] == 2


def test_validation_writes_the_middle_frames_where_asked(finished_run):
    options, _ = finished_run

    # The run is finished, so this start only validates.
    result = train(options, "val.save_img=true", "val.center_frame_only=true")

    assert result.exit_codes == [0], result.text
    written = set()
    for path in folder_of_run(options).glob("images/*/0*.png"):
        written.add(f"{path.parent.name}/{path.name}")
    # The clips have 2, 3 and 4 frames. The middle of n frames is frame n // 2: 1, 1 and 2.
    assert written == {"test0/000001.png", "test1/000001.png", "test2/000002.png"}


# ---- The event files of TensorBoard ----


@pytest.fixture(scope="module")
def events(finished_run):
    """Give the events of the finished run."""
    options, _ = finished_run
    return events_of(options)


def values_of(events, tag):
    """Return the values of a curve, one for each step at which it was written."""
    return [event.value for event in events.Scalars(tag)]


def test_event_files_hold_the_curves(events):
    assert set(events.Tags()["scalars"]) >= {
        "train/loss",
        "train/lr",
        "train/it_per_s",
        "val/psnr",
        "val/ssim",
    }


def test_event_files_hold_the_scores_of_each_clip_whose_mean_is_the_score_of_the_validation(events):
    scalars = events.Tags()["scalars"]
    for clip in range(3):
        assert f"clips/ssim/test{clip}" in scalars

    means = []
    for validation in range(2):
        of_clips = [values_of(events, f"clips/psnr/test{clip}")[validation] for clip in range(3)]
        means.append(sum(of_clips) / 3)

    # Event files hold numbers in float32, so they are rounded.
    assert values_of(events, "val/psnr") == pytest.approx(means, abs=1e-4)


def test_event_files_hold_the_strip_of_each_clip(events):
    assert set(events.Tags()["images"]) == {"val/test0", "val/test1", "val/test2"}


def test_event_files_hold_the_options_as_a_text(events):
    (text,) = events.Tensors("options/text_summary")

    assert b'"G_optimizer_lr": 0.001' in text.tensor_proto.string_val[0]


def test_event_files_hold_the_options_as_hyperparameters(events):
    messages = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    contents = events.PluginTagToContent("hparams")

    # There are two records. One has the options of this run. The other record has the values that
    # TensorBoard compares between runs.
    start = messages.HParamsPluginData.FromString(contents["_hparams_/session_start_info"])
    experiment_record = messages.HParamsPluginData.FromString(contents["_hparams_/experiment"])

    values = start.session_start_info.hparams
    assert values["train.G_optimizer_lr"].number_value == 1e-3
    assert values["netG.net_type"].string_value == "vrt"
    metrics = {info.name.tag for info in experiment_record.experiment.metric_infos}
    assert metrics == {"val/psnr", "val/ssim", "train/loss"}
    assert metrics <= set(events.Tags()["scalars"])


# ---- Weights & Biases ----

# A made-up key of Weights & Biases. wandb asks for a key of this length.
KEY = "0123456789abcdef0123456789abcdef01canary"


# One test checks run, key and options, because wandb takes seconds of a core. In `make test`,
# tests/dist/test_life.py has a run with wandb.
@pytest.mark.slow
def test_weights_and_biases_runs_offline_and_the_key_reaches_no_file(tmp_path):
    options = write_options(tmp_path)

    # The first start is on a terminal and has no key. On a terminal, wandb itself would ask for a
    # key.
    code, written = run_in_terminal(
        MAIN,
        "--opt",
        str(options),
        "train.total_iter=1",
        "logging.use_wandb=true",
        env={"HOME": str(tmp_path), "WANDB_MODE": ""},
    )
    first = written.decode()
    # The second start has a key, and asks for an offline run.
    second = train(
        options,
        "train.total_iter=2",
        "logging.use_wandb=true",
        f"logging.wandb_api_key={KEY}",
        "logging.use_tensorboard=true",
        "datasets.test={}",
        env={"WANDB_MODE": "offline"},
    )

    assert code == 0, first
    assert second.exit_codes == [0], second.text
    assert "this run is recorded offline; upload it later with: wandb sync" in first
    # Both starts are one run of wandb, and the checkpoint has the number of this run. wandb names
    # its folders by time and number, e.g. offline-run-20260102_030405-k3x9ab2c. The number here is
    # k3x9ab2c.
    folders = folder_of_run(options).glob("wandb/offline-run-*")
    numbers_of_runs = {path.name.split("-")[-1] for path in folders}
    assert numbers_of_runs == {latest_checkpoint(options)["wandb_id"]}
    # No output and no file has the key.
    assert KEY not in first
    assert KEY not in second.text
    contents = {}
    for path in (tmp_path / "experiments").rglob("*"):
        if path.is_file():
            contents[path] = path.read_bytes()
    assert contents
    for path, content in contents.items():
        assert KEY.encode() not in content, path
    # The records of wandb have the options.
    records = [content for path, content in contents.items() if path.suffix == ".wandb"]
    assert records
    for record in records:
        assert b"G_optimizer_lr" in record


# ---- Resume, several ranks, modes of a step ----


def test_resume_gives_the_same_weights_as_no_interruption(tmp_path):
    options = write_options(tmp_path)
    # One training clip is left, so an epoch has 4 steps. The stop after step 2 is in the middle of
    # the first epoch, and the end after step 5 is in the second epoch.
    for root in ("GOPRO_Large", "GOPRO_Large_spike_seq"):
        shutil.rmtree(tmp_path / root / "train/train1")

    # datasets.test={}: without test clips a run does not validate. This saves time.
    train(options, "task=whole", "train.total_iter=5", "datasets.test={}")
    train(options, "task=parts", "train.total_iter=2", "datasets.test={}")
    # How the three starts run:
    #
    #     without a prefix    a fork of one Python, so the hashes of strings are the same
    #     prefix=("env",)     a new Python, which has other hashes
    #
    # So a result that depends on such a hash would differ between the whole run and the parts.
    second = train(options, "task=parts", "train.total_iter=5", "datasets.test={}", prefix=("env",))

    assert "at iter 2" in second.text, second.text
    assert equal_checkpoints(state_of(options, "whole"), state_of(options, "parts"))
    loss_of_whole = history(options, "whole")["train/loss"]
    loss_of_parts = history(options, "parts")["train/loss"]
    assert loss_of_whole == loss_of_parts


def test_impossible_tiles_are_refused_before_the_first_step(tmp_path):
    options = write_options(tmp_path)

    # By default, neighbouring tiles share 20 pixels. This is more than a tile of 7 has.
    result = train(options, "val.size_patch_testing=7")

    assert result.exit_codes == [WRONG_OPTIONS], result.text
    assert "tiles of 7 that overlap by 20" in result.text, result.text
    assert "starting at iter" not in result.text
    assert not (folder_of_run(options) / "checkpoints").exists()


def test_two_ranks_train_on_different_samples_and_only_rank_0_writes(tmp_path):
    options = write_options(tmp_path)

    result = train(options, "train.total_iter=2", "debug.every=1", "datasets.test={}", ranks=2)

    assert result.exit_codes == [0, 0], result.text
    samples_of_0 = samples_seen(result.stdout[0], rank=0)
    samples_of_1 = samples_seen(result.stdout[1], rank=1)
    assert samples_of_0 != samples_of_1
    assert "Iter:" in result.stdout[0]
    assert "Iter:" not in result.stdout[1]
    assert "Iter:" not in result.stderr[1]


def samples_seen(output, rank):
    """Return the samples on which a rank of two trained in its steps 1 and 2.

    The option debug.every prints them, e.g.
    "[Rank 0/2] Step 1, Batch size: 1, Loss: 0.1234, Samples: train0/000001".
    """
    # The three groups are the rank, the step and the samples, e.g. ("0", "1", "train0/000001").
    line = r"\[Rank (\d)/2\] Step (\d), Batch size: 1, Loss: \d+\.\d+, Samples: (\S+)"
    found = re.findall(line, output)
    assert [(printed_rank, step) for printed_rank, step, _ in found] == [
        (str(rank), "1"),
        (str(rank), "2"),
    ]
    return [sample for _, _, sample in found]


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(
            [
                "--use_amp",
                "train.G_scheduler_type=MultiStepLR",
                "train.G_scheduler_milestones=[2]",
                "netG.fusion=none",
            ],
            id="bfloat16 and milestones",
        ),
        # This case is slow, because tests/faults/test_steps.py resumes in float16, too.
        pytest.param(
            [
                "train.amp.enable=true",
                "train.amp.dtype=float16",
                "train.G_optimizer_type=adamw",
                "train.G_optimizer_clipgrad=0.1",
                "train.accumulation_steps=2",
            ],
            id="float16, adamw, clipping, accumulation",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_modes_of_a_step_train_and_resume(tmp_path, overrides):
    options = write_options(tmp_path)

    first = train(options, "train.total_iter=1", *overrides, "datasets.test={}")
    second = train(options, "train.total_iter=2", *overrides)

    assert first.exit_codes == [0], first.text
    assert second.exit_codes == [0], second.text
    assert [step for step, _ in history(options)["train/loss"]] == [1, 2]
    for name, value in latest_checkpoint(options)["model_state_dict"].items():
        assert torch.isfinite(value).all(), name


# This test is slow. In `make test`, tests/parts/models/test_gradients.py tests the gradients of
# such steps on two ranks. The two options are two ways in which DDP finds the parameters of a step.
@pytest.mark.slow
@pytest.mark.parametrize("override", ["use_static_graph=true", "find_unused_parameters=true"])
def test_frozen_parts_are_released_on_all_ranks_without_a_restart(tmp_path, override):
    options = write_options(tmp_path)

    result = train(
        options,
        override,
        # The parts are frozen in steps 1 and 2. The run has four steps (`write_options`).
        "train.fix_iter=3",
        'train.fix_keys=["spynet","deform"]',
        "train.fix_lr_mul=0.5",
        "netG.use_checkpoint_attn=true",
        "netG.use_checkpoint_ffn=true",
        "train.checkpoint_save=1",
        "datasets.test={}",
        ranks=2,
    )

    assert result.exit_codes == [0, 0], result.text
    after_1 = weights_after(options, step=1)
    after_2 = weights_after(options, step=2)
    after_4 = weights_after(options, step=4)
    frozen = [name for name in after_1 if "deform" in name and name.endswith("weight")]
    assert frozen
    # Step 2 must not change the frozen weights. Steps 3 and 4 must change some of them.
    for name in frozen:
        assert torch.equal(after_1[name], after_2[name]), name
    assert any(not torch.equal(after_2[name], after_4[name]) for name in frozen)


def weights_after(options, step):
    """Return the weights of the network that a run saved after a step."""
    path = folder_of_run(options) / f"models/{step}_G.pth"
    return torch.load(path, weights_only=True)["params"]
