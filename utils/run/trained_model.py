"""What a run needs of its model, and of the batches that the loader yields.

utils/run/ imports neither models/ nor data/ (test_imports_between_folders_run_down_only). So this
module describes which members of a model utils/run/ uses. models/model_vrt.py has these members.

What must stay: the members here and in models/model_vrt.py are the same. Add a new member in both
places.
"""

from pathlib import Path
from typing import Any, Protocol

import torch

from utils.run.timing import DeviceClock

MicroBatches = list[dict[str, Any]]  # the batches of one optimizer step, from the loader


class TrainedModel(Protocol):
    """The attributes and methods that a run needs of its model. models.model_vrt has them.

    A model of your own needs no common base class. It only needs these members.
    """

    device: torch.device
    # A sentence for each operation that this device computes in another form than an NVIDIA GPU,
    # for the head of the log. E.g. torch's operators stand in for our kernels.
    stand_ins: list[str]
    # The clock that measures the forward passes.
    forward_clock: DeviceClock

    def describe(self) -> str:
        """Return kind and size of the network in words."""
        ...

    def parameter_count(self) -> int:
        """Return the number of parameters of the network."""
        ...

    def weights_hash(self) -> str:
        """Return a digest of all weights."""
        ...

    def to_device(self, batch: dict[str, Any]) -> Any:
        """Return the tensors of a batch on the device: lq, spike and targets.

        The result has the attributes lq, spike (None without spikes) and targets (a dict), which
        debug_lines.py prints.
        """
        ...

    def training_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the model, on the CPU."""
        ...

    def save_weights(self, folder: Path, step: int) -> None:
        """Write the bare weights into `folder`, e.g. 5000_G.pth."""
        ...
