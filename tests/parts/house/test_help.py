"""Every program and launcher explains itself with --help: usage, and two examples.

The programs must have all flags in these examples, and all flags in the commands of the documents
(called pages). tests/dist/help_worker.py asks many programs for their help in one process.

A launcher is a shell script that starts a program, e.g. launch_train.sh. A program with subcommands
takes one of them as its first argument, e.g. `spike_tool.py view`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.distributed import run

from tests.dist.launching import ROOT, run_command, run_ranks
from tests.helpers.documents import PAGES

# Programs end with this line. Other modules lack it.
IS_PROGRAM = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)


def names_of(paths: list[Path]) -> list[str]:
    """Return paths relative to the root, e.g. "scripts/doctor.py"."""
    return [str(path.relative_to(ROOT)) for path in paths]


def programs() -> list[str]:
    """Return the programs that users run."""
    modules = [*sorted(ROOT.glob("*.py")), *sorted(ROOT.glob("scripts/*.py"))]
    modules.append(ROOT / "tests/faults/trials.py")
    return names_of([path for path in modules if IS_PROGRAM.search(path.read_text())])


def launchers() -> list[str]:
    """Return the shell scripts that users run.

    A launcher begins with "#!". Shell scripts without "#!" are only read by launchers, by `source`.
    """
    scripts = [*sorted(ROOT.glob("*.sh")), *sorted(ROOT.glob("scripts/*.sh"))]
    return names_of([path for path in scripts if path.read_text().startswith("#!")])


PROGRAMS = programs()
LAUNCHERS = launchers()
WITH_SUBCOMMANDS = ("lab/benchmark.py", "scripts/spike_tool.py")
TRAIN = "main_train_vrt.py"
# Launcher -> the program that it starts. The launcher hands its flags over to this program.
MAIN_OF = {"launch_train.sh": TRAIN, "launch_test.sh": "main_test_vrt.py", "submit_job.sh": TRAIN}
# A flag, e.g. "--out". Two hyphens within a word, e.g. "a--out", are no flag.
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")


@dataclass
class Help:
    """What a program shows with --help."""

    code: int  # its exit code
    text: str  # what it prints

    @property
    def options(self) -> str:
        """The part that lists the options, or the whole text if there is no such part."""
        _, _, listed = self.text.partition("\noptions:")
        return listed or self.text


# ---- Flags in the help and in the pages ----


def flags(text: str) -> set[str]:
    """Return the flags in a text, e.g. {"__nproc_per_node"}.

    Hyphens become underscores, because torchrun takes its flags in both forms.
    """
    return {flag.replace("-", "_") for flag in FLAG.findall(text)}


def examples(program: str, text: str) -> list[str]:
    """Return the arguments of each example in the help of a program.

    E.g. the line "  python scripts/doctor.py --data    check the data" -> "--data".

    text: the help. An example is an indented line. The usage is indented, too, but it has brackets.
    """
    if program.startswith("tests/"):
        # Programs of the tests are called as modules, e.g. "python -m tests.faults.trials".
        program = program.removesuffix(".py").replace("/", ".")
    # Matches the name of the program, but not within a longer name. Group 1 is the rest of the
    # line.
    called = re.compile(rf"(?<![\w.]){re.escape(program)}(?!\w)(.*)")
    # A long example continues in the next line after a backslash.
    joined = re.sub(r" *\\\n +", " ", text)
    found = []
    for line in joined.splitlines():
        call = called.search(line)
        if call and line.startswith("  ") and "[" not in line:
            # Two spaces separate the arguments from the words that explain the example.
            rest_of_line = call[1]
            arguments = rest_of_line.split("  ")[0]
            found.append(arguments)
    return found


# A call of a program in a page. Group 1 is the program, and group 2 has its arguments.
CALL = re.compile(
    r"""
    (
        (?:scripts|lab)/\w+\.py            # e.g. scripts/doctor.py
        | main_(?:train|test)\w*\.\w+      # e.g. main_train_vrt.py
        | \./launch_(?:train|test)\w*\.\w+ # e.g. ./launch_train.sh
    )
    (.*)
    """,
    re.VERBOSE,
)
# A command between backticks in a sentence, e.g. `python main_train_vrt.py --opt x.json`.
COMMAND_IN_SENTENCE = re.compile(r"`((?:python|torchrun|\./launch)[^`\n]*)`")


def commands_in(page: Path) -> list[str]:
    """Return the commands of a page, each in one line without its comment.

    The commands are the lines of blocks of code, and the commands between backticks in sentences.
    """
    # A long command continues in the next line after a backslash.
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = []
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        commands += block.splitlines()
    commands += COMMAND_IN_SENTENCE.findall(text)
    return [re.sub(r"\s+#.*", "", command) for command in commands]


def flags_in_pages() -> dict[str, set[str]]:
    """Return the flags that the pages give to programs.

    E.g. "scripts/spike_tool.py view" -> {"--size", "--out"}. "view" is a subcommand.
    """
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for command in commands_in(page):
            call = CALL.search(command)
            if not call:
                continue
            program, arguments = call.groups()
            given = set(FLAG.findall(arguments))
            if not given:
                continue
            # Flags of a launcher are flags of the program that it starts. E.g. "./launch_train.sh"
            # in a page becomes "launch_train.sh", and then "main_train_vrt.py".
            launcher = program.removeprefix("./")
            program = MAIN_OF.get(launcher, program)
            names = [program]
            if program in WITH_SUBCOMMANDS:
                # A page may write several subcommands as one, e.g. "spike_tool.py view|info".
                subcommands = arguments.split()[0]
                names = [f"{program} {subcommand}" for subcommand in subcommands.split("|")]
            for name in names:
                if name not in found:
                    found[name] = set()
                found[name].update(given)
    return found


FLAGS_IN_PAGES = flags_in_pages()


# ---- The help of all programs ----


def ask_for_help(names: list[str]) -> dict[str, Help]:
    """Return the help of programs and subcommands. One process asks for all of them."""
    answers = run_ranks(1, "tests/dist/help_worker.py", *names, limit_s=120).json
    return {name: Help(code, text) for name, (code, text) in answers.items()}


@pytest.fixture(scope="module")
def help_texts() -> dict[str, Help]:
    """Give the help of all programs, subcommands and launchers, by their names.

    E.g. "scripts/spike_tool.py view" is a subcommand. The names of subcommands are taken from the
    examples and the pages. So a subcommand is missing if no example and no page uses it.
    """
    found = ask_for_help(sorted({*PROGRAMS, *FLAGS_IN_PAGES}))

    subcommands = set()
    for program in WITH_SUBCOMMANDS:
        if program in PROGRAMS:
            for arguments in examples(program, found[program].text):
                subcommands.add(f"{program} {arguments.split()[0]}")
    found |= ask_for_help(sorted(subcommands))

    for name in LAUNCHERS:
        result = run_command([ROOT / name, "--help"], limit_s=20)
        found[name] = Help(result.exit_codes[0], result.text)
    return found


@pytest.mark.parametrize("program", [*PROGRAMS, *LAUNCHERS])
def test_help_shows_usage(help_texts, program):
    assert help_texts[program].code == 0, help_texts[program].text
    assert "usage:" in help_texts[program].text.lower()


@pytest.mark.parametrize("program", [*PROGRAMS, *LAUNCHERS])
def test_help_shows_two_examples(help_texts, program):
    text = help_texts[program].text

    assert len(examples(program, text)) >= 2, text


def flags_that_exist(shown: dict[str, Help], program: str, arguments: str) -> set[str]:
    """Return the flags that a program takes in an example with these arguments.

    The flags have underscores, as `flags` returns them: "--nproc-per-node" is "__nproc_per_node".

    shown: the help of all programs.
    """
    if program in WITH_SUBCOMMANDS:
        program = f"{program} {arguments.split()[0]}"
    known = flags(shown[MAIN_OF.get(program, program)].options)
    if program == "scripts/torchrun_quiet.py":
        # This program runs torchrun, and torchrun runs the training. So this program also takes the
        # flags of torchrun and of the training.
        known |= flags(run.get_args_parser().format_help()) | flags(shown[TRAIN].options)
    return known | {"__help"}


@pytest.mark.parametrize("program", [*PROGRAMS, *LAUNCHERS])
def test_the_flags_in_the_examples_are_flags_of_the_program(help_texts, program):
    for arguments in examples(program, help_texts[program].text):
        assert flags(arguments) <= flags_that_exist(help_texts, program, arguments), arguments


def test_flags_in_the_pages_are_found():
    # If the pages wrote their commands in another form, the patterns above would find nothing, and
    # the next test would check nothing. 10 and 30 were chosen by hand.
    assert len(FLAGS_IN_PAGES) > 10
    assert sum(len(given) for given in FLAGS_IN_PAGES.values()) > 30


@pytest.mark.parametrize("program", sorted(FLAGS_IN_PAGES))
def test_the_flags_in_the_pages_are_flags_of_the_programs(help_texts, program):
    # A page must write a flag as the help does, hyphens included. So this test uses FLAG. It does
    # not use `flags`, because `flags` replaces hyphens by underscores.
    flags_of_program = set(FLAG.findall(help_texts[program].text))

    assert FLAGS_IN_PAGES[program] <= flags_of_program


# The command of a job, in a page or in the help of submit_job.sh, up to the name of the script.
JOB = re.compile(r"sbatch .*submit_job\.sh")


@pytest.mark.parametrize("where", ["submit_job.sh", "docs/ddp.md", "docs/zh/ddp.md"])
def test_a_job_asks_for_a_gpu_for_each_task(help_texts, where):
    if where in help_texts:
        text = help_texts[where].text
    else:
        text = (ROOT / where).read_text(encoding="utf-8")
    jobs_with_tasks = []
    for job in JOB.findall(text):
        if "--ntasks-per-node=" in job:
            jobs_with_tasks.append(job)

    assert jobs_with_tasks
    for job in jobs_with_tasks:
        # The number of tasks, or a letter that stands for it.
        [tasks] = re.findall(r"--ntasks-per-node=(\w+)", job)
        # Without a flag for GPUs, a job gets the number of GPUs that submit_job.sh says, even if it
        # has another number of tasks.
        if "--gres=" in job:
            # Some clusters know only --gres. For these clusters, the line of submit_job.sh must
            # change, too.
            assert f"--gres=gpu:{tasks} " in job
            assert "`#SBATCH --gres=gpu:8`" in text
        else:
            assert f"--gpus-per-node={tasks} " in job
