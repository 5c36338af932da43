"""Choose the form of each computation for a device.

This is the only file of the network that distinguishes kinds of devices. A form is a way to compute
the same function. A layer can have several forms:

    the CPU form        on a CPU: small chunks that stay in the cache, and our own attention
    our kernels         in bfloat16 and float16, on an NVIDIA GPU of Ampere or newer (RTX 30, A100),
                        if Triton compiles there, but not under torch.compile
    torch's operators   in all other cases, e.g. for windows of a size that our kernels do not take

The log says once which form runs. If torch's operators run, the log also says why.

What must stay: all forms compute the same function and the same gradients, up to rounding.
test_a_step_gives_the_numbers_of_the_plain_form compares them. Free to change: which device uses
which form. For a new kind of device, look at each constant below and at `fused_attention`.

Tests: tests/parts/models/test_block.py, test_fake_gpu.py, test_triton.py, test_cuda.py (on a GPU)
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.vrt.attention.kernels import tiles
from utils import device as devices
from utils import utils_dist

logger = logging.getLogger(__name__)

# The option netG.kernels. "auto" computes a layer chunk by chunk, and backward computes each chunk
# again (chunks.py). "plain" computes the whole layer at once, with gradients by autograd.
Kernels = Literal["auto", "plain"]

# The next four constants list device types, as in torch.device.type.
CPU_FORM = ("cpu",)  # devices that compute in small chunks, with our own attention
KERNEL_DEVICES = ("cuda",)  # devices for which our kernels are written
# Devices that use torchvision's deformable convolution. On mps (GPUs of Apple), torchvision 0.23
# has only the forward pass of this convolution.
DEFORM_CONV = ("cuda",)
NO_BORDER_PADDING = ("mps",)  # devices whose grid_sample lacks padding_mode "border"

# Dtypes in which our kernels compute.
KERNEL_DTYPES = (torch.bfloat16, torch.float16)
# Compute capability of the oldest GPU on which our kernels run: 8.0, which is Ampere.
OLDEST_CAPABILITY = (8, 0)
# torch's fused attention on a GPU takes heads whose size in bytes is a multiple of this number,
# e.g. 24 channels in bfloat16, 48 bytes. For other heads, e.g. of 20 channels, torch uses a slow
# form, which writes the T x T matrix of each window of T tokens in float32.
HEAD_BYTES = {"cuda": 16}
# Backends of torch's attention that may run on a GPU. cuDNN is left out, because its gradients are
# reported to be NaN for windows of 64 tokens with a mask.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def in_cpu_form(x: Tensor) -> bool:
    """Say whether tensors like x are computed in the CPU form: small chunks, our own attention."""
    return x.device.type in CPU_FORM


def runs_in_chunks(kernels: str) -> bool:
    """Say whether a layer runs chunk by chunk, and not as a whole under autograd.

    kernels: the option netG.kernels. Under torch.compile a layer runs as a whole with both values
    of the option.
    """
    return kernels != "plain" and not torch.compiler.is_compiling()


def has_deform_conv(x: Tensor) -> bool:
    """Say whether torchvision's deformable convolution takes tensors like x, with gradients."""
    return x.device.type in DEFORM_CONV


def lacks_border_padding(x: Tensor) -> bool:
    """Say whether torch's grid_sample lacks padding_mode "border" on the device of x."""
    return x.device.type in NO_BORDER_PADDING


def head_multiple(x: Tensor) -> int:
    """Return a number m: torch's fused attention takes heads of m, 2 m, 3 m, ... channels.

    E.g. 8 in bfloat16 on a GPU, because 8 channels are 16 bytes (HEAD_BYTES). If a head may have
    any number of channels, m is 1.
    """
    multiple_in_bytes = HEAD_BYTES.get(x.device.type, 0)  # 0 becomes m = 1
    return max(1, multiple_in_bytes // x.element_size())


def fused_attention(x: Tensor) -> AbstractContextManager[None]:
    """Return a context in which torch's attention uses only BACKENDS on a GPU.

    On other devices the context changes nothing.

    x: a tensor on the device.
    """
    if x.device.type == "cuda":
        return sdpa_kernel(BACKENDS)
    return nullcontext()


def log_device(device: torch.device) -> None:
    """Log in one line on which device the network computes, and which operations are replaced."""
    # With several processes, a note says how they exchange data, e.g. "ranks exchange by nccl".
    process_count = utils_dist.get_world_size()
    notes = devices.notes(device, process_count, stand_ins(device))
    logger.info("device: %s", "; ".join([devices.name(device), *notes]))


def stand_ins(device: torch.device) -> list[str]:
    """Return a sentence for each operation that is not computed as on an NVIDIA GPU.

    Returns [] for a CPU, because the CPU form is written for a CPU and replaces nothing.
    """
    if device.type == "cpu":
        return []
    sentences = []
    if device.type not in KERNEL_DEVICES:
        sentences.append("torch's operators stand in for our kernels, which are for NVIDIA's GPUs")
    if device.type not in DEFORM_CONV:
        sentences.append("our own sampling stands in for torchvision's deformable convolution")
    return sentences


def has_kernels(x: Tensor) -> bool:
    """Say whether our Triton kernels take tensors with the device and the dtype of x."""
    if x.device.type not in KERNEL_DEVICES or x.dtype not in KERNEL_DTYPES:
        return False
    if torch.compiler.is_compiling():  # torch.compile cannot trace our kernels
        return False
    return _kernels_run_on(x.device)


def attention_has_kernel(x: Tensor, tokens: int, channels: int) -> bool:
    """Say whether our kernel computes the attention of windows.

    x: any tensor with the device and the dtype of the attention.
    tokens: number of tokens in a window.
    channels: number of channels of a head.
    """
    if not has_kernels(x):
        return False
    return tiles.takes_windows(tokens, channels)


@cache
def _kernels_run_on(device: torch.device) -> bool:
    """Say whether our kernels run on the device. Logs the answer once per device and process."""
    reason = _reason_against(device)
    if reason:
        logger.info("attention on %s by torch's operators, because %s", device, reason)
    else:
        logger.info("attention on %s by Triton kernels", device)
    return not reason


def _reason_against(device: torch.device) -> str:
    """Return why the kernels do not run on the device, or "" if they do."""
    if torch.version.hip:
        return "the kernels were not tried with ROCm"
    if device.type == "cuda" and not torch.cuda.is_available():
        # E.g. a test that counts memory has fake tensors, which say "cuda" without a GPU.
        return "torch sees no GPU"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST_CAPABILITY:
        return "the GPU is older than Ampere"
    try:
        from models.vrt.row_kernels import layer_norm
    except ImportError as e:
        return f"Triton is missing ({e})"
    # Run the smallest kernel, because only a compilation shows whether Triton works here.
    ones: Any = torch.ones(1, 16, device=device)
    try:
        layer_norm.layer_norm(ones.half(), weight=ones[0], bias=ones[0], eps=1e-5)
    except Exception as e:  # e.g. no C compiler, or a driver that is too old
        lines = str(e).strip().splitlines()
        cause = lines[-1] if lines else type(e).__name__  # the last line is the most specific
        return f"Triton does not compile here ({cause})"
    return ""
