"""The attention kernels in Triton, which models/vrt/attention/gpu.py calls.

launches.py          starts the kernels
tiles.py             which windows the kernels take, and the sizes of their tiles
regions.py           numbers that the kernels read in place of masks
forward.py           the output
all_gradients.py     backward for windows of up to 128 tokens
several_passes.py    backward for larger windows
parts.py             functions that all kernels call: addresses and logits
"""
