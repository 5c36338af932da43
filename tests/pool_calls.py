"""Calls for the processes of data/pool.py, in a module that loads at once."""

import os
import time


def sleep(seconds, tick):
    time.sleep(seconds)


def leave(code, tick):
    os._exit(code)
