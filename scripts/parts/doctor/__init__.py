"""Parts of scripts/doctor.py.

doctor_checks.py      checks of host, ranks and training
doctor_failures.py    what the failures in a log mean, with the table known_failures.json
"""
