"""The layers of VRT, and how they are computed in little memory.

The network, from its arguments to a pixel:

    design.py            arguments, and what follows from them
    check_arguments.py   refuses arguments that do not fit together
    requirements.py      sizes and channels of the input
    build.py             makes the layers
    flow.py              optical flows of a clip, by spynet.py
    stages.py            stages 1 to 8: blocks, resolution, alignment
    block.py             attention, then a gated MLP (gated_mlp.py)
    attention/           attention within a window
    windows.py           cuts a clip into windows
    positions.py         bias of two tokens in a window
    align_clip.py        aligns each frame with its neighbours
    deform_align.py      aligns some frames, by the convolution of deform_conv.py
    flow_warp.py         samples images along a flow
    stochastic_depth.py  drops branches in training
    layers.py            small layers that all parts share

Computation and memory:

    forms.py             which form runs on which device
    chunks.py            computes a layer chunk by chunk
    work.py              what is computed for a chunk
    chunk.py             what a chunk is
    chunk_sizes.py       how large a chunk is
    tape.py              carries results of the attention on a CPU from forward to backward
    recompute.py         computes a function again in backward
    memory/              estimates the memory of a step, and says what to change if it is full
    rows.py              reads and writes rows of a tensor
    row_kernels/         kernels for rows: layer norm, gated MLP
"""
