"""Print lines of a step to find a fault: the tensors of the first batch, losses and sample names.

The option `debug.every` switches them on. Free to change: the form of the lines, together with
tests/dist/test_changed_resume.py, which quotes them.
"""

from contextlib import suppress

from torch import Tensor

from utils import utils_dist
from utils.run.steps import StepResult
from utils.run.trained_model import MicroBatches, TrainedModel


class DebugLines:
    """Prints the debug lines of this rank."""

    def __init__(self, model: TrainedModel, every: int) -> None:
        """Prepare to print. The first call of `print_step` prints the tensors of its batch.

        model: the model, which moves a batch to its device.
        every: number of steps between two lines with loss and samples, 1 or more.
        """
        self.model = model
        self.every = every
        self.is_first_batch_printed = False

    def print_step(self, result: StepResult, micro_batches: MicroBatches) -> None:
        """Print the tensors of the first batch, once. Every `every` steps, print loss and samples.

        Each rank prints its own lines.

        result: losses and keys of the step.
        micro_batches: the batches of the step.
        """
        rank = f"[Rank {utils_dist.get_rank()}/{utils_dist.get_world_size()}]"
        loss = result.losses["loss"]
        lines = []
        if not self.is_first_batch_printed:
            self.is_first_batch_printed = True
            # One micro-batch is enough to show the shapes, here the last one of the step.
            batch = self.model.to_device(micro_batches[-1])
            tensors = {"lq": batch.lq, "spike": batch.spike, **batch.targets, "loss": loss}
            lines.append(f"{rank} First batch: {_describe_tensors(tensors)}")
        if result.step % self.every == 0:
            lines.append(
                f"{rank} Step {result.step}, Batch size: {len(result.keys)}, "
                f"Loss: {float(loss):.4f}, Samples: {', '.join(result.keys)}"
            )
        # Print all lines at once, so that the lines of two ranks do not mix.
        text = "".join(f"{line}\n" for line in lines)
        with suppress(OSError):  # if stdout goes to a full disk, the run goes on
            print(text, end="", flush=True)


def _describe_tensors(tensors: dict[str, Tensor | None]) -> str:
    """Describe tensors, e.g. "lq (1, 2, 3, 32, 32) float32 0.012..0.98 on cpu; ..."."""
    texts = []
    for name, tensor in tensors.items():
        if tensor is None:  # e.g. "spike" of a network without spikes
            continue
        shape = tuple(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        low = tensor.min().item()
        high = tensor.max().item()
        texts.append(f"{name} {shape} {dtype} {low:.3g}..{high:.3g} on {tensor.device}")
    return "; ".join(texts)
