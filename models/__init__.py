"""Networks, their training, their weights files, and the restoration of clips.

Networks.

    select_network.py      builds the network of an option file
    network_vrt.py         VRT, on RGB or RGB and spikes
    network_fusion.py      a fusion operator without VRT after it
    vrt/                   the layers of VRT
    fusion/                operators that bring spikes and RGB together

Train a network.

    model_vrt.py           the optimizer step
    model_state.py         makes, saves and loads what outlives a step
    losses.py              losses
    optim.py               optimizers, and their moments in a checkpoint
    schedules.py           learning rate of each step
    train_section.py       the options `train`
    precision.py           float32 or mixed precision
    ddp.py                 the network on several ranks
    cpu_memory.py          whether a step fits into memory
    compiled_code.py       where torch keeps compiled code

Read weights.

    pretrained.py          the weights with which a training begins
    flow_weights.py        the weights of SpyNet
    weights_file.py        tensors of a file, by name
    foreign_weights.py     files of other programs
    untrusted_weights.py   refuses files that would fill the memory
    loading.py             puts tensors into a network
    load_report.py         says which tensors were put into the network
    portable.py            finds the network of a file
    recognise.py           recognises the published networks
    released.py            downloads the published networks
    released_networks.py   names and arguments of the published networks
    saved_network.py       a file with its network

Test a network.

    metrics.py             PSNR, SSIM, and metrics of a user
    restore/               restores clips, scores them, writes results
"""
