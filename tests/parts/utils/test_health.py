"""Warnings about causes that make a run slow or useless. Each warning comes once, with an advice.

`Health` of utils/run/health.py judges values that the ranks of a run have measured. Most tests give
it made-up values (`measures_of_rank`: a healthy rank with some values changed) and read the log.
The other tests use

    real disks    a disk without room for the next saves
    real clips    clips whose spikes do not show the same as the frames
    real runs     starts of a run on two ranks: healthy, with a slow rank, and with a slow loader
"""

import json
import logging
import re
import shutil

import cv2
import numpy as np
import pytest

import main_test_vrt
from data.alignment_check import warning_of
from data.clips.clip_reader import user_clips
from data.select_dataset import build_dataset
from data.spike.pictures import to_linear
from data.spike.simulate import IntegrateAndFire
from main_train_vrt import read_options
from models.schedules import first_step_at_floor, stretching_option
from tests.helpers.checked import not_none
from tests.helpers.clip_files import data_section, write_dat, write_info
from tests.helpers.small_disk import disk
from tests.helpers.textured_clips import make_textured_home
from tests.helpers.train_files import events_of, run_odd, write_options
from tests.helpers.two_cameras import texture
from utils.image import imwrite_rgb
from utils.run.health import Health
from utils.run.measured import Measured
from utils.run.speed import loader_advice

# ---- Measured values ----


def measures_of_rank(steps=10, data_s=0.1, forward_s=1.0, memory=None, cores=range(8), **values):
    """Return the values of a healthy rank in ten steps of half a second, with some changes.

    data_s: seconds for which the rank waited for data. forward_s: seconds of its forward passes.
    Both numbers are for all steps together. memory: kind, "GPU" or "host" -> (used, total) in GB.
    cores: numbers of the CPU cores that the rank may use. values: numbers of the log line.
    """
    return Measured(
        host="node",
        cores=tuple(cores),
        steps=steps,
        seconds=5.0,
        data_s=data_s,
        forward_s=forward_s,
        compute_s=3.0,
        values={"loss": 0.1} | values,
        memory=memory or {"host": (4.0, 16.0)},
        gpu=None,
    )


def health_of(opt, total_iter=1000):
    """Return the `Health` of a run with these options."""
    return Health(opt.folder, opt.train, opt.datasets, total_iter)


@pytest.fixture
def health(tmp_path):
    """Give the `Health` of a run of 1000 steps."""
    return health_of(read_options(["--opt", str(write_options(tmp_path))]))


def logged_warnings(caplog) -> list[str]:
    """Return the warnings that were logged."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# ---- The gradient norm ----


# Norms of 120 steps. 90 is an outlier: one of every six norms is 90. Sorted, the six norms are 0.8
# 1.0 1.1 1.3 2.5 90.0, so the median is (1.1 + 1.3) / 2 = 1.2.
HEALTHY_NORMS = [1.0, 1.3, 0.8, 2.5, 90.0, 1.1] * 20
LARGE_NORMS = [30.0, 40.0, 35.0] * 40


def test_outliers_of_the_gradient_norm_are_healthy(health, caplog):
    health.judge_log_line([measures_of_rank()], HEALTHY_NORMS)
    health.judge_log_line([measures_of_rank()], HEALTHY_NORMS)

    assert logged_warnings(caplog) == []


def test_an_exploding_gradient_norm_is_named_once(health, caplog):
    health.judge_log_line([measures_of_rank()], HEALTHY_NORMS)
    health.judge_log_line([measures_of_rank()], HEALTHY_NORMS)

    for _ in range(3):
        health.judge_log_line([measures_of_rank()], LARGE_NORMS)

    (message,) = logged_warnings(caplog)
    assert "the gradient norm explodes: median 35 over the last 120 steps, 1.2 before" in message
    # The advice is to clip at twice the former median: 2 x 1.2 = 2.4, rounded to one digit: 2.
    assert "train.G_optimizer_lr (now 0.001), or set train.G_optimizer_clipgrad=2" in message


def test_a_log_line_of_a_thousand_steps_is_compared_with_the_line_before(health, caplog):
    # `Health` remembers the norms of the last 1000 steps. So the norms of the second line replace
    # all norms of the first line. The comparison must come before the replacement.
    health.judge_log_line([measures_of_rank()], [1.0] * 1000)
    health.judge_log_line([measures_of_rank()], [35.0] * 1000)

    (message,) = logged_warnings(caplog)
    assert "the gradient norm explodes: median 35 over the last 1000 steps, 1 before" in message


# ---- Overfitting ----


def validate(health, psnrs, losses):
    """Log a loss and judge a validation, for each pair of a PSNR and a loss.

    psnrs: PSNR of each validation, in dB. losses: the loss before each validation.
    """
    for psnr, loss in zip(psnrs, losses, strict=True):
        health.judge_log_line([measures_of_rank(loss=loss)], [1.0])
        health.judge_validation(psnr)


def test_two_falls_of_psnr_are_healthy_if_it_rises_again(health, caplog):
    validate(health, [30.0, 30.5, 30.45, 30.4, 30.6], [0.5, 0.4, 0.3, 0.2, 0.2])

    assert logged_warnings(caplog) == []


def test_psnr_that_falls_while_the_loss_rises_is_no_overfitting(health, caplog):
    validate(health, [30.5, 30.4, 30.3, 30.2], [0.2, 0.3, 0.4, 0.5])

    assert logged_warnings(caplog) == []


def test_psnr_that_falls_while_the_loss_falls_is_named_once(health, caplog):
    # At first the loss rises. From 30.3 dB on, PSNR falls three times while the loss falls.
    validate(health, [30.5, 30.4, 30.3, 30.2], [0.2, 0.3, 0.4, 0.5])
    validate(health, [30.1, 30.0, 29.9], [0.4, 0.3, 0.2])

    (message,) = logged_warnings(caplog)
    assert "30.30 > 30.20 > 30.10 > 30.00 dB, loss 0.4000 to 0.3000" in message
    assert "checkpoint_best.pth" in message


# ---- Memory ----


def test_memory_that_is_94_percent_full_is_healthy(health, caplog):
    well_used = {"GPU": (75.0, 80.0), "host": (15.1, 16.0)}

    health.judge_log_line([measures_of_rank(memory=well_used)] * 2, [])

    assert logged_warnings(caplog) == []


@pytest.fixture
def warnings_of_full_memory(health, caplog):
    """Give {kind of memory: warning} of two log lines in which the memory of rank 1 is full.

    There are two log lines, because each warning must come only once in a run.
    """
    # `measures_of_rank` gives the values of a healthy rank, here with other memory.
    full = measures_of_rank(memory={"GPU": (78.0, 80.0), "host": (15.9, 16.0)})
    health.judge_log_line([measures_of_rank(), full], [])
    health.judge_log_line([measures_of_rank(), full], [])
    # There are two warnings in all: one for the GPU and one for the host.
    gpu, host = logged_warnings(caplog)
    return {"GPU": gpu, "host": host}


def test_a_full_memory_of_a_gpu_is_named_with_its_rank(warnings_of_full_memory):
    message = warnings_of_full_memory["GPU"]

    assert "the memory of the GPU is nearly full on rank 1, host node: 78.0 of 80.0 GB" in message
    # The advice is 85 % of the 80 GB: 0.85 x 80 = 68 GB.
    assert 'netG.checkpoint="auto" with netG.memory_budget_gb=68 or less' in message


def test_a_full_memory_of_a_host_is_named_with_its_rank(warnings_of_full_memory):
    message = warnings_of_full_memory["host"]

    assert "the memory of the host is nearly full on rank 1" in message
    assert "dataloader_num_workers (now 1)" in message


# ---- The disk ----


@pytest.fixture
def run_on_small_disk(tmp_path):
    """Give the options of a run on a disk of 13 MB. The run saves every 10 steps. It saved once."""
    with disk(tmp_path / "small", "13m") as small:
        path = write_options(tmp_path, path={"root": str(small)})
        opt = read_options(["--opt", str(path), "train.checkpoint_save=10"])
        # The three files of the save have 1 MB each. So 13.6 - 3 = 10.6 MB are free (13m is 13 x
        # 2^20 bytes). 3 MB of them are needed for three other checkpoints: the best one, and the
        # earlier versions of the latest and of the best one. Later saves replace these files, but
        # each save adds two models, 2 MB. So there is room for 7.6 / 2 saves: for 3.
        for file in ("checkpoints/checkpoint_latest.pth", "models/30_G.pth", "models/30_E.pth"):
            (opt.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (opt.folder / file).write_bytes(bytes(1_000_000))
        yield opt


def test_a_disk_with_room_for_the_next_saves_is_healthy(run_on_small_disk, caplog):
    # A run of 50 steps makes two more saves after step 30, and the disk has room for three.
    health_of(run_on_small_disk, total_iter=50).judge_save(30)

    assert logged_warnings(caplog) == []


def test_a_disk_without_room_for_the_next_saves_is_named_once(run_on_small_disk, caplog):
    health = health_of(run_on_small_disk, total_iter=300)

    health.judge_save(30)
    health.judge_save(30)

    # The run still makes (300 - 30) / 10 = 27 saves.
    (message,) = logged_warnings(caplog)
    assert "room for 3 more saves of 0.002 GB, the run makes 27" in message
    assert "train.checkpoint_save (now 10)" in message


# ---- Slow ranks, and the wait for data ----


def log_windows(health, count, *ranks):
    """Log `count` windows. A window is the ten steps between two lines of the log.

    ranks: for each rank, the values that differ from the values of a healthy rank.
    """
    for _ in range(count):
        health.judge_log_line([measures_of_rank(**changes) for changes in ranks], [])


# Values of a rank that is slow and waits for data. A healthy rank has 1.0 s and 0.1 s.
SLOW_RANK = {"forward_s": 1.5, "data_s": 0.8}


def test_the_first_window_of_a_process_is_not_judged(health, caplog):
    log_windows(health, 1, {}, {"data_s": 4.0})
    log_windows(health, 2, {}, {"data_s": 4.0})

    # There are three bad windows, but the first window of a process does not count. So two bad
    # windows count. A warning needs three bad windows in a row.
    assert logged_warnings(caplog) == []


def test_small_differences_between_ranks_are_healthy(health, caplog):
    # Both values of rank 1 are just below a limit. Rank 1 takes 0.9 + 0.4 = 1.3 s. The limit is
    # 1.32 s, 1.2 times the 1.1 s of rank 0. Rank 1 waits for data for 0.4 s. The limit is 0.5 s, 10
    # % of the 5 s of a window.
    log_windows(health, 10, {}, {"forward_s": 0.9, "data_s": 0.4})

    assert logged_warnings(caplog) == []


def test_a_delay_of_less_than_a_twentieth_of_a_step_is_healthy(health, caplog):
    # Rank 1 takes 1.0 + 0.33 = 1.33 s, which is more than 1.2 times the 1.1 s of rank 0. But its
    # delay of 0.23 s is less than 5 % of the window, which has 5 s.
    log_windows(health, 10, {}, {"data_s": 0.33})

    assert logged_warnings(caplog) == []


def test_two_bad_windows_are_healthy_if_the_next_is_good(health, caplog):
    """A warning needs three bad windows in a row. Here no three bad windows follow one another."""
    log_windows(health, 2, {}, {"data_s": 4.0})
    log_windows(health, 9, {}, {"forward_s": 0.9, "data_s": 0.4})
    log_windows(health, 2, {}, SLOW_RANK)
    log_windows(health, 1, {}, {})

    assert logged_warnings(caplog) == []


@pytest.fixture
def warnings_of_slow_rank(health, caplog):
    """Give the warnings of five windows. In the last four, rank 2 waits for data and is slow."""
    log_windows(health, 1, {}, {}, {})
    log_windows(health, 4, {}, {}, SLOW_RANK)
    # The first window is not judged. The fourth window is the third bad one in a row, and gives
    # both warnings. The fifth window is bad, too, but each warning comes only once.
    wait, slow = logged_warnings(caplog)
    return {"wait": wait, "slow": slow}


def test_a_wait_for_data_is_named_after_three_windows_in_a_row(warnings_of_slow_rank):
    message = warnings_of_slow_rank["wait"]

    # A window of ten steps takes 5 s, of which rank 2 waits for 0.8 s: 0.8 / 5 = 16 %.
    assert message.startswith("rank 2 on node waits for data 16 % of the time")


def test_a_slow_rank_is_named_after_three_windows_in_a_row(warnings_of_slow_rank):
    message = warnings_of_slow_rank["slow"]

    assert message.startswith("rank 2 on node is slower")
    # The seconds of SLOW_RANK are for ten steps. A healthy rank takes 0.1 + 1.0 s for ten steps.
    assert "data 0.080 s + forward 0.150 s a step, the others 0.110 s" in message


def test_ranks_that_share_their_cores_are_counted_in_the_advice(health, caplog):
    # Both ranks use the cores 0 to 3, so each rank has 2 cores.
    waiting = {"data_s": 2.0, "cores": range(4)}

    log_windows(health, 4, waiting, waiting)

    (message,) = logged_warnings(caplog)
    assert "(a rank has 2 CPU cores)" in message


def test_cores_that_a_rank_has_for_itself_are_counted_in_the_advice(health, caplog):
    # Rank 0 uses the cores 0 to 3, and rank 1 uses the cores 4 to 7.
    log_windows(health, 4, {"data_s": 2.0, "cores": range(4)}, {"cores": range(4, 8)})

    wait = logged_warnings(caplog)[0]
    assert "(a rank has 4 CPU cores)" in wait


@pytest.fixture
def loader_of_train(tmp_path):
    """Give the section datasets.train of a run."""
    return not_none(read_options(["--opt", str(write_options(tmp_path))]).datasets.train)


def advice(section, workers, share, cores):
    """Return the advice to a rank that waits for data for this share of the time.

    section: the options datasets.train. workers: number of loader processes. cores: CPU cores of
    the rank.
    """
    with_workers = section.model_copy(update={"dataloader_num_workers": workers})
    return loader_advice(with_workers, share, cores)


# A case: the number of loader processes, the share of the time for which the rank waits, and the
# advised number of processes. With 4 processes and a share of 0.3, the advised number is 4 / (1 -
# 0.3), rounded up. Without loader processes, it is the default, 2.
@pytest.mark.parametrize(("workers", "share", "enough"), [(0, 0.5, 2), (4, 0.3, 6)])
def test_the_advice_is_the_number_of_workers_that_ends_the_wait(
    loader_of_train, workers, share, enough
):
    message = advice(loader_of_train, workers, share, cores=8)

    assert f"set datasets.train.dataloader_num_workers={enough} (now {workers})" in message


def test_the_advice_is_a_clip_cache_if_each_core_has_a_worker(loader_of_train):
    message = advice(loader_of_train, workers=8, share=0.3, cores=8)

    assert "num_workers" not in message
    assert "build_clip_cache.py" in message


# ---- Spikes that do not show the same as the frames ----

# The scene moves by this number of pixels during an exposure. An exposure has the same number of
# spike planes, so the scene moves by one pixel from plane to plane.
MOTION = 40
# Height and width of a frame, and of a spike plane.
FRAME_SIDE = 96
PLANE_SIDE = 48


def write_fast_clip(root, clip, scene):
    """Write 4 frames and their spikes. A frame is the mean of 40 views, so it is blurred.

    Each view begins one pixel to the right of the view before.
    """
    for frame in range(4):
        views = []
        light = []
        for plane in range(MOTION):
            left = MOTION * frame + plane
            view = scene[:, left : left + FRAME_SIDE]
            views.append(view)
            size = (PLANE_SIDE, PLANE_SIDE)
            light.append(cv2.resize(to_linear(view), size, interpolation=cv2.INTER_AREA))

        blurry = np.round(255 * np.mean(views, axis=0)).astype(np.uint8)
        in_colour = np.repeat(blurry[..., None], 3, axis=2)
        imwrite_rgb(root / f"GOPRO_Large/train/{clip}/blur/{frame:06d}.png", in_colour)

        rng = np.random.default_rng(frame)
        spikes = IntegrateAndFire(PLANE_SIDE, PLANE_SIDE, rate=0.6, rng=rng).run(light)
        write_dat(root / f"GOPRO_Large_spike_seq/train/{clip}/spike/{frame:06d}.dat", spikes)


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    """Give two clips, a and b, without sharp frames. Their scene moves by 40 pixels per frame."""
    root = tmp_path_factory.mktemp("fast")
    rng = np.random.default_rng(0)
    for clip in ("a", "b"):
        scene = texture(rng, (FRAME_SIDE, FRAME_SIDE + 4 * MOTION))
        write_fast_clip(root, clip, scene)
    # h and w: PLANE_SIDE. gt_plane: the plane of the sharp frame, the middle of the 40 planes. The
    # tests below give it as `center`.
    write_info(root, h=48, w=48, planes=MOTION, gt_plane=20, rate=0.6, flip=None)
    return root


@pytest.fixture(scope="module")
def folder_of_exchanged_spikes(fast, tmp_path_factory):
    """Give a folder in which clip a has the spikes of clip b, and b the spikes of a."""
    folder = tmp_path_factory.mktemp("exchanged") / "train"
    spikes = fast / "GOPRO_Large_spike_seq/train"
    shutil.copytree(spikes / "a", folder / "b")
    shutil.copytree(spikes / "b", folder / "a")
    return folder


def check_of_training(fast, spikes, **spike):
    """Return the warning of a training about the clips, or None.

    spikes: folder of the spikes. spike: keys of the section `spike`.
    """
    options = data_section(fast, num_frame=3, gt_size=48, spike=spike, dataroot_spike=str(spikes))
    # The clips have no sharp frames.
    del options["dataroot_gt"]
    # "opt.json" is only a name, which the warning shows in its advice.
    return warning_of(build_dataset(options, "train", seed=5), "opt.json")


def check_of_own_clips(fast, spikes, **spike):
    """Return the warning of main_test_vrt.py about a user's own clips, or None.

    spikes: folder of the spikes. spike: keys of the section `spike`.
    """
    return warning_of(user_clips(fast / "GOPRO_Large/train", spikes, spike_options=spike))


# Two representations of the spikes: the light of short windows relative to the light of the
# exposure, and the light of one window itself.
RELATIVE = {"type": "relative", "half_windows": [2, 6, 12]}
TFP = {"type": "tfp", "half_window": 3}


@pytest.mark.parametrize("representation", [RELATIVE, TFP], ids=["relative", "tfp"])
@pytest.mark.parametrize("check", [check_of_training, check_of_own_clips])
class TestClipsWithStrongBlur:
    """Spikes are sharp, so they do not look like very blurry frames. The check must accept this."""

    def spike(self, representation):
        """Return the correct options of the spikes."""
        return {
            "type": "dat",
            "h": PLANE_SIDE,
            "w": PLANE_SIDE,
            "center": 20,
            "gamma": 2.2,
            "representation": representation,
        }

    def test_right_options_are_no_fault(self, fast, check, representation):
        spikes = fast / "GOPRO_Large_spike_seq/train"

        assert check(fast, spikes, **self.spike(representation)) is None

    def test_spikes_that_are_upside_down_are_named(self, fast, check, representation):
        spikes = fast / "GOPRO_Large_spike_seq/train"
        # Without the key "flip", the reader turns the planes of a .dat file upside down. This is
        # right for these files. So with flip = False the planes are upside down.
        wrong = self.spike(representation) | {"flip": False}

        assert "upside down (spike.flip)" in check(fast, spikes, **wrong)

    def test_spikes_of_another_clip_are_named(
        self, fast, folder_of_exchanged_spikes, check, representation
    ):
        message = check(fast, folder_of_exchanged_spikes, **self.spike(representation))

        assert "They do not agree" in message


def invert_files(folder):
    """Replace each bit of the spike files in a folder: 0 becomes 1, and 1 becomes 0."""
    for path in folder.rglob("*.dat"):
        inverted = ~np.fromfile(path, np.uint8)
        inverted.tofile(path)


@pytest.mark.parametrize("representation", [RELATIVE, TFP], ids=["relative", "tfp"])
@pytest.mark.parametrize("check", [check_of_training, check_of_own_clips])
def test_inverted_bits_are_named(fast, tmp_path, check, representation):
    spikes = tmp_path / "train"
    shutil.copytree(fast / "GOPRO_Large_spike_seq/train", spikes)
    invert_files(spikes)
    right = {"type": "dat", "h": PLANE_SIDE, "w": PLANE_SIDE, "center": 20, "gamma": 2.2}

    message = check(fast, spikes, **right, representation=representation)

    assert "bits of the spikes seem inverted" in message


def test_the_warning_of_a_training_says_how_to_look_at_a_sample(fast):
    spikes = fast / "GOPRO_Large_spike_seq/train"
    wrong = {"type": "dat", "h": 48, "w": 48, "center": 20, "gamma": 2.2, "flip": False}

    message = check_of_training(fast, spikes, **wrong, representation=TFP)

    assert "scripts/show_sample.py --opt opt.json --index 0" in message


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with clips of moving textures, and options.json for them."""
    return make_textured_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def own_spikes(home, tmp_path):
    """Give the spikes of a clip without their dataset.json, which would tell their size."""
    folder = tmp_path / "spike"
    shutil.copytree(home / "GOPRO_Large_spike_seq/train/clip0/spike", folder)
    return folder


def warnings_of_restoring(home, spikes, out, capfd, method, side):
    """Restore a clip, and return the lines that say that its spikes do not fit.

    side: height and width of a spike plane, as the user gives them.
    """
    frames = home / "GOPRO_Large/train/clip0/blur"
    files = f"--input {frames} --spike {spikes} --output {out} --save frames"
    flags = f"--method {method} --spike-size {side} {side} spike.rate=0.6"
    assert main_test_vrt.main(f"{files} {flags}".split()) == 0
    lines = capfd.readouterr().out.splitlines()
    return [line for line in lines if "do not show the same" in line]


@pytest.mark.parametrize("method", ["tfi", "exposure"])
def test_the_right_size_of_a_plane_is_no_fault(home, own_spikes, tmp_path, capfd, method):
    found = warnings_of_restoring(home, own_spikes, tmp_path / "out", capfd, method, side=48)

    assert found == []


def test_a_wrong_size_of_a_plane_is_named(home, own_spikes, tmp_path, capfd):
    # A plane of 48 x 48 is read as four planes of 24 x 24, so only the pictures show the mistake.
    (message,) = warnings_of_restoring(home, own_spikes, tmp_path / "out", capfd, "tfi", side=24)

    assert "4 of 4 frames do not show the same. clip0/000000" in message
    assert "spike.h and spike.w" in message
    assert f"scripts/spike_tool.py info {own_spikes}/000000.dat" in message


def test_inverted_bits_of_own_spikes_are_named(home, own_spikes, tmp_path, capfd):
    invert_files(own_spikes)

    (message,) = warnings_of_restoring(home, own_spikes, tmp_path / "out", capfd, "tfi", side=48)

    assert "4 of 4 frames do not show the same. clip0/000000" in message
    assert "bits of the spikes seem inverted: a bit of 1 must mean a spike" in message
    assert "docs/extending.md" in message


# ---- The learning rate at its floor ----

# The rate drops at the steps 300 and 600.
STEPS = {"G_scheduler_type": "MultiStepLR", "G_scheduler_milestones": [300, 600]}
# A cosine of 200 steps from the full rate, then a cosine of 300 steps from about half of it.
RESTARTS = {"G_scheduler_periods": [200, 300], "G_scheduler_restart_weights": [1, 0.5]}
# A case: options of a schedule for a run of 1000 steps, and the step from which the rate is at its
# floor (None: never). A rate of at most 1/1000 of the full rate counts as the floor. A cosine
# reaches the floor after 98 % of its period, e.g. at step 0.98 x 950 = 931.
SCHEDULES = [
    pytest.param({"G_scheduler_periods": 1000}, 980, id="one period to the end"),
    pytest.param({"G_scheduler_periods": 950}, 931, id="one period almost to the end"),
    # The second cosine begins with half of the rate, so it reaches the floor after 97 %: at step
    # 200 + 0.97 x 300.
    pytest.param(RESTARTS, 491, id="two periods to the middle"),
    # After two drops the rate is 0.01^2 = 1/10,000 of the full rate.
    pytest.param(STEPS | {"G_scheduler_gamma": 0.01}, 600, id="two steps to a small rate"),
    pytest.param(STEPS | {"G_scheduler_gamma": 0.5}, None, id="two steps to a large rate"),
]


def options_with(folder, changes):
    """Return the options of a run with these keys of the section `train`."""
    overrides = [f"train.{key}={json.dumps(value)}" for key, value in changes.items()]
    return read_options(["--opt", str(write_options(folder)), *overrides])


@pytest.mark.parametrize(("changes", "floor"), SCHEDULES)
def test_the_step_at_which_the_rate_reaches_its_floor_is_known(tmp_path, changes, floor):
    opt = options_with(tmp_path, changes)

    found = first_step_at_floor(opt.train, total_iter=1000)

    if floor is None:
        assert found is None
    else:
        # The steps in SCHEDULES are rounded. The limit of 2 steps is chosen by hand.
        assert found == pytest.approx(floor, abs=2)


@pytest.mark.parametrize(("changes", "floor"), SCHEDULES)
def test_a_learning_rate_at_its_floor_long_before_the_end_is_named(
    tmp_path, caplog, changes, floor
):
    opt = options_with(tmp_path, changes)

    health_of(opt).judge_schedule(
        first_step_at_floor(opt.train, total_iter=1000), stretching_option(opt.train)
    )

    # The rate may be at its floor in the last tenth of a run, which is the last 100 steps here.
    if floor is not None and floor < 900:
        (message,) = logged_warnings(caplog)
        assert "stretch train.G_scheduler_" in message
    else:
        assert logged_warnings(caplog) == []


# ---- Real runs ----

# Words of the warnings that a healthy run must not give. The warnings about a slow rank and about a
# wait for data are not in the list, because on a busy machine both may be right.
WARNINGS = [
    "explodes",
    "nearly full",
    "at its floor",
    "has room for",
    "falls while",
    "do not show the same",
]
# Steps at which each of the three starts of the run ends. A window has ten steps, and the first
# window of a start is not judged. So the second and the third start, with 50 steps each, have four
# windows that are judged. A warning needs three bad windows in a row.
END_OF_HEALTHY = 25
END_OF_SLOW_RANK = 75
END_OF_SLOW_LOADER = 125
# Delay of the slow rank in each step, in milliseconds. The step of a healthy rank takes about 10 ms
# on an idle machine. On a busy machine, both ranks also wait for their data. The delay must be much
# longer than the step with this wait. Then rank 1 takes more than 1.2 times as long as rank 0
# (SLOW_FACTOR of utils/run/speed.py).
SLOW_RANK_MS = 200


def write_options_of_run(home, folder):
    """Write options.json for clips of `home`, with a network of one convolution.

    The run writes a log line every 5 steps, so two lines make a window. checkpoint_test and
    checkpoint_save let each start end with a validation and a save.
    """
    options = json.loads((home / "options.json").read_text())
    options["datasets"]["train"] |= {
        "dataloader_batch_size": 4,
        "dataloader_num_workers": 2,
        "dataloader_epoch_repeat": 200,
    }
    options["netG"] = {"net_type": "odd"}
    options["path"] = {"root": str(folder / "experiments")}
    options["train"] = {
        "G_lossfn_type": "charbonnier",
        "total_iter": END_OF_HEALTHY,
        "checkpoint_print": 5,
        "checkpoint_test": 25,
        "checkpoint_save": 25,
        "G_scheduler_periods": 200,
    }
    path = folder / "options.json"
    path.write_text(json.dumps(options))
    return path


def start(options, *overrides, delay_ms):
    """Start the run on two ranks, and wait until it ends. Return its output.

    delay_ms: milliseconds for which rank 1 sleeps in each forward pass.
    """
    result = run_odd(options, *overrides, case="slow", struck_rank=1, at_step=delay_ms, ranks=2)
    assert result.exit_codes == [0, 0], result.text
    return result.text


@pytest.fixture(scope="module")
def options_of_runs(home, tmp_path_factory):
    """Give the path of the options of the run."""
    return write_options_of_run(home, tmp_path_factory.mktemp("runs"))


# Each start has at most one cause of slowness: a slow forward pass, or a wait for data. Each cause
# has a limit for its warning: 1.2 times the other ranks, and 10 % of the time. With both causes in
# one start, the measured values would be near the limits:
#
#     the slow forward pass would make the wait a smaller share of a step
#     the wait would make the steps of all ranks more similar
#
# In two separate starts, the values are far from the limits.


@pytest.fixture(scope="module")
def healthy(options_of_runs):
    """Give the output of the first start: equal ranks with two loader processes each."""
    return start(options_of_runs, delay_ms=0)


@pytest.fixture(scope="module")
def slow_rank(options_of_runs, healthy):
    """Give the output of the second start: rank 1 is slow, and the schedule ends at step 45."""
    overrides = (f"train.total_iter={END_OF_SLOW_RANK}", "train.G_scheduler_periods=45")
    return start(options_of_runs, *overrides, delay_ms=SLOW_RANK_MS)


@pytest.fixture(scope="module")
def slow_loader(options_of_runs, slow_rank):
    """Give the output of the third start: no loader processes, so each step waits for its batch."""
    overrides = (
        f"train.total_iter={END_OF_SLOW_LOADER}",
        "datasets.train.dataloader_num_workers=0",
    )
    return start(options_of_runs, *overrides, delay_ms=0)


def test_a_healthy_run_warns_of_nothing(healthy):
    assert [words for words in WARNINGS if words in healthy] == []


def test_a_slow_rank_of_a_run_is_named_once(slow_rank):
    pattern = (
        r"rank 1 on \S+ is slower than the others, which wait for it at every step: "
        r"data \S+ s \+ forward [\d.]+ s"
    )

    assert len(re.findall(pattern, slow_rank)) == 1, slow_rank


def test_a_short_schedule_of_a_run_is_named_once(slow_rank):
    # From step 45 on, the rate is at its floor. These are the last 30 of 75 steps, 40 %.
    pattern = (
        r"at its floor from iter 45 on, for 40 % of the run, .*: "
        r"stretch train\.G_scheduler_periods to the end"
    )

    assert len(re.findall(pattern, slow_rank)) == 1, slow_rank


def test_a_slow_loader_of_a_run_is_named_once(slow_loader):
    pattern = r"rank \d on \S+ waits for data \d+ % of the time, and all others with it: "

    assert len(re.findall(pattern, slow_loader)) == 1, slow_loader


@pytest.fixture(scope="module")
def events(options_of_runs, slow_loader):
    """Give the events that the three starts wrote for TensorBoard."""
    return events_of(options_of_runs)


def steps_of(events, tag):
    """Return the steps at which a number was written."""
    return [event.step for event in events.Scalars(tag)]


@pytest.mark.parametrize("tag", ["train/loss", "train/grad_norm"])
def test_the_event_files_hold_no_step_of_the_training_twice(events, tag):
    assert steps_of(events, tag) == list(range(5, END_OF_SLOW_LOADER + 1, 5))


@pytest.mark.parametrize("tag", ["val/psnr", "clips/psnr/clip0"])
def test_the_event_files_hold_no_validation_twice(events, tag):
    assert steps_of(events, tag) == [25, 50, 75, 100, 125]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["data_s", "forward_s", "compute_s"])
def test_the_event_files_hold_the_times_of_each_rank(events, name, rank):
    assert steps_of(events, f"ranks/{name}/{rank}") == steps_of(events, "train/loss")


def test_the_times_of_the_slow_rank_are_longer(events):
    seconds = [0.0, 0.0]
    for rank in (0, 1):
        for event in events.Scalars(f"ranks/forward_s/{rank}"):
            # Look at the second half of the second start, in which rank 1 was slow.
            if 50 < event.step <= END_OF_SLOW_RANK:
                seconds[rank] += event.value

    # Rank 1 sleeps for 200 ms in each forward pass, so its times are far longer.
    assert seconds[1] > 1.5 * seconds[0]
