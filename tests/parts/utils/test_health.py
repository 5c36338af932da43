"""Warnings of what makes a run slow or wastes it: where it is so, once, with what to do; not in a
healthy run.
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
from data.spike.simulate import IntegrateAndFire, to_linear
from main_train_vrt import read_options
from models.schedules import lr_floor, stretched_by
from tests.helpers.checked import present
from tests.helpers.clip_files import section, write_dat, write_info
from tests.helpers.small_disk import disk
from tests.helpers.textured_clips import make_textured_home
from tests.helpers.train_files import events_of, odd, write_options
from tests.helpers.two_cameras import texture
from utils.image import imwrite_rgb
from utils.run.measure import Health, Measured, host_memory, loader_advice

GB = 10**9


def measured(steps=10, data_s=0.1, forward_s=1.0, memory=None, cores=range(8), **values):
    return Measured(
        "node", tuple(cores), steps, 5.0, data_s, forward_s, 3.0, {"loss": 0.1} | values,
        memory or {"host": (4.0, 16.0)}, None,
    )  # fmt: skip


def health_of(opt, total_iter=1000):
    return Health(opt.folder, opt.train, opt.datasets, total_iter)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_textured_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def health(tmp_path):
    return health_of(read_options(["--opt", str(write_options(tmp_path))]))


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_exploding_gradient_norm_is_named_once_and_one_outlier_is_not(tmp_path, health, caplog):
    healthy = [1.0, 1.3, 0.8, 2.5, 90.0, 1.1] * 20
    health.logged([measured()], healthy)
    health.logged([measured()], healthy)
    assert warnings(caplog) == []
    for _ in range(3):
        health.logged([measured()], [30.0, 40.0, 35.0] * 40)
    (said,) = warnings(caplog)
    assert "the gradient norm explodes: median 35 over the last 120 steps, 1.2 before" in said
    assert "train.G_optimizer_lr (now 0.001), or set train.G_optimizer_clipgrad=2" in said
    caplog.clear()
    long = health_of(read_options(["--opt", str(write_options(tmp_path))]))
    for norm in (1.0, 35.0):
        long.logged([measured()], [norm] * 1000)
    assert (
        "the gradient norm explodes: median 35 over the last 1000 steps, 1 before"
        in warnings(caplog)[0]
    )


def test_ranks_that_share_their_cores_and_ranks_that_have_their_own_get_other_advice(
    health, caplog
):
    for _ in range(4):
        health.logged([measured(data_s=2.0, cores=range(4))] * 2, [])
    health.said.clear()
    health.logged([measured(data_s=2.0, cores=range(4)), measured(cores=range(4, 8))], [])
    shared, own = warnings(caplog)
    assert "(a rank has 2 CPU cores)" in shared and "(a rank has 4 CPU cores)" in own


def test_psnr_that_falls_while_the_loss_falls_is_named(health, caplog):
    def validate(psnrs, losses):
        for psnr, loss in zip(psnrs, losses, strict=True):
            health.logged([measured(loss=loss)], [1.0])
            health.validated(psnr)

    # Two falls, and better again
    validate([30.0, 30.5, 30.45, 30.4, 30.6], [0.5, 0.4, 0.3, 0.2, 0.2])
    validate([30.5, 30.4, 30.3, 30.2], [0.2, 0.3, 0.4, 0.5])  # the loss rises too: no overfitting
    assert warnings(caplog) == []
    validate([30.1, 30.0, 29.9], [0.4, 0.3, 0.2])
    (said,) = warnings(caplog)
    assert (
        "30.30 > 30.20 > 30.10 > 30.00 dB, loss 0.4000 to 0.3000" in said
        and "checkpoint_best.pth" in said
    )


def test_memory_that_is_nearly_full_is_named_with_its_rank(health, caplog):
    health.logged([measured(memory={"GPU": (75.0, 80.0), "host": (15.1, 16.0)})] * 2, [])
    assert warnings(caplog) == []
    full = [measured(), measured(memory={"GPU": (78.0, 80.0), "host": (15.9, 16.0)})]
    health.logged(full, [])
    health.logged(full, [])
    gpu, host = warnings(caplog)
    assert "the memory of the GPU is nearly full on rank 1, host node: 78.0 of 80.0 GB" in gpu
    assert 'netG.checkpoint="auto" with netG.memory_budget_gb=68 or less' in gpu
    assert (
        "the memory of the host is nearly full on rank 1" in host
        and "dataloader_num_workers (now 1)" in host
    )


def test_a_slow_rank_and_a_wait_for_data_are_named_after_three_windows_in_a_row(health, caplog):
    def log(count, *ranks):
        for _ in range(count):
            health.logged([measured(**rank) for rank in ranks], [])

    log(2, {}, {"data_s": 4.0})  # the first window of a process is not judged
    log(9, {}, {"forward_s": 0.9, "data_s": 0.4})  # neither 20 % slower nor a wait of 10 %
    log(2, {}, {"forward_s": 1.5, "data_s": 0.8})
    log(1, {}, {})
    assert warnings(caplog) == []
    log(4, {}, {}, {"forward_s": 1.5, "data_s": 0.8})
    wait, slow = warnings(caplog)
    assert wait.startswith("rank 2 on node waits for data 16 % of the time")
    assert slow.startswith("rank 2 on node is slower")
    assert "data 0.080 s + forward 0.150 s a step, the others 0.110 s" in slow


def test_the_memory_of_a_container_is_its_limit_and_without_one_that_of_the_host(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    job = groups / "slurm" / "job_7" / "step_0"
    job.mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(
        "MemTotal: 64000000 kB\nMemFree: 100 kB\nMemAvailable: 48000000 kB\n"
    )
    (proc / "self" / "cgroup").write_text("0::/slurm/job_7/step_0\n")
    for folder, limit in ((job, "max"), (job.parent, str(8 * GB)), (job.parents[1], "max")):
        (folder / "memory.max").write_text(limit + "\n")
        (folder / "memory.current").write_text(f"{7 * GB}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {GB}\nactive_file {GB // 2}\n")
    assert host_memory(proc, groups) == (5.5, 8.0)
    (job.parent / "memory.max").write_text("max\n")
    assert host_memory(proc, groups) == pytest.approx((16.384, 65.536))
    (proc / "self" / "cgroup").write_text("5:cpu,cpuacct:/job\n4:memory:/job\n")
    (groups / "memory" / "job").mkdir(parents=True)
    stat = f"cache 7\ntotal_inactive_file 0\ntotal_active_file {GB // 2}\n"
    for name, text in (("usage_in_bytes", 3 * GB), ("limit_in_bytes", 4 * GB), ("stat", stat)):
        (groups / "memory" / "job" / f"memory.{name}").write_text(str(text))
    assert host_memory(proc, groups) == (2.5, 4.0)
    used, total = present(host_memory())  # of this machine
    assert 0 < used < total


def test_a_disk_without_room_for_the_next_saves_is_named(tmp_path, caplog):
    with disk(tmp_path / "small", "13m") as small:
        path = write_options(tmp_path, path={"root": str(small)})
        opt = read_options(["--opt", str(path), "train.checkpoint_save=10"])
        for file in ("checkpoints/checkpoint_latest.pth", "models/30_G.pth", "models/30_E.pth"):
            (opt.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (opt.folder / file).write_bytes(bytes(1_000_000))
        health_of(opt, 50).saved(30)  # two more saves: they fit
        assert warnings(caplog) == []
        health = health_of(opt, 300)
        health.saved(30)
        health.saved(30)
    (said,) = warnings(caplog)
    assert (
        "room for 3 more saves of 0.002 GB, the run makes 27" in said
        and "train.checkpoint_save (now 10)" in said
    )


def test_the_wait_for_data_is_answered_with_the_number_of_workers_that_ends_it(tmp_path):
    section = present(read_options(["--opt", str(write_options(tmp_path))]).datasets.train)

    def advice(workers, share, cores):
        return loader_advice(
            section.model_copy(update={"dataloader_num_workers": workers}), share, cores
        )

    assert "set datasets.train.dataloader_num_workers=2 (now 0)" in advice(0, 0.5, 8)
    assert "set datasets.train.dataloader_num_workers=6 (now 4)" in advice(4, 0.3, 8)
    assert "num_workers" not in advice(8, 0.3, 8) and "build_clip_cache.py" in advice(8, 0.3, 8)


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    """Two clips without sharp frames, in which everything moves by 40 pixels during an exposure."""
    root, rng = tmp_path_factory.mktemp("fast"), np.random.default_rng(0)
    for clip in ("a", "b"):
        write_fast_clip(root, clip, texture(rng, (96, 96 + 4 * 40)))
    write_info(root, h=48, w=48, planes=40, gt_plane=20, rate=0.6, flip=None)
    return root


def write_fast_clip(root, clip, picture):
    """4 frames of 96 x 96, each the mean of 40 planes that are a pixel apart."""
    for frame in range(4):
        parts = [picture[:, 40 * frame + plane :][:, :96] for plane in range(40)]
        blurry = np.round(255 * np.mean(parts, axis=0)).astype(np.uint8)
        imwrite_rgb(
            root / "GOPRO_Large/train" / clip / f"blur/{frame:06d}.png",
            np.repeat(blurry[..., None], 3, 2),
        )
        light = [
            cv2.resize(to_linear(part), (48, 48), interpolation=cv2.INTER_AREA) for part in parts
        ]
        sensor = IntegrateAndFire(48, 48, rate=0.6, rng=np.random.default_rng(frame))
        write_dat(
            root / "GOPRO_Large_spike_seq/train" / clip / f"spike/{frame:06d}.dat",
            sensor.run(light),
        )


RELATIVE = {"type": "relative", "half_windows": [2, 6, 12]}


@pytest.mark.parametrize(
    "representation", [RELATIVE, {"type": "tfp", "half_window": 3}], ids=["relative", "tfp"]
)
def test_strong_blur_without_sharp_frames_is_no_wrong_geometry(fast, tmp_path, representation):
    spikes, frames, exchanged = (
        fast / "GOPRO_Large_spike_seq/train",
        fast / "GOPRO_Large/train",
        tmp_path / "train",
    )
    for clip, other in ("ab", "ba"):
        shutil.copytree(spikes / clip, exchanged / other)
    spike = {
        "type": "dat",
        "h": 48,
        "w": 48,
        "center": 20,
        "gamma": 2.2,
        "representation": representation,
    }

    def train(folder=spikes, **changes):
        options = section(
            fast, num_frame=3, gt_size=48, spike=spike | changes, dataroot_spike=str(folder)
        )
        del options["dataroot_gt"]
        return warning_of(build_dataset(options, "train", 5), "opt.json")

    def own(folder=spikes, **changes):
        return warning_of(user_clips(frames, folder, spike_options=spike | changes))

    for look in (train, own):
        assert look() is None
        assert "upside down (spike.flip)" in look(flip=False)
        assert "They do not agree" in look(exchanged)
    assert "scripts/show_sample.py --opt opt.json --index 0" in train(flip=False)


def test_a_wrong_size_of_a_plane_is_named_before_the_users_own_frames_are_restored(
    home, tmp_path, capfd
):
    frames, spikes = home / "GOPRO_Large/train/clip0/blur", tmp_path / "spike"
    # Away from dataset.json
    shutil.copytree(home / "GOPRO_Large_spike_seq/train/clip0/spike", spikes)

    def look(method, side):
        out = tmp_path / f"{method}{side}"
        args = f"--method {method} --input {frames} --spike {spikes} --spike-size {side} {side} "
        args += f"--output {out} --save frames spike.rate=0.6"
        assert main_test_vrt.main(args.split()) == 0
        return [
            said for said in capfd.readouterr().out.splitlines() if "do not show the same" in said
        ]

    assert look("tfi", 48) == look("exposure", 48) == []
    (said,) = look("tfi", 24)
    assert (
        "4 of 4 frames do not show the same. clip0/000000" in said and "spike.h and spike.w" in said
    )
    assert f"scripts/spike_tool.py info {spikes}/000000.dat" in said


STEPS = {"G_scheduler_type": "MultiStepLR", "G_scheduler_milestones": [300, 600]}


@pytest.mark.parametrize(("changes", "floor"), [
    ({"G_scheduler_periods": 1000}, 980),
    ({"G_scheduler_periods": 950}, 931),
    ({"G_scheduler_periods": [200, 300], "G_scheduler_restart_weights": [1, 0.5]}, 491),
    (STEPS | {"G_scheduler_gamma": 0.01}, 600),
    (STEPS | {"G_scheduler_gamma": 0.5}, None),
])  # fmt: skip
def test_a_learning_rate_at_its_floor_long_before_the_end_is_named(
    tmp_path, caplog, changes, floor
):
    overrides = [f"train.{key}={json.dumps(value)}" for key, value in changes.items()]
    opt = read_options(["--opt", str(write_options(tmp_path)), *overrides])
    assert lr_floor(opt.train, 1000) == (pytest.approx(floor, abs=2) if floor else None)
    health_of(opt).planned(lr_floor(opt.train, 1000), stretched_by(opt.train))
    said = warnings(caplog)
    assert bool(said) == (floor is not None and floor < 900), said
    assert not said or "stretch train.G_scheduler_" in said[0]


# Without the two that are true on a busy machine: a slow rank, a wait for data.
# tests/parts/utils/test_health.py has them.
WARNINGS = (
    "explodes",
    "nearly full",
    "at its floor",
    "has room for",
    "falls while",
    "do not show the same",
)


@pytest.fixture(scope="module")
def runs(home, tmp_path_factory):
    """Two ranks: 25 steps; then 50 more without loader processes, a slow rank 1 and too short a
    schedule.
    """
    folder = tmp_path_factory.mktemp("dashboards")
    options = json.loads((home / "options.json").read_text())
    loader = {
        "dataloader_batch_size": 4,
        "dataloader_num_workers": 2,
        "dataloader_epoch_repeat": 200,
    }
    options["datasets"]["train"] |= loader
    options |= {"netG": {"net_type": "odd"}, "path": {"root": str(folder / "experiments")}}
    every = {
        "checkpoint_print": 5,
        "checkpoint_test": 25,
        "checkpoint_save": 25,
        "G_scheduler_periods": 100,
    }
    options["train"] = {"total_iter": 25, "G_lossfn_type": "charbonnier", **every}
    (folder / "options.json").write_text(json.dumps(options))

    def run(times, *overrides):
        result = odd(folder / "options.json", *overrides, case="busy", struck=(1, times), ranks=2)
        assert result.exit_codes == [0, 0], result.text
        return result.text

    slow = (
        "train.total_iter=75",
        "datasets.train.dataloader_num_workers=0",
        "train.G_scheduler_periods=45",
    )
    return folder / "options.json", (run(1), run(3, *slow))


def test_a_slow_rank_a_slow_loader_and_a_short_schedule_are_named_once(
    runs,
):
    healthy, text = runs[1]
    assert [words for words in WARNINGS if words in healthy] == []
    slow = r"rank 1 on \S+ is slower than the others, which wait for it at every step: "
    slow += r"data \S+ s \+ forward [\d.]+ s"
    wait = r"rank \d on \S+ waits for data \d+ % of the time, and all others with it: "
    floor = r"at its floor from iter 45 on, for 40 % of the run, .*: "
    floor += r"stretch train\.G_scheduler_periods to the end"
    for pattern in (slow, wait, floor):
        assert len(re.findall(pattern, text)) == 1, (pattern, text)


def test_the_event_files_hold_each_rank_and_no_step_twice(runs):
    events = events_of(runs[0])
    steps = {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert steps["train/loss"] == steps["train/grad_norm"] == list(range(5, 76, 5))
    assert steps["val/psnr"] == steps["clips/psnr/clip0"] == [25, 50, 75]
    own = {
        f"ranks/{name}/{rank}" for name in ("data_s", "forward_s", "compute_s") for rank in (0, 1)
    }
    assert own <= steps.keys() and all(steps[tag] == steps["train/loss"] for tag in own)
    first, second = (
        [event.value for event in events.Scalars(f"ranks/forward_s/{rank}")][-5:] for rank in (0, 1)
    )
    assert sum(second) > 1.5 * sum(first)
