"""A call for the processes of data/pool.py, in a module that loads at once."""

import time


def sleep(seconds, tick):
    time.sleep(seconds)
