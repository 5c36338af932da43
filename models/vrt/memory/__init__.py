"""The memory of a training step: how much it takes, and how it is made smaller.

fit_memory.py     chooses what backward computes again (netG.checkpoint "auto")
count.py          counts what each module keeps for backward
branches.py       measures what a branch keeps, and what work it takes
saved_bytes.py    counts what autograd saves, in bytes
transient.py      estimates what a backward pass takes for a moment
advice.py         says which options make a step smaller that ran out of memory
"""
