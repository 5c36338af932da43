"""Every program and launcher explains itself with --help: usage, and two examples.

The flags in these examples, and the flags in the commands of all pages, must be flags that the
programs have. tests/dist/help_worker.py asks many programs for their help in one process.
"""

import re

import pytest
from torch.distributed import run

from tests.dist.launching import ROOT, run_command, run_ranks
from tests.helpers.documents import PAGES

# Programs end with this line.
IS_PROGRAM = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)
PROGRAMS = [
    str(path.relative_to(ROOT))
    for path in [
        *sorted(ROOT.glob("*.py")),
        *sorted(ROOT.glob("scripts/*.py")),
        ROOT / "tests/faults/trials.py",
    ]
    if IS_PROGRAM.search(path.read_text(encoding="utf-8"))
]
LAUNCHERS = [
    str(path.relative_to(ROOT))
    for path in [*sorted(ROOT.glob("*.sh")), *sorted(ROOT.glob("scripts/*.sh"))]
    if path.read_text(encoding="utf-8").startswith("#!")  # the others are sourced
]
# A call of a program in a page: the program, then its arguments.
CALL = re.compile(r"((?:scripts|lab)/\w+\.py|(?:main|\./launch)_(?:train|test)\w*\.\w+)(.*)")
# Programs with subcommands, e.g. `spike_tool.py view`.
WITH_PARTS = ("lab/benchmark.py", "scripts/spike_tool.py")
TRAIN = "main_train_vrt.py"
# Launcher -> the program that it starts, and whose flags it hands over.
MAIN_OF = {"launch_train.sh": TRAIN, "launch_test.sh": "main_test_vrt.py", "submit_job.sh": TRAIN}


def examples(program: str, text: str) -> list[str]:
    """Return the arguments of each example in the help of a program.

    text: the help. An example is an indented line. So is the usage, but it has brackets.
    """
    name = (
        program.removesuffix(".py").replace("/", ".") if program.startswith("tests/") else program
    )
    joined = re.sub(r" *\\\n +", " ", text)
    called = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)(.*)")
    lines = [line for line in joined.splitlines() if line.startswith("  ") and "[" not in line]
    return [found[1].split("  ")[0] for line in lines if (found := called.search(line))]


def flags(text: str) -> set[str]:
    """Return the flags in a text, e.g. {"__nproc_per_node"}.

    Hyphens become underscores, because torchrun takes its flags in both forms.
    """
    return {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)}


def flags_in_pages() -> dict[str, set[str]]:
    """Return the flags that the pages give to programs, in blocks of code and in sentences.

    E.g. "scripts/spike_tool.py view" -> {"--size", "--out"}, a program with its subcommand.
    """
    found: dict[str, set[str]] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [
            line
            for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
            for line in block.splitlines()
        ]
        for line in [*lines, *re.findall(r"`((?:python|torchrun|\./launch)[^`\n]*)`", text)]:
            call = CALL.search(re.sub(r"\s+#.*", "", line))
            if call and (given := set(re.findall(r"(?<![\w-])--[a-z][\w-]*", call[2]))):
                program = re.sub(r"\./launch_(\w+)\.sh", r"main_\1_vrt.py", call[1])
                for part in call[2].split()[0].split("|") if program in WITH_PARTS else [""]:
                    found.setdefault(f"{program} {part}".strip(), set()).update(given)
    return found


@pytest.fixture(scope="module")
def shown():
    """Give the help of all programs, subcommands and launchers: name -> [exit code, text].

    The subcommands are those in examples and in pages.
    """
    called = sorted({*PROGRAMS, *flags_in_pages()})
    found = run_ranks(1, "tests/dist/help_worker.py", *called, limit_s=120).json
    parts = {
        f"{name} {arguments.split()[0]}"
        for name in WITH_PARTS if name in PROGRAMS for arguments in examples(name, found[name][1])
    }  # fmt: skip
    found |= run_ranks(1, "tests/dist/help_worker.py", *sorted(parts), limit_s=120).json
    for name in LAUNCHERS:
        result = run_command([ROOT / name, "--help"], 20)
        found[name] = [result.exit_codes[0], result.text]
    return found


@pytest.mark.parametrize("program", [*PROGRAMS, *LAUNCHERS])
def test_help_shows_usage_and_two_examples_with_flags_that_exist(shown, program):
    code, text = shown[program]
    assert code == 0, text
    assert "usage:" in text.lower(), text
    given = examples(program, text)
    assert len(given) >= 2, text
    for arguments in given:
        known = shown[MAIN_OF.get(program, program)][1]
        if program in WITH_PARTS:
            known = shown[f"{program} {arguments.split()[0]}"][1]
        elif program == "scripts/torchrun_quiet.py":
            known += run.get_args_parser().format_help() + shown[TRAIN][1]
        # Where a program lists its options, an example must be among them, not only in its own
        # text.
        listed = known.partition("\noptions:")[2] or known
        assert flags(arguments) <= flags(listed) | {"__help"}, arguments


def test_the_flags_in_the_pages_are_flags_of_the_programs(shown):
    found = flags_in_pages()
    assert len(found) > 10
    assert sum(map(len, found.values())) > 30
    unknown = {
        name: given - set(re.findall(r"--[a-z][\w-]*", shown[name][1]))
        for name, given in found.items()
    }

    assert not any(unknown.values()), unknown
