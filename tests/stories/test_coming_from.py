"""The commands in the documents of KAIR, BasicSR and S-VRT run here, or an error names ours.

KAIR, BasicSR and S-VRT are other projects. Their users may try their usual commands here. If the
flags of a training command mean the same in this project, the command works. If a flag means
something else here, it is refused, and the error says what to do instead (the cure). The test
command of KAIR is refused, too, and the error gives the equivalent command of this project.

What is tested: utils/options/foreign_flags.py.
"""

import re
import shlex

import pytest

from tests.dist.launching import ROOT, free_port, run_ranks
from tests.helpers.train_files import folder_of_run, write_odd_options, write_options

# The launcher of KAIR's documents, for two ranks. It does the same as `python -m
# torch.distributed.launch`, but starts faster, because torch is already imported.
LAUNCH = ("tests/dist/run_module.py", "torch.distributed.launch", "--nproc_per_node=2")
# A test command of KAIR, and the command that the program advises in its place. KAIR's tiles have
# frames, height and width. Our tiles are square, so the width, 128, is dropped.
THEIRS = (
    "--task 008_VRT_videodenoising_DAVIS --sigma 10 --folder_lq test_lq --folder_gt test_gt "
    "--tile 12 256 128 --tile_overlap 2 20 20 --num_workers 2 --save_result"
)
OURS = (
    "python main_test_vrt.py --weights vrt/008 "
    "--input test_lq --output results/008_VRT_videodenoising_DAVIS --gt test_gt "
    "--tile 12,256 --overlap 2,20 --sigma 10 --save frames"
)
# Options of a training of one step without a validation.
SHORT = ("datasets.test={}", "train.total_iter=1")
# A program that trains the network "odd", a single convolution. The first arguments, CASE RANK
# STEP, say what goes wrong. In the case "none" nothing goes wrong, and RANK and STEP have no
# meaning. All arguments after "train" are arguments of main_train_vrt.py.
WORKER = ("tests/dist/odd_worker.py", "none", "0", "0", "train")
# Exit codes.
WRONG_OPTIONS = 2
WRONG_DATA = 3


def refusal_of(script: str, *arguments: str) -> str:
    """Run a program that refuses its arguments. Returns the text of its one error."""
    result = run_ranks(1, script, *arguments)
    assert result.exit_codes == [WRONG_OPTIONS], result.text
    assert result.text.count("Error: ") == 1
    assert "Traceback" not in result.text
    # An error has four parts. The first part says what is wrong. The other three parts begin with
    # these words.
    for part in ("  in ", "  expected ", "  do "):
        assert part in result.text
    return result.text


def advised_command(message: str) -> list[str]:
    """Return the words of the command that an error advises: the text after its last "do"."""
    _, _, advice = message.rpartition("  do ")
    return shlex.split(advice)


# ---- Trainings ----


def test_the_command_of_vrts_documents_trains_on_two_ranks(tmp_path):
    options = write_options(tmp_path)
    command = ("main_train_vrt.py", "--opt", str(options), "--dist", "True", *SHORT)

    result = run_ranks(1, *LAUNCH, f"--master_port={free_port()}", *command, limit_s=120)

    assert result.exit_codes == [0], result.text
    assert "Ranks:    2 on 1 host" in result.text
    assert (folder_of_run(options) / "checkpoints/checkpoint_latest.pth").is_file()


@pytest.mark.parametrize(
    "flags",
    [
        # A launcher gives each rank its number.
        "--launcher pytorch --local_rank {rank}",
        "--local-rank={rank} --dist 1",
        "--launcher none",
    ],
)
def test_the_flags_of_a_launched_rank_are_taken(tmp_path, flags):
    options = write_odd_options(tmp_path)
    worker, *arguments = WORKER
    arguments_of_rank = {}
    for rank in range(2):
        flags_of_rank = flags.format(rank=rank).split()
        # "-opt" is another spelling of "--opt".
        arguments_of_rank[rank] = [*arguments, "-opt", str(options), *flags_of_rank, *SHORT]

    result = run_ranks(2, worker, args_of=arguments_of_rank, limit_s=120)

    assert result.exit_codes == [0, 0], result.text
    assert "it runs alone" not in result.text


def test_dist_without_a_launcher_trains_on_one_process_and_says_so(tmp_path):
    options = write_odd_options(tmp_path)

    result = run_ranks(1, *WORKER, "-opt", str(options), "--dist", "True", *SHORT, limit_s=120)

    assert result.exit_codes == [0], result.text
    assert result.text.count("it runs alone. ./launch_train.sh N FILE starts N") == 1


@pytest.mark.parametrize(
    ("flags", "cure"),
    [
        ("--local_rank 1", "start with torchrun"),
        ("--launcher slurm", "./submit_job.sh"),
        ("--dist maybe", "True or False"),
        ("--launcher mpi", "'none', 'pytorch', 'slurm'"),
        (
            "--prepare-data",
            "scripts/prepare_gopro_spike.py --source GOPRO_Large_all --out trainsets",
        ),
        ("--auto_resume", "a repeated command resumes the run"),
        ("--force_yml train:lr=1", "section.key=value"),
    ],
)
def test_a_flag_that_means_something_else_here_is_refused_with_the_cure(flags, cure):
    assert cure in refusal_of("main_train_vrt.py", "-opt", "file.json", *flags.split())


# ---- The test command of KAIR ----


@pytest.mark.parametrize("sigma", ["--sigma 10", "--sigma=10", "--sigma 5 --sigma=10"])
def test_the_test_command_of_kair_is_answered_with_ours(sigma):
    theirs = THEIRS.replace("--sigma 10", sigma)
    message = refusal_of("main_test_vrt.py", *theirs.split())

    # Each flag of KAIR is translated, except --sigma. This project has --sigma as well.
    for flag in re.findall(r"--\w+", THEIRS):
        if flag != "--sigma":
            assert f"{flag} ->" in message
    assert advised_command(message) == OURS.split()


def test_the_command_that_answers_kairs_is_one_that_this_program_takes(tmp_path):
    # There are no weights 010, because only 001 to 009 are released. The program notices this only
    # after it has read the whole command. So an error about the weights shows that the command is
    # right.
    theirs = f"--task 010 --folder_lq {tmp_path} --tile 6 64 64"
    message = refusal_of("main_test_vrt.py", *theirs.split())
    python, program, *ours = advised_command(message)
    assert (python, program) == ("python", "main_test_vrt.py")

    result = run_ranks(1, program, *ours)

    assert result.exit_codes == [WRONG_DATA], result.text
    assert "no released weights of this name" in result.text, result.text


def test_a_flag_of_kair_that_lacks_values_is_not_in_the_command():
    # KAIR's --tile_overlap has three values, and --folder_lq has one.
    theirs = "--task 008_VRT_videodenoising_DAVIS --tile_overlap 2 --folder_lq"

    message = refusal_of("main_test_vrt.py", *theirs.split())

    command = " ".join(advised_command(message))
    ours = "--weights vrt/008 --input FOLDER --output results/008_VRT_videodenoising_DAVIS"
    assert command == f"python main_test_vrt.py {ours}"


def test_a_tile_in_our_form_is_no_flag_of_kairs():
    message = refusal_of("main_test_vrt.py", "--tile", "12,256", "--opt", "nowhere.json")

    # The program takes the tile, and goes on to the option file.
    assert "cannot read the option file" in message


def test_an_option_file_is_given_to_the_test_program_with_one_hyphen_too():
    message = refusal_of(
        "main_test_vrt.py", "-opt", str(ROOT / "nowhere.json"), "--launcher", "none"
    )

    assert "cannot read the option file" in message
