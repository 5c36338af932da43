"""How much the learned steps depend on the seed and on the motion: the parts of motion_seeds.py.

runs.py        a run: a training of the steps with a seed, with or without the motion
training.py    trains the steps of all runs
restoring.py   restores clips by all runs at once, and scores them
table.py       the gains over the operator, as a table
"""
