"""Parts of scripts/torchrun_quiet.py.

one_host.py           lets the ranks of one host meet without a port
restarts.py           whether ranks are started again after a failure
"""
