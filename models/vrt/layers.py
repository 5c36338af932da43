"""Small layers and tools that all parts of the network share.

    compute_dtype         the dtype in which a layer computes
    LayerNorm, FrameConv  layer norm over channels, and a convolution of single frames
    tf32                  switches the TF32 arithmetic of NVIDIA's GPUs

What must stay, and which test notices (in tests/parts/models):

    the names and shapes of the layers' weights, because
    the released weights have them                         test_vrt_modules.py
    the dtypes, because another dtype changes the numbers
    of a training                                          test_autocast.py

Free to change: how a layer computes, as long as its numbers stay.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.forms import has_kernels, in_cpu_form


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which a layer computes x.

    Under autocast this is the dtype of autocast, e.g. bfloat16. Without autocast it is the dtype of
    x.
    """
    device_type = x.device.type
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return x.dtype


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, is_plain: bool = True
) -> Tensor:
    """Return the layer norm over the last axis, in the dtype of x.

    Mean and variance are computed in float32, or in float64 if x is float64.

    is_plain: True for torch's operator. False for our Triton kernel if it takes x (`has_kernels`),
        and otherwise torch's operator.
    """
    if not is_plain and has_kernels(x):
        # Imported here, because Triton is not installed everywhere.
        from models.vrt.row_kernels import layer_norm as kernel

        return kernel.layer_norm(x, weight, bias, eps)
    # Convert weight and bias to the dtype of x, e.g. from float32 to bfloat16. On a CPU weight and
    # bias stay float32, because on a CPU torch sums their gradients in the dtype of weight and
    # bias. Sums in bfloat16 would be wrong by 40 %.
    if not in_cpu_form(x):
        weight = weight.to(x.dtype)
        bias = bias.to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last axis. Under autocast its result has the dtype of autocast.

    On a GPU, torch's own layer norm returns float32 under autocast. The sums of the residual
    branches would then be float32, too, and each linear layer would have to convert its input.
    """

    def forward(self, input: Tensor) -> Tensor:
        x = input.to(compute_dtype(input))
        with torch.autocast(x.device.type, enabled=False):
            return layer_norm(x, self.weight, self.bias, self.eps)


class FrameConv(nn.Conv3d):
    """3x3 convolution of frames (n, C, H, W).

    The class is a Conv3d, because the weights in the published files are (C', C, 1, 3, 3).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, kernel_size=(1, 3, 3), padding=(0, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight[:, :, 0]  # (C', C, 3, 3)
        return F.conv2d(input, weight, self.bias, padding=1)


@contextmanager
def tf32(is_on: bool) -> Generator[None]:
    """Switch TF32 on or off for float32 convolutions and matrix products within this context.

    TF32 is a faster, less exact arithmetic of NVIDIA's GPUs. The end of the context restores the
    former settings.
    """
    matmul = torch.backends.cuda.matmul
    value: str | bool
    # torch has an old setting for TF32 (`allow_tf32`) and a new setting (`fp32_precision`). A
    # program may use only one of the two. torch 2.8 has only the old setting. Later versions warn
    # about the old setting.
    if hasattr(torch.backends.cudnn, "conv"):
        settings = (torch.backends.cudnn.conv, matmul)
        key = "fp32_precision"
        value = "tf32" if is_on else "ieee"
    else:
        settings = (torch.backends.cudnn, matmul)
        key = "allow_tf32"
        value = is_on
    before = [getattr(setting, key) for setting in settings]
    try:
        for setting in settings:
            setattr(setting, key, value)
        yield
    finally:
        for setting, former_value in zip(settings, before, strict=True):
            setattr(setting, key, former_value)
