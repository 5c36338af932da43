"""Build the layers of a VRT from its design: stages 1 to 7, stage 8, and super-resolution.

What must stay, and which test notices (in tests/parts/models):

    the names of layers within the results,
    which are names in the released weights     test_network_vrt.py, test_released.py
    the order in which layers are built, which
    decides their random initial weights        test_exact_step.py, which has stored results

Free to add: a layer. Build it after all other layers, so that the other layers keep their initial
weights.
"""

from torch import nn

from models.vrt.design import KINDS, STAGE_SCALES, Design
from models.vrt.layers import FrameConv, LayerNorm
from models.vrt.stages import RefineLayer, Stage


def build_stage(design: Design, entry: int, drop_path: list[float]) -> Stage:
    """Build one of the stages 1 to 7, a part of the U-net.

    entry: index into the lists of the design, 0 for stage 1.
    drop_path: for each block, the probability of dropping a branch.
    """
    dims = design.embed_dims
    width_before = dims[entry - 1] if entry > 0 else dims[0]
    return Stage(
        KINDS[entry],
        inputs=width_before,
        dim=dims[entry],
        depth=design.depths[entry],
        heads=design.num_heads[entry],
        window=design.window,
        mutual_depth=design.mutual_depth(entry),
        drop_path=drop_path,
        pa_frames=design.pa_frames,
        deformable_groups=design.deformable_groups,
        scale=STAGE_SCALES[entry],
        **design.block_options(entry),
    )


def build_stage_8(design: Design, drop_rates: list[list[float]]) -> nn.ModuleList:
    """Build stage 8: a linear layer to its width, then the layers of the entries 7, 8, ... .

    drop_rates: result of `Design.drop_rates`.
    """
    dims = design.embed_dims
    # The linear layer leads from the width of stage 7 to the width of stage 8. nn.Identity takes
    # the index 0, so that the norm and the linear layer have their published names, stage8.0.1 and
    # stage8.0.2.
    to_width = nn.Sequential(nn.Identity(), LayerNorm(dims[6]), nn.Linear(dims[6], dims[7]))
    layers = nn.ModuleList([to_width])
    _, window_height, window_width = design.window
    for entry in range(7, len(design.depths)):
        window = design.window
        if entry in design.indep_reconsts:
            window = (1, window_height, window_width)  # a window within one frame
        layer = RefineLayer(
            dim=dims[entry],
            depth=design.depths[entry],
            heads=design.num_heads[entry],
            window=window,
            drop_path=drop_rates[entry],
            **design.block_options(entry),
        )
        layers.append(layer)
    return layers


def build_upsampling(upscale: int) -> nn.Sequential:
    """Build the layers that enlarge features of 64 channels, for super-resolution.

    upscale: 3 or a power of two. There is one pixel shuffle by 3, or one by 2 for each factor of 2,
        e.g. two for 4.
    """
    if upscale == 3:
        factors = [3]
    else:
        exponent = upscale.bit_length() - 1  # e.g. 2 for 4 = 2^2, which is 100 in binary
        factors = [2] * exponent
    # In the released weights the convolutions have the names 0, 5, 10, ... The layers between them
    # have no weights, so their names are free. The slope 0.1 is as published.
    layers = nn.Sequential()
    conv_name = 0
    for factor in factors:
        # The pixel shuffle moves factor^2 channels to factor x factor pixels.
        layers.add_module(f"{conv_name}", FrameConv(64, 64 * factor * factor))
        layers.add_module(f"{conv_name + 1}", nn.PixelShuffle(factor))
        layers.add_module(f"{conv_name + 2}", nn.LeakyReLU(0.1))
        conv_name += 5
    layers.add_module(f"{conv_name}", FrameConv(64, 64))
    return layers
