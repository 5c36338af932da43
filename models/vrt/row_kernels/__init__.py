"""Triton kernels over rows of channels, with gradients. A row is the channels of one token.

layer_norm.py    LayerNorm
geglu.py         the gated unit of the MLP
tiles.py         the size of a tile, and the number of programs
"""
