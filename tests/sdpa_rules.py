"""Which kernel torch's scaled_dot_product_attention runs on a GPU of compute capability 8.0 or higher.

The rules of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (priority_order, can_use_*_attention,
minimum_gemm_alignment, check_data_ptr_alignment_mem_efficient, check_attn_mask_shape),
torch 2.8 to 2.15, for inputs without dropout, nesting and causal masks. Where versions differ, the
stricter rule stands: cuDNN comes first, as since 2.11 on the H100, and storage offsets count, as in 2.15.
"""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
MOST_CUDNN = 65_535


def backend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str:
    """ "cudnn", "flash", "efficient" or "math" for q, k, v (n, heads, T, hd), by the back ends that are enabled now."""
    enabled = torch.backends.cuda
    tensors = (q, k, v)
    if not all(x.stride(-1) == 1 and x.shape[0] == q.shape[0] and x.dtype is q.dtype for x in tensors):
        return "math"
    d = q.shape[-1]
    suits_cudnn = q.dtype in HALF and d % 8 == 0 and d <= 128 and max(q.shape[:2]) <= MOST_CUDNN
    if enabled.cudnn_sdp_enabled() and suits_cudnn and (mask is None or not mask.requires_grad):
        return "cudnn"
    if enabled.flash_sdp_enabled() and q.dtype in HALF and mask is None and d <= 256:
        return "flash"
    values = 16 // q.element_size()  # minimum_gemm_alignment, with tensor cores
    is_aligned = d % values == 0 and all(x.storage_offset() % values == 0 for x in tensors)
    mask_fits = mask is None or mask.stride(-1) == 1
    if enabled.mem_efficient_sdp_enabled() and q.dtype in (*HALF, torch.float32) and is_aligned and mask_fits:
        return "efficient"
    return "math"
