"""scripts/doctor.py: what the last lines of a log mean, and the checks before a run.

tests/data/log_lines.json has a line of a log for each failure that the doctor knows. The checks run
on two real ranks, and docs/troubleshooting.md must quote what the doctor really prints.

A finding is a row of the doctor's table: a status ("ok", "warn" or "fail"), the name of the check,
what was found, why it may be so, and the cure.
"""

import json
import re

import pytest

from scripts import doctor
from scripts.parts.doctor.doctor_failures import (
    FAIL,
    KNOWN_FAILURES,
    OK,
    WARN,
    Finding,
    read_log,
    table,
)
from tests.dist.launching import ROOT, RankResult, run_ranks
from tests.helpers.train_files import write_options

DOCTOR = "scripts/doctor.py"
# Exit code of the doctor if it has found a failure.
FOUND_A_FAILURE = 1
# A line of a log -> the name of what the doctor finds in it.
LINES = json.loads((ROOT / "tests/data/log_lines.json").read_text(encoding="utf-8"))

# ---- Logs ----


@pytest.mark.parametrize(("line", "name"), LINES.items())
def test_a_known_failure_is_explained(line, name):
    finding = read_log(f"step 1\n{line}\n")[0]

    assert finding.status == FAIL
    assert finding.check == name
    assert finding.why
    assert finding.cure
    # The texts have places for values of the line, e.g. "{rank}". All places must be filled.
    assert "{" not in finding.why


# Parts of a log: the first line of a start (`status_line` of utils/dist/status.py writes it), the
# last line of a run (utils/run/run.py), and an error. A log may have several starts of a run, but
# the doctor uses only the last start.
START = "[2026-01-01 00:00:00] rank 0 of 1 on host\n"
END = "Finished at iter 5. Results are in x\n"
CRASH = "Traceback (most recent call last):\n  File x\nKeyError: 'a'\n"


def test_decode_without_data_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--opt", "file.json", "--decode"])

    assert ended.value.code == 2
    assert "--decode needs --data" in capsys.readouterr().err


def test_a_log_without_an_end_is_no_success():
    assert read_log("step 1\n")[0].status == WARN


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(START + END, id="a start that ended well"),
        pytest.param(START + "KeyError: 'a'\n" + START + END, id="after a start with an error"),
        pytest.param(
            START + "StallError: rank 1 is STUCK: 9 s\n" + START + END,
            id="after a start with a rank that stood still",
        ),
    ],
)
def test_a_log_is_a_success_if_its_last_start_ended_well(log):
    assert read_log(log)[0].status == OK


def test_a_log_is_a_failure_if_its_last_start_crashed():
    findings = read_log(START + END + START + CRASH)

    assert [finding.status for finding in findings] == [FAIL]
    assert "Traceback" in findings[0].what


def test_only_the_failure_of_the_last_start_is_explained():
    first = START + "rank 1 is STUCK: 9 s\n"
    second = START + "rank 0 is SILENT: no beat\n"

    (finding,) = read_log(first + second)

    assert finding.what.startswith("line 4:")
    assert "rank 0 was silent" in finding.why


KILLED = "failed (exitcode: -9) local_rank: 1 (pid: 7)\n"  # a line of torchrun


@pytest.mark.parametrize("state", ["STUCK: 9 s", "SILENT: no beat for 9 s"])
def test_a_rank_that_the_watchdog_ended_is_not_said_to_lack_memory(state):
    findings = read_log(f"{START}rank 1 is {state}\n{KILLED}")

    assert [finding.check for finding in findings] == ["watchdog"]


def test_a_rank_whose_process_was_gone_counts_as_killed():
    findings = read_log(f"{START}rank 1 is DEAD: its process 7 is gone\n{KILLED}")

    assert [finding.check for finding in findings] == ["watchdog", "killed"]


# ---- The table ----


def test_the_doctor_reads_a_log_from_the_command_line(tmp_path, capsys):
    log = tmp_path / "job.log"
    log.write_text("rank 1 is DEAD: its process 7 is gone\n")

    code = doctor.main(["--log", str(log)])

    output = capsys.readouterr().out
    assert code == FOUND_A_FAILURE
    assert "rank 1 was dead" in output
    assert output.splitlines()[-1] == "0 ok, 0 warn, 1 fail"


def test_the_table_begins_with_what_is_well_and_ends_with_a_count():
    # The arguments are the status, the check, what was found, why, and the cure.
    failure = Finding(FAIL, "b", "x", "y", "z")
    success = Finding(OK, "a", "fine")

    lines = table([failure, success]).splitlines()

    assert lines[0].startswith("ok")
    assert lines[-1] == "1 ok, 0 warn, 1 fail"


# ---- The checks before a run ----


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Give an option file with its clips."""
    return write_options(tmp_path_factory.mktemp("examined"))


@pytest.fixture(scope="module")
def doctor_output(options) -> RankResult:
    """Give what the doctor prints on two ranks for an option file without faults."""
    return run_ranks(2, DOCTOR, "--opt", str(options), limit_s=240)


def test_two_ranks_are_examined_without_a_failure(doctor_output):
    assert doctor_output.exit_codes == [0, 0], doctor_output.text
    # Only rank 0 prints the table.
    assert "0 fail" in doctor_output.stdout[0]
    assert "0 fail" not in doctor_output.stdout[1]


@pytest.mark.parametrize(
    "check",
    ["all_reduce", "bandwidth", "shards", "parameters", "loader", "scaling", "gradients"],
)
def test_two_ranks_are_examined_together(doctor_output, check):
    assert f"ok    {check}" in doctor_output.stdout[0]


@pytest.mark.parametrize(
    ("timeout", "line"),
    [
        pytest.param("30.5", "ok    NCCL_TIMEOUT   30.5 s for every collective", id="a fraction"),
        pytest.param(
            "600000",
            "warn  NCCL_TIMEOUT   600000 s for every collective; that looks like milliseconds",
            id="milliseconds",
        ),
    ],
)
def test_the_timeout_of_the_environment_is_examined(timeout, line):
    result = run_ranks(1, DOCTOR, limit_s=100, env={"NCCL_TIMEOUT": timeout})

    assert line in result.stdout[0]


def test_a_wrong_option_is_a_finding(options):
    result = run_ranks(1, DOCTOR, "--opt", str(options), "train.total_itre=3")

    assert result.exit_codes == [FOUND_A_FAILURE]
    assert "fail  options        unknown option train.total_itre" in result.stdout[0]


# ---- docs/troubleshooting.md ----

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
# The findings that the page quotes: **name of the check** `text`.
QUOTED = re.findall(r"\*\*([^*]+)\*\* `([^`]+)`", PAGE)


def test_the_page_quotes_findings():
    # If the page wrote its findings in another form, the pattern would find no finding, and the
    # next tests would compare nothing.
    assert len(QUOTED) > 12


def findings_in_logs() -> list[str]:
    """Return what the doctor says of the lines of a log, as "<name of the check> <text>".

    Each finding gives two texts: what was found, and why it may be so.
    """
    stuck = [f'rank {rank} is STUCK: 301.2 s in phase "data"' for rank in (0, 1)]
    found = []
    for line in [*LINES, *stuck]:
        for finding in read_log(line):
            found.append(f"{finding.check} {finding.what}")
            found.append(f"{finding.check} {finding.why}")
    return found


@pytest.mark.parametrize(("name", "text"), QUOTED)
def test_the_doctor_prints_the_findings_that_the_page_quotes(doctor_output, name, text):
    rows = [row for row in doctor_output.stdout[0].splitlines() if f" {name} " in row]

    pattern = re.compile(rf"\b{re.escape(name)} .*{re.escape(text)}")
    assert any(pattern.search(line) for line in [*rows, *findings_in_logs()])


# A row of the table of known failures has a name, a pattern in the log, an explanation and a cure.
@pytest.mark.parametrize(
    ("name", "cure"),
    [(name, cure) for name, _pattern, _why, cure in json.loads(KNOWN_FAILURES.read_text())],
)
def test_the_page_has_an_entry_for_each_known_failure(name, cure):
    assert f"**{name}**" in PAGE
    assert cure in PAGE
