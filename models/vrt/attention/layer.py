"""The attention of a block: its parameters, and how it computes the tokens of a window.

The input is u (positions, C), the tokens of all windows. The layer computes

    self attention      softmax(scale q k^T + bias + mask) v among the T tokens of a window
    mutual attention    the same without bias, between the two frames of a window: a token of one
                        frame attends to the T / 2 tokens of the other frame. Before this attention,
                        a table of positions (sines of the row and column) is added to u
    result              proj(self), or proj(mutual, self) if the layer has both. proj is a linear
                        layer

Letters: T tokens in a window, C channels, C/heads channels of a head. A chunk is some windows that
are computed together (chunk.py). A tape keeps results of the forward pass for the backward pass
(tape.py).

What must stay, and which test notices (in tests/parts/models):

    attributes, which are names in the released weights  test_vrt_modules.py loads such names
    the order in which layers are built, which decides
    their random initial weights                         test_exact_step.py has stored results

Free to change: what `compute` computes, although the layer is then no longer the published one.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.attention.window import window_attention
from models.vrt.chunk import Chunk
from models.vrt.positions import refuse_other_index, relative_position_index, sine_positions
from models.vrt.tape import Tape
from models.vrt.work import Weights


class WindowAttention(nn.Module):
    """Attention among the T tokens of a window.

    dim: number of channels, C.
    heads: number of heads.
    window: frames, height and width of a window.
    qkv_bias: whether the layers that make q, k and v have a bias.
    qk_scale: factor of q k^T in the logits, or None for the published factor.
    mutual: whether the window holds two frames that also attend to each other.
    """

    relative_position_index: Tensor
    position_bias: Tensor

    def __init__(
        self,
        dim: int,
        window: tuple[int, int, int],
        heads: int,
        qkv_bias: bool,
        qk_scale: float | None,
        mutual: bool,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.mutual = mutual
        # The published factor of q k^T is 1 / sqrt(channels of a head), so that wide heads
        # have about as large logits as narrow heads. If the option qk_scale is a number other
        # than 0, it replaces this factor.
        channels_of_head = dim // heads
        self.scale = qk_scale or channels_of_head**-0.5

        # The table has one row for each offset between two tokens of a window. Along an axis of n
        # tokens there are 2 n - 1 offsets, from -(n - 1) to n - 1. E.g. a window of 6 x 8 x 8
        # tokens has 11 x 15 x 15 offsets.
        offsets = math.prod(2 * length - 1 for length in window)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(offsets, heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)  # as published
        self.register_buffer("relative_position_index", relative_position_index(window))
        if mutual:
            _, height, width = window
            self.register_buffer("position_bias", sine_positions(height, width, dim))

        self.qkv_self = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(2 * dim if mutual else dim, dim)
        if mutual:
            self.qkv_mut = nn.Linear(dim, 3 * dim, bias=qkv_bias)

    # ---- Computation -------------------------------------------------------------------------

    def compute(
        self, u: Tensor, chunk: Chunk, w: Weights, tape: Tape | None, is_plain: bool
    ) -> Tensor:
        """Compute the attention of the windows of a chunk: u (positions, C) -> the same shape.

        u: the normalised input. A position of a window holds a token, or padding, which is zero.
        chunk: the windows that are computed together, and their masks (chunk.py).
        w: the weights, in the dtype of u. The method `weights` gives their names.
        tape, is_plain: the choice among three forms of the attention (attention/window.py). No
            caller gives a tape together with is_plain=True.

            is_plain    tape       form
            True        None       torch's operators, on every device
            False       a tape     our attention for CPUs, which keeps its results on the tape
            False       None       our kernel for GPUs; torch's operators if it rejects the windows
        """
        # Self attention among the T tokens of each window.
        out = self._attend(
            u, "qkv_self", chunk, w, tape, is_plain, bias=w["bias"], mutual=False
        )  # (positions, C)
        if self.mutual:
            # Mutual attention between the two frames of each window, with T / 2 tokens each. First
            # add to each token the sines of its row and column in the frame.
            tokens_of_frame = chunk.positions_per_window // 2
            by_frame = u.view(-1, tokens_of_frame, u.shape[1])  # (2 x windows, T / 2, C)
            sines = w["positions"]  # (1, T / 2, C)
            with_sines = (by_frame + sines).view_as(u)  # (positions, C)
            # The output of each window:
            #
            #     tokens        queries of   keys, values of   shows
            #     first T / 2   frame 1      frame 0           frame 0, moved to fit frame 1
            #     last T / 2    frame 0      frame 1           frame 1, moved to fit frame 0
            mutual_out = self._attend(
                with_sines, "qkv_mut", chunk, w, tape, is_plain, bias=None, mutual=True
            )  # (positions, C)
            # (positions, 2 C). The weights of the published `proj` have this order: mutual, self.
            out = torch.cat((mutual_out, out), dim=1)
        return F.linear(out, w["proj"], w["proj_bias"])  # (positions, C)

    def _attend(
        self,
        u: Tensor,
        key: str,
        chunk: Chunk,
        w: Weights,
        tape: Tape | None,
        is_plain: bool,
        bias: Tensor | None,
        mutual: bool,
    ) -> Tensor:
        """Compute self attention or mutual attention: u (positions, C) -> (positions, C).

        key: name of the weights of q, k and v in w, "qkv_self" or "qkv_mut".
        bias: (heads, T, T), added to the logits, or None.
        mutual: whether the two frames of a window attend to each other.
        """
        channels = u.shape[1]
        qkv = F.linear(u, w[key], w[f"{key}_bias"])  # (positions, 3 C)
        # (windows, T, 3, heads, C/heads); the 3 are q, k and v
        qkv = qkv.view(-1, chunk.positions_per_window, 3, self.heads, channels // self.heads)
        # A span of a chunk is a range of its windows that share a mask (`Span` in chunk.py).
        out = window_attention(
            qkv,
            bias,
            chunk.spans,
            scale=self.scale,
            mutual=mutual,
            tape=tape,
            is_plain=is_plain,
        )
        return out.flatten(0, 1)  # (windows, T, C) -> (positions, C)

    # ---- Weights -----------------------------------------------------------------------------

    def weights(self, tokens: int) -> Weights:
        """Return {name: weight} of all weights that `compute` uses.

        tokens: T, the number of tokens in a window. If a clip is smaller than the window of the
            constructor, T is smaller, too.
        """
        weights: Weights = {
            # The bias of the logits of self attention, which depends on the offset between two
            # tokens.
            "bias": self._relative_bias(tokens),
            "qkv_self": self.qkv_self.weight,
            "qkv_self_bias": self.qkv_self.bias,
            "proj": self.proj.weight,
            "proj_bias": self.proj.bias,
        }
        if self.mutual:
            weights["qkv_mut"] = self.qkv_mut.weight
            weights["qkv_mut_bias"] = self.qkv_mut.bias
            # The sine table. The buffer has its name from the published weights.
            weights["positions"] = self.position_bias
        return weights

    def _relative_bias(self, tokens: int) -> Tensor:
        """Return the bias (heads, T, T) that is added to the logits of self attention.

        tokens: T, the number of tokens in a window.
        """
        # The index is for the window of the constructor. If a clip is smaller, its windows have
        # fewer tokens, and take the first T rows and columns of the index. This is right for a clip
        # with fewer frames. For a clip with less height or width, the entries are wrong, because
        # they belong to other offsets between two tokens. Take the wrong entries all the same,
        # because the published network takes them, too.
        index = self.relative_position_index[:tokens, :tokens].reshape(-1)  # (T T,)
        rows = self.relative_position_bias_table.index_select(0, index)  # (T T, heads)
        bias = rows.view(tokens, tokens, -1).permute(2, 0, 1)  # (heads, T, T)
        # A copy in the new order, because the fused kernels reject a bias whose last axis has gaps
        # in memory.
        return bias.contiguous()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load all tensors but relative_position_index, which is compared instead.

        All networks of the process share one index tensor, so a file must not overwrite it. torch
        calls this method within load_state_dict, with these arguments.

        Raises CheckpointError if `state_dict` has another index.
        """
        key = f"{prefix}relative_position_index"
        index_in_file = state_dict.get(key)
        if index_in_file is not None:
            refuse_other_index(index_in_file, self.relative_position_index, key, "the weights")
        rest = {name: value for name, value in state_dict.items() if name != key}
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        # torch reports the index as missing, because `rest` lacks it.
        if index_in_file is not None and key in missing_keys:
            missing_keys.remove(key)
