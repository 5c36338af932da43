"""What a VRT requires of its input: sizes, number of frames, channels.

    vrt_input_spec    the requirements, which follow from the design of the network
    check_input       refuses a clip that does not meet the requirements

Tiles, padding and the checks of data rely on the spec.

What must stay: a clip that meets the spec goes through the network. If a change makes a layer need
larger clips, the spec must say so (test_clips_of_a_wrong_shape_are_refused in
tests/parts/models/test_vrt_requirements.py). Free to change: the texts of errors.
"""

from torch import Tensor

from models.vrt.design import STAGE_SCALES, UNET_MULTIPLE, Design
from utils.contract import InputSpec
from utils.errors import DataError


def vrt_input_spec(design: Design, image_channels: int, spike_channels: int) -> InputSpec:
    """Return what a VRT of this design requires of its input.

    E.g. windows of 6 x 8 x 8, mutual attention in each of the stages 1 to 7, and pa_frames 2: at
    least 2 frames of 64 x 64 pixels.
    """
    _, window_height, window_width = design.window
    # pa_frames is the number of neighbours that are aligned with a frame. The value 0 chooses the
    # published network for interpolation. This network aligns nothing, and makes new frames from
    # the features of all frames together.
    interpolates = design.pa_frames == 0

    # Mutual attention adds a table of positions. The table has a fixed size, the size of a window.
    # So a whole window must fit into the frame, in each stage that has mutual attention. E.g. in
    # stage 4 the frame is 8 times smaller than the input, so a window of 8 x 8 needs an input of
    # 64 x 64 pixels.
    # The largest scale of a stage with mutual attention, or 0 if no stage has mutual attention.
    largest_scale = 0
    # entry: index of a stage in `depths`. scale: height of the input / height in this stage.
    for entry, scale in enumerate(STAGE_SCALES):
        if design.mutual_depth(entry) > 0:
            largest_scale = max(largest_scale, scale)
    has_mutual = largest_scale > 0
    least_height = max(UNET_MULTIPLE, largest_scale * window_height)
    least_width = max(UNET_MULTIPLE, largest_scale * window_width)

    if interpolates:
        # The layers after stage 8 have weights for exactly img_size[0] frames.
        least_frames = design.img_size[0]
    else:
        # Mutual attention takes two neighbouring frames, so it needs at least 2 frames.
        least_for_mutual = 2 if has_mutual else 1
        # A frame is aligned with its neighbours up to this distance. E.g. pa_frames 4: distance 2,
        # so the clip needs at least 3 frames.
        farthest = design.aligned_neighbours
        least_frames = max(least_for_mutual, farthest + 1)
    return InputSpec(
        stride=UNET_MULTIPLE,
        window_size=design.window,
        least_size=(least_height, least_width),
        least_frames=least_frames,
        scale=design.upscale,
        image_channels=image_channels,
        noise_map=design.nonblind_denoising,
        spike_channels=spike_channels,
        interpolates=interpolates,
        out_instants=design.out_instants,
    )


def check_input(x: Tensor, spec: InputSpec) -> None:
    """Raise DataError if a network with this spec cannot take the clip x (B, N, C, H, W)."""
    channels = spec.image_channels + int(spec.noise_map)  # a noise map is one more channel
    what = f"a clip of shape {tuple(x.shape)}"
    where = "forward(lq, spike)"
    if x.dim() != 5 or x.shape[2] != channels:
        raise DataError(
            what=what,
            where=where,
            expected=f"(B, N, {channels}, H, W)",
            do="check in_chans, fusion and the data",
        )
    _, frames, _, height, width = x.shape
    least_height, least_width = spec.least_size
    if frames < spec.least_frames:
        expected = f"at least {spec.least_frames} frames"
        do = "use a longer clip, or extend it by mirrored frames"
    elif height % spec.stride != 0 or width % spec.stride != 0:
        expected = f"height and width that are multiples of {spec.stride}"
        do = "crop the clip, or pad it by reflection and crop the result"
    elif height < least_height or width < least_width:
        least = f"{least_height} x {least_width}"
        expected = f"at least {least} pixels: a window of attention must fit into each stage"
        do = "use larger crops or tiles, or a smaller netG.window_size"
    else:
        return
    raise DataError(what=what, where=where, expected=expected, do=do)
