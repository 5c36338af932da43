"""The memory of a training step: how much it takes, and how it is made smaller.

fit_memory.py     chooses which branches backward recomputes (netG.checkpoint "auto")
count.py          counts what autograd saves for backward, module by module
branches.py       measures the bytes and the work of each branch
saved_bytes.py    counts what autograd saves, in bytes
transient.py      estimates what a backward pass takes for a moment
advice.py         says which options make a step smaller, after a step ran out of memory
"""
