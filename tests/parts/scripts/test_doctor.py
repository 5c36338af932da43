"""scripts/doctor.py: what the last lines of a log mean, and the checks before a run.

tests/data/log_lines.json has a line of a log for each failure that the doctor knows. The checks run
on two real ranks, and docs/troubleshooting.md must quote what the doctor really prints.
"""

import json
import re

import pytest

from scripts import doctor
from scripts.parts.doctor_failures import FAIL, KNOWN_FAILURES, OK, WARN, Finding, read_log, table
from tests.dist.launching import ROOT, run_ranks
from tests.helpers.train_files import write_options

DOCTOR = "scripts/doctor.py"
# A line of a log -> the name of what the doctor finds in it.
LINES = json.loads((ROOT / "tests/data/log_lines.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("line", "name"), LINES.items())
def test_a_known_failure_is_explained(line, name):
    finding = read_log(f"step 1\n{line}\n")[0]

    assert (finding.status, finding.check) == (FAIL, name)
    assert finding.why
    assert finding.cure
    assert "{" not in finding.why


def test_a_log_without_a_known_failure_is_no_success_unless_it_says_so():
    assert read_log("step 1\n")[0].status == WARN
    # A log may have several starts of a run. Only the last one counts.
    start = "[2026-01-01 00:00:00] rank 0 of 1 on host\n"
    end = "Finished at iter 5. Results are in x\n"
    assert read_log(start + end)[0].status == OK
    crashed = read_log(
        start + end + start + "Traceback (most recent call last):\n  File x\nKeyError: 'a'\n"
    )
    assert [finding.status for finding in crashed] == [FAIL]
    assert "Traceback" in crashed[0].what
    assert read_log(start + "KeyError: 'a'\n" + start + end)[0].status == OK
    assert read_log(start + "StallError: rank 1 is STUCK: 9 s\n" + start + end)[0].status == OK
    (finding,) = read_log(start + "rank 1 is STUCK: 9 s\n" + start + "rank 0 is SILENT: no beat\n")

    assert finding.what.startswith("line 4:")
    assert "rank 0 was silent" in finding.why


def test_the_doctor_reads_a_log_from_the_command_line_and_the_table_ends_with_a_count(
    tmp_path, capsys
):
    log = tmp_path / "job.log"
    log.write_text("rank 1 is DEAD: its process 7 is gone\n")
    assert doctor.main(["--log", str(log)]) == 1
    said = capsys.readouterr().out
    assert "rank 1 was dead" in said
    assert said.splitlines()[-1] == "0 ok, 0 warn, 1 fail"
    text = table([Finding(FAIL, "b", "x", "y", "z"), Finding(OK, "a", "fine")])

    assert text.splitlines()[0].startswith("ok")
    assert text.splitlines()[-1] == "1 ok, 0 warn, 1 fail"


def test_two_ranks_are_examined_together_and_a_wrong_option_is_a_finding(tmp_path):
    options = write_options(tmp_path)

    result = run_ranks(2, DOCTOR, "--opt", str(options), limit_s=240)

    assert result.exit_codes == [0, 0], result.text
    for check in (
        "all_reduce",
        "bandwidth",
        "shards",
        "parameters",
        "loader",
        "scaling",
        "gradients",
    ):
        assert f"ok    {check}" in result.stdout[0]
    # Every finding that the guide quotes, as **name** `text`, is one that the doctor prints: in the
    # table of this run, or for a log.
    in_logs = [
        f"{finding.check} {text}"
        for line in [
            *LINES,
            'rank 1 is STUCK: 301.2 s in phase "data"',
            'rank 0 is STUCK: 301.2 s in phase "data"',
        ]
        for finding in read_log(line)
        for text in (finding.what, finding.why)
    ]
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"\*\*([^*]+)\*\* `([^`]+)`", page)
    assert len(quoted) > 12
    for name, text in quoted:
        own = [line for line in result.stdout[0].splitlines() if f" {name} " in line]
        pattern = rf"\b{re.escape(name)} .*{re.escape(text)}"
        assert any(re.search(pattern, line) for line in [*own, *in_logs]), (name, text)
    for name, _, _, cure in json.loads(
        KNOWN_FAILURES.read_text()
    ):  # and every known failure has an entry
        assert f"**{name}**" in page
        assert cure in page
    assert "0 fail" in result.stdout[0]
    assert "0 fail" not in result.stdout[1]

    result = run_ranks(1, DOCTOR, "--opt", str(options), "train.total_itre=3")
    assert result.exit_codes == [1]
    assert "fail  options        unknown option train.total_itre" in result.stdout[0]
