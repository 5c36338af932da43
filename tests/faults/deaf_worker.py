"""odd_worker.py that ignores the signals of a terminal and of a cluster from its start.

    deaf_worker.py  ARGUMENTS OF odd_worker.py

nohup starts programs with an ignored SIGHUP. For `command &` in a script, a shell starts programs
with an ignored SIGINT.
"""

import runpy
import signal

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

if __name__ == "__main__":
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    runpy.run_path("tests/dist/odd_worker.py", run_name="__main__")
