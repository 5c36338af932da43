"""The commands that the documents of KAIR, BasicSR and S-VRT print: they start or ours is named."""

import re
import shlex
import sys

import pytest

from tests.dist.launching import ROOT, free_port, run_command, run_ranks
from tests.helpers.train_files import experiment, write_options

LAUNCH = (sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2")
# What answers KAIR's command in the test below.
OURS = (
    "python main_test_vrt.py --weights vrt/008 "
    "--input test_lq --output results/008_VRT_videodenoising_DAVIS --gt test_gt "
    "--tile 12,256 --overlap 2,20 --sigma 10 --save frames"
)
SHORT = ("datasets.test={}", "train.total_iter=1")


def said_by(script: str, *arguments: str, **env: str) -> str:
    """The one error of a program that ends with code 2."""
    result = run_ranks(1, script, *arguments, env=env)
    assert result.exit_codes == [2], result.text
    assert result.text.count("Error: ") == 1
    assert "Traceback" not in result.text
    for part in ("  in ", "  expected ", "  do "):
        assert part in result.text
    return result.text


def test_the_command_of_vrts_documents_trains_on_two_ranks(tmp_path):
    options = write_options(tmp_path)
    command = ("main_train_vrt.py", "--opt", str(options), "--dist", "True", *SHORT)

    result = run_command([*LAUNCH, f"--master_port={free_port()}", *command], 120)

    assert result.exit_codes == [0], result.text
    assert "Ranks:    2 on 1 host" in result.text
    assert (experiment(options) / "checkpoints/checkpoint_latest.pth").is_file()


@pytest.mark.parametrize(
    "flags",
    ["--launcher pytorch --local_rank {rank}", "--local-rank={rank} --dist 1", "--launcher none"],
)
def test_the_flags_of_a_launched_rank_are_taken(tmp_path, flags):
    options = write_options(tmp_path)
    arguments = {
        rank: ["-opt", str(options), *flags.format(rank=rank).split(), *SHORT] for rank in range(2)
    }

    result = run_ranks(2, "main_train_vrt.py", args_of=arguments, limit_s=120)

    assert result.exit_codes == [0, 0], result.text
    assert "it runs alone" not in result.text


def test_dist_without_a_launcher_trains_on_one_process_and_says_so(tmp_path):
    options = write_options(tmp_path)

    result = run_ranks(
        1, "main_train_vrt.py", "-opt", str(options), "--dist", "True", *SHORT, limit_s=120
    )

    assert result.exit_codes == [0], result.text
    assert result.text.count("it runs alone. ./launch_train.sh N FILE starts N") == 1


@pytest.mark.parametrize(("flags", "cure"), [
    ("--local_rank 1", "start with torchrun"),
    ("--launcher slurm", "./submit_job.sh"),
    ("--dist maybe", "True or False"),
    ("--launcher mpi", "'none', 'pytorch', 'slurm'"),
    ("--prepare-data", "scripts/prepare_gopro_spike.py --source GOPRO_Large_all --out trainsets"),
    ("--auto_resume", "a repeated command resumes the run"),
    ("--force_yml train:lr=1", "section.key=value"),
])  # fmt: skip
def test_a_flag_that_says_something_else_here_is_refused_with_the_cure(flags, cure):
    assert cure in said_by("main_train_vrt.py", "-opt", "file.json", *flags.split())


def test_the_test_command_of_kair_is_answered_with_ours():
    theirs = (
        "--task 008_VRT_videodenoising_DAVIS --sigma 10 --folder_lq test_lq --folder_gt test_gt "
        "--tile 12 256 128 --tile_overlap 2 20 20 --num_workers 2 --save_result"
    )

    said = said_by("main_test_vrt.py", *theirs.split())

    for flag in set(re.findall(r"--\w+", theirs)) - {"--sigma"}:
        assert f"{flag} ->" in said
    assert said.rpartition("  do ")[2].split() == OURS.split()


def test_the_command_that_answers_kairs_is_one_that_this_program_takes(tmp_path):
    # Only the weights are missing.
    said = said_by(
        "main_test_vrt.py", "--task", "010", "--folder_lq", str(tmp_path), "--tile", "6", "64", "64"
    )
    ours = shlex.split(said.rpartition("  do ")[2])[2:]

    result = run_ranks(1, "main_test_vrt.py", *ours)

    assert result.exit_codes == [3], result.text
    assert "no released weights of this name" in result.text, result.text


def test_a_tile_in_our_form_is_no_flag_of_kairs():
    said = said_by("main_test_vrt.py", "--tile", "12,256", "--opt", "nowhere.json")
    assert "cannot read the option file" in said


def test_an_option_file_is_given_to_the_test_program_with_one_hyphen_too():
    said = said_by("main_test_vrt.py", "-opt", str(ROOT / "nowhere.json"), "--launcher", "none")
    assert "cannot read the option file" in said
