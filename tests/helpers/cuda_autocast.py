"""The rules of autocast for CUDA, for tensors of any device: on a CPU, torch's own autocast has
other rules.

From aten/src/ATen/autocast_mode.h (AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32), torch 2.8 to
2.15; of their functions, those that a network of this project calls.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Variable
from torch.overrides import TorchFunctionMode

LOWER = {
    F.linear, F.conv2d, F.conv3d, F.scaled_dot_product_attention, torch.matmul, torch.bmm,
    torch.baddbmm, torch.mm, torch.addmm, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__,
    Tensor.addmm_, torch.conv2d, torch.conv3d,
}  # fmt: skip
FLOAT32 = {
    F.layer_norm, torch.layer_norm, F.softmax, torch.softmax, Tensor.softmax, torch.logsumexp,
    torch.exp, torch.pow,
}  # fmt: skip


class CudaAutocast(TorchFunctionMode):
    """Inside, functions get their arguments in the dtypes of CUDA's rules where
    torch.autocast(device_type) is on.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        # Leaves are cast once, as autocast does.
        self.weights: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return self.backward(args[0])
        rules = (LOWER, FLOAT32)
        if not torch.is_autocast_enabled(self.device_type) or not any(
            func in rule for rule in rules
        ):
            return func(*args, **kwargs)
        dtype = torch.get_autocast_dtype(self.device_type) if func in LOWER else torch.float32
        args = [self.cast(a, dtype) for a in args]
        with torch.autocast(self.device_type, enabled=False):
            return func(*args, **{k: self.cast(a, dtype) for k, a in kwargs.items()})

    def backward(self, loss: Tensor) -> None:
        """Tensor.backward without its arguments.

        The mode holds inside, for what is computed anew.
        """
        with self:
            Variable._execution_engine.run_backward(
                (loss,), (torch.ones_like(loss),), False, False, (), True, True
            )
        self.weights.clear()  # the optimizer changes them

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        if (
            not isinstance(value, Tensor)
            or not value.is_floating_point()
            or value.dtype in (dtype, torch.float64)
        ):
            return value
        if not (value.is_leaf and value.requires_grad and torch.is_grad_enabled()):
            return value.to(dtype)
        if id(value) not in self.weights:
            self.weights[id(value)] = value, value.to(dtype)
        return self.weights[id(value)][1]
