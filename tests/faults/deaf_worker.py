"""main_train_vrt.py that ignores the signals of a terminal and of a cluster from its start.

    deaf_worker.py  ARGUMENTS OF main_train_vrt.py

nohup starts programs like this, and so does a shell for `command &` in a script.
"""

import signal
import sys

import main_train_vrt
from utils.dist import process

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

if __name__ == "__main__":
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    process.end(main_train_vrt.main(sys.argv[1:]))
