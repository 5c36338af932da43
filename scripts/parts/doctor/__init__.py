"""Parts of scripts/doctor.py.

doctor_checks.py      all checks
doctor_host.py        checks of a host, which each rank makes for itself
doctor_ranks.py       checks of all ranks together
doctor_training.py    checks of options, data, network and a step
doctor_failures.py    what the failures in a log mean, with the table known_failures.json
"""
