"""Train as stall_worker.py does, but kill the reporting rank before it has reported.

    reporter_worker.py REPORTER  ARGUMENTS OF stall_worker.py

Only rank REPORTER looks for a rank that stands still. It claims the report, and gets SIGKILL a
second later, as the out-of-memory killer would send it. By then the other ranks have read the
claim.
"""

import os
import runpy
import signal
import sys
import time

REPORTER = int(sys.argv.pop(1))

from utils.dist.verdict import Judge  # noqa: E402
from utils.dist.watchdog_thread import Watchdog  # noqa: E402

judge = Judge.verdict


def verdict_of_reporter(self, stall_s):
    """Judge only on rank REPORTER."""
    return judge(self, stall_s) if self.beats.rank == REPORTER else None


def killed_before_report(self, verdict):
    """Kill this process after a second, in place of the report that `Watchdog._report` gives."""
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


Judge.verdict = verdict_of_reporter
Watchdog._report = killed_before_report
runpy.run_path("tests/faults/stall_worker.py", run_name="__main__")
