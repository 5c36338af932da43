"""scaled_dot_product_attention as a GPU would compute it, on a machine without a GPU.

    backend               chooses the kernel, by the rules of torch
    attention_of_a_gpu    calls this kernel on fake tensors, and counts the call

tests/helpers/fake_gpu.py puts `attention_of_a_gpu` in place of torch's function.
tests/parts/models/test_fake_gpu.py checks which kernels the network calls.

What must stay: `backend` must have the same rules as torch. A new version of torch may have other
rules.
"""

import collections

import torch
from torch import Tensor

from models.vrt.attention.window import MOST_HEADS

# The types of 16 bits. The fast kernels of attention compute in these types.
HALF = (torch.bfloat16, torch.float16)
# The calls of attention so far: a text like "efficient: head 16, 128 tokens, ..." -> number of such
# calls. fake_gpu.py empties this table before each case.
CALLS_OF_ATTENTION: collections.Counter[str] = collections.Counter()


def backend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str:
    """Choose the kernel of scaled_dot_product_attention as torch does on a GPU.

    Returns the first kernel that may be used: "cudnn", "flash", "efficient", or else "math". The
    GPU has compute capability 8.0 or more.

    q, k, v: (n, heads, T, hd): n windows of T tokens, with hd channels for each head.

    Where the rules come from:

        file          aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch
        functions     priority_order, can_use_*_attention, minimum_gemm_alignment,
                      check_data_ptr_alignment_mem_efficient, check_attn_mask_shape
        versions      torch 2.8 to 2.15. If they differ, the stricter rule holds here
        order         cuDNN comes first, as it does since torch 2.11 on the H100
        alignment     the position of a tensor in its storage is checked, as in torch 2.15
        left out      the rules for dropout, nested tensors and causal masks
    """
    # The module of torch that says which kernels a user has enabled.
    enabled = torch.backends.cuda
    # Every fast kernel needs the channels of a head side by side in memory. And q, k and v must
    # have the same number of windows and the same type.
    for x in (q, k, v):
        if x.stride(-1) != 1 or x.shape[0] != q.shape[0] or x.dtype is not q.dtype:
            return "math"

    # cuDNN needs 16 bits, few channels, and a mask without gradient. The batch and the heads are
    # axes of a grid of CUDA blocks, which has at most 65,535 blocks along an axis.
    head_channels = q.shape[-1]
    is_half = q.dtype in HALF
    has_mask_gradient = mask is not None and mask.requires_grad
    fits_grid = max(q.shape[:2]) <= 65_535
    suits_cudnn = is_half and head_channels % 8 == 0 and head_channels <= 128 and fits_grid
    if enabled.cudnn_sdp_enabled() and suits_cudnn and not has_mask_gradient:
        return "cudnn"

    # Flash attention needs 16 bits, and takes no mask.
    suits_flash = is_half and mask is None and head_channels <= 256
    if enabled.flash_sdp_enabled() and suits_flash:
        return "flash"

    # Memory-efficient attention runs on tensor cores, which read 16 bytes at once
    # (minimum_gemm_alignment). `values` is the number of values in 16 bytes: 8 values of 16 bits,
    # or 4 values of 32 bits. The number of channels of a head, and the position at which a tensor
    # begins in its memory, must be multiples of `values`.
    values = 16 // q.element_size()
    is_aligned = head_channels % values == 0
    for x in (q, k, v):
        is_aligned = is_aligned and x.storage_offset() % values == 0
    suits_mask = mask is None or mask.stride(-1) == 1
    suits_dtype = is_half or q.dtype is torch.float32
    suits_efficient = suits_dtype and is_aligned and suits_mask
    if enabled.mem_efficient_sdp_enabled() and suits_efficient:
        return "efficient"
    return "math"


def _call_in_words(kind: str, q: Tensor, mask: Tensor | None) -> str:
    """Describe a call, e.g. "efficient: head 16, 128 tokens, gradient, mask none".

    tests/parts/models/test_fake_gpu.py compares these texts, so their form must stay. "none" in
    place of "gradient" means that no gradient is computed.

    kind: the kernel, as `backend` names it.
    q: (windows, heads, tokens, channels of a head).
    """
    has_gradient = torch.is_grad_enabled() and q.requires_grad
    gradient = "gradient" if has_gradient else "none"
    if mask is None:
        mask_kind = "none"
    elif mask.requires_grad:
        mask_kind = "with gradient"
    else:
        mask_kind = "constant"
    _, _, tokens, head_channels = q.shape
    return f"{kind}: head {head_channels}, {tokens} tokens, {gradient}, mask {mask_kind}"


def attention_of_a_gpu(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Call the kernel that a GPU would choose, and count the call in CALLS_OF_ATTENTION.

    This function stands in for torch's scaled_dot_product_attention, which would choose a kernel
    for the device of this machine.

    q, k, v: (windows, heads, tokens, channels of a head).
    attn_mask: what is added to the logits (tokens of q, tokens of k), or None to add nothing.
    scale: factor of the logits. None means 1 / sqrt(channels of a head).
    """
    # On a GPU, autocast would give the kernels inputs of 16 bits. Do the same here.
    if torch.is_autocast_enabled("cuda") and q.dtype is torch.float32:
        dtype = torch.get_autocast_dtype("cuda")
        q = q.to(dtype)
        k = k.to(dtype)
        v = v.to(dtype)
        if attn_mask is not None:
            attn_mask = attn_mask.to(dtype)
    kind = backend(q, k, v, attn_mask)

    CALLS_OF_ATTENTION[_call_in_words(kind, q, attn_mask)] += 1

    # The grid of the kernel has a place for each head of each window, and at most MOST_HEADS
    # places. So the network must divide larger batches into several calls.
    windows, heads = q.shape[:2]
    assert windows * heads <= MOST_HEADS
    aten = torch.ops.aten
    if kind == "efficient":
        mask = None if attn_mask is None else attn_mask.expand(*q.shape[:3], k.shape[2])
        results = aten._scaled_dot_product_efficient_attention(
            q,
            k,
            v,
            attn_bias=mask,
            # Only a backward pass needs the sums of the softmax.
            compute_log_sumexp=torch.is_grad_enabled(),
            dropout_p=0.0,
            is_causal=False,
            scale=scale,
        )
        return results[0]
    # The network must avoid the other two kernels: "math" makes matrices in float32, and "cudnn"
    # needs the library cuDNN.
    assert kind == "flash", kind
    results = aten._scaled_dot_product_flash_attention(
        q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, scale=scale
    )
    return results[0]
