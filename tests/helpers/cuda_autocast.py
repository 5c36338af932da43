"""The autocast rules of CUDA, for tensors of any device.

On a CPU, torch's own autocast has other rules. With `CudaAutocast`, a test on a CPU gets the dtypes
that a GPU would have. torch has two lists of functions in aten/src/ATen/autocast_mode.h (torch 2.8
to 2.15). This module has the functions of these lists that a network of this project calls:

    torch's list                     here      such a function computes in
    AT_FORALL_LOWER_PRECISION_FP     LOWER     bfloat16 or float16
    AT_FORALL_FP32                   FLOAT32   float32

If a network calls another function of torch's lists, add it here.

    with CudaAutocast("cpu"), torch.autocast("cpu", torch.bfloat16):
        y = net(x)
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Variable
from torch.overrides import TorchFunctionMode

# Functions that compute in bfloat16 or float16.
LOWER = {
    F.linear,
    F.conv2d,
    F.conv3d,
    F.scaled_dot_product_attention,
    torch.matmul,
    torch.bmm,
    torch.baddbmm,
    torch.mm,
    torch.addmm,
    Tensor.matmul,
    Tensor.__matmul__,
    Tensor.__rmatmul__,
    Tensor.addmm_,
    torch.conv2d,
    torch.conv3d,
}
# Functions that compute in float32.
FLOAT32 = {
    F.layer_norm,
    torch.layer_norm,
    F.softmax,
    torch.softmax,
    Tensor.softmax,
    torch.logsumexp,
    torch.exp,
    torch.pow,
}


class CudaAutocast(TorchFunctionMode):
    """Gives functions their arguments in the dtypes of CUDA's rules, within a `with` block.

    The rules act while torch.autocast(device_type) is on. torch calls `__torch_function__` in place
    of each function.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        # As autocast does, cast each weight once and keep the result: id of a weight -> the weight,
        # and the cast weight.
        self.weights: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, with its tensors in the dtype of its rule if it has one."""
        kwargs = kwargs or {}
        # While torch runs this method, it switches the mode off, so the rules do not act in the
        # functions that `func` calls. But Tensor.backward computes checkpointed branches again, and
        # these branches need the rules. So `self.backward` switches the mode on again.
        if func is Tensor.backward:
            return self.backward(args[0])
        has_rule = func in LOWER or func in FLOAT32
        if not torch.is_autocast_enabled(self.device_type) or not has_rule:
            return func(*args, **kwargs)

        dtype = torch.get_autocast_dtype(self.device_type) if func in LOWER else torch.float32
        args = [self.cast(value, dtype) for value in args]
        kwargs = {key: self.cast(value, dtype) for key, value in kwargs.items()}
        # torch's own rules must not act within the function, because they would cast again.
        with torch.autocast(self.device_type, enabled=False):
            return func(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Run loss.backward() with the default arguments, and with this mode on."""
        with self:
            # These are the arguments that Tensor.backward would give to torch's engine.
            # Tensor.backward itself cannot be called here, because it would call this method again.
            keep_graph = False
            create_graph = False
            inputs = ()  # all leaves
            allow_unreachable = True
            accumulate_grad = True  # into `grad` of the leaves
            Variable._execution_engine.run_backward(
                (loss,),
                (torch.ones_like(loss),),
                keep_graph,
                create_graph,
                inputs,
                allow_unreachable,
                accumulate_grad,
            )
        self.weights.clear()  # the optimizer changes the weights

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Return an argument in this dtype, if it is a tensor that autocast would cast."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        # Autocast casts no float64. A value that has the dtype already needs no cast.
        if value.dtype in (dtype, torch.float64):
            return value
        is_weight = value.is_leaf and value.requires_grad and torch.is_grad_enabled()
        if not is_weight:
            return value.to(dtype)
        if id(value) not in self.weights:
            # The weight itself is kept as well, so that no other tensor gets its id.
            self.weights[id(value)] = (value, value.to(dtype))
        _, cast = self.weights[id(value)]
        return cast
