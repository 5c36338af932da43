"""Attention within a window of tokens, and its parameters.

layer.py            the attention of a block, with its parameters
window.py           chooses the form of the attention
heads.py            queries, keys and values; bias and mask
cpu.py              our form for CPUs, with gradients
cpu_forward.py      the forward pass of the form for CPUs
cpu_gradients.py    the gradients of the form for CPUs
gpu.py              our form for GPUs, with gradients
kernels/            the Triton kernels of the form for GPUs
"""
