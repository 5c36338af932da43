"""Make the networks of a training, and save and load all that outlives a step.

model_vrt.py adds the optimizer step to the class `ModelState`. `init_train` makes what a step
needs: netE, the loss, the optimizer and the scaler. `training_state` returns the model's part of a
checkpoint. utils/run adds the keys of the run, and writes the file. When a run is resumed,
main_train_vrt.py passes the content of the file to `init_train`.

    netG          the trained network
    netE          the averaged network: its weights are a moving average of the weights of netG
    Collective    in a docstring: every rank (process of the training) must call this at the same
                  point of the program, because the ranks wait for each other

What must stay: a resumed run goes on as if it had not been interrupted, bit for bit. So whatever
outlives a step is saved and loaded, e.g. the loss scale
(test_a_resume_goes_on_with_the_loss_scale_of_float16). The keys of a checkpoint and of a weights
file are file formats: a new key must be optional.

Tests: tests/stories/test_checkpoint.py, tests/stories/test_main_train.py
"""

import copy
import hashlib
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.compiled_code import keep_compiled_code_at_home
from models.ddp import unwrap_ddp
from models.loading import SpoiltWeightsError, load_weights
from models.losses import LOSSES, names_of_targets, warn_of_untrained
from models.optim import build_optimizer, load_moments
from models.precision import amp_dtype
from models.pretrained import load_pretrained
from models.schedules import lr_at
from models.select_network import define_G
from models.vrt.forms import stand_ins
from utils import utils_dist
from utils.errors import CheckpointError, NonFiniteError
from utils.options.models import Options
from utils.run import changed_options, checkpoint
from utils.run.saved_state import TAKE_ANOTHER
from utils.run.steps import NonFiniteSteps
from utils.run.timing import DeviceClock

logger = logging.getLogger(__name__)


class ModelState:
    """The networks of a training, its loss and its optimizer, for any network.

    netG(lq, spike) returns the restored frames, (B, T, 3 K, sH, sW), of B clips with T blurry
    frames of H x W pixels. Each blurry frame gives K = netG.out_instants sharp frames, and a sharp
    frame is s = `scale` times as high and as wide. During training with several processes, netG is
    wrapped in DDP (DistributedDataParallel).
    """

    def __init__(self, opt: Options, spike_channels: int | None = None) -> None:
        """Build netG. `init_train` adds the parts that only training needs.

        spike_channels: number of spike channels. None takes it from the datasets of `opt`.
        """
        if spike_channels is None:
            spike_channels = opt.spike_channels
        self.opt = opt
        self.train_opt = opt.train
        self.device = utils_dist.get_device()
        # Sentences for the log, one for each operation that this device computes differently from
        # NVIDIA's GPUs, e.g. "our own sampling stands in for torchvision's deformable convolution".
        # The list is empty on a CPU and on NVIDIA's GPUs.
        self.stand_ins = stand_ins(self.device)
        # The options from which a program can build the network again, for weights files and
        # checkpoints. The options name no paths of this machine, because another machine may use
        # the file.
        self.network_options: dict[str, Any] = {**opt.portable(), "spike_channels": spike_channels}

        # torch's layers draw their initial weights from the default generator. All ranks give it
        # the same seed, so that the weights are equal on all ranks.
        torch.manual_seed(self.train_opt.manual_seed)
        self.netG = define_G(opt, spike_channels).to(self.device)
        # The averaged network. `init_train` makes it, unless train.E_decay is 0.
        self.netE: nn.Module | None = None

        self.amp_dtype = amp_dtype(self.train_opt.amp, self.device)
        self.autocast = torch.autocast(
            self.device.type, self.amp_dtype, enabled=self.amp_dtype is not None
        )
        # Counts the steps that are skipped because of NaN or Inf, and ends the run after too many.
        self.nonfinite = NonFiniteSteps(self.train_opt.max_nonfinite_steps, opt.folder)
        # Measures the time of the forward passes, for the log.
        self.forward_clock = DeviceClock(self.device)
        # Which parameters the last step has trained:
        #     None        there was no step yet
        #     "frozen"    the parameters with a key of train.fix_keys in their name were frozen, and
        #                 all other parameters were trained
        #     "all"       every parameter was trained
        self.phase: str | None = None

    def init_train(self, state: dict[str, Any] | None = None) -> None:
        """Load the weights, and create netE, the loss, the optimizer and the scaler.

        Collective: all ranks must call this. Parameters are frozen and netG is wrapped in DDP only
        later, by the first step.

        state: a checkpoint to resume from, with the keys of `training_state`. If it is None, the
        training starts from `path.pretrained_netG`, or from scratch.

        The order of the lines must stay:

            weights before netE              netE begins as a copy of the loaded weights
            netE before compiling            the copy must not be compiled
            optimizer before its moments     `_load_training` loads the moments into the optimizer
        """
        self._load_weights(state)
        self._start_average(state)
        if self.train_opt.compile:
            keep_compiled_code_at_home()  # below the user's home, not in /tmp
            self.netG.compile()  # in place: the names in the state dict stay the same

        self.lossfn: nn.Module = LOSSES.build(self.train_opt, "train").to(self.device)
        # Warns if the loss has parameters, because the optimizer gets only the parameters of netG.
        warn_of_untrained(self.lossfn)
        # The keys of a batch whose tensors the loss takes with the restored clip, e.g. ("gt",).
        self.target_names = names_of_targets(type(self.lossfn))
        self.optimizer = build_optimizer(self.netG, self.train_opt)
        # Without scaling of the loss, gradients in float16 underflow. Gradients in bfloat16 do not.
        self.scaler = torch.amp.GradScaler(
            self.device.type, enabled=self.amp_dtype is torch.float16
        )
        if state is not None:
            self._load_training(state)
        self.phase = None  # a notebook may call `init_train` again after some steps
        self.netG.train()

    # ---- Loading ----

    def _load_weights(self, state: dict[str, Any] | None) -> None:
        """Load the weights of netG from the checkpoint `state`, or from path.pretrained_netG.

        Raises CheckpointError if the weights do not fit. For a checkpoint, the error names the
        options that have changed since the checkpoint was written.
        """
        net = unwrap_ddp(self.netG)
        if state is None:
            load_pretrained(net, self.opt.path.pretrained_netG, self.train_opt.G_param_strict)
            return
        weights = state["model_state_dict"]
        try:
            load_weights(net, weights, "model_state_dict of the checkpoint", strict=True)
        except SpoiltWeightsError:
            raise  # NaN or integers: the network fits, so the advice below would be wrong
        except CheckpointError as e:
            # The texts of the error are about pretrained weights. Replace two texts, because here a
            # run is resumed. `netG_then` has the options of the run that wrote the checkpoint.
            netG_then = state["options"]["netG"]
            # The keys whose values have changed, e.g. "netG.depths".
            changed = changed_options.differences(netG_then, self.opt.netG.plain(), "netG.")
            keys = ", ".join(changed) if changed else "netG"
            e.expected = "the network that the checkpoint was trained with"
            e.do = f"undo the change of {keys}, or start a new task with path.pretrained_netG"
            raise

    def _start_average(self, state: dict[str, Any] | None) -> None:
        """Create netE, the averaged network, with the weights of netG or path.pretrained_netE.

        If train.E_decay, the decay of the average, is 0, there is no netE. If `state` is a
        checkpoint, `_load_training` loads the averaged weights later.
        """
        path = self.opt.path.pretrained_netE
        decay = self.train_opt.E_decay
        if not decay:
            if path and utils_dist.is_main_process():
                logger.warning(
                    "path.pretrained_netE has no effect in training while train.E_decay is 0"
                )
            return
        self.netE = copy.deepcopy(unwrap_ddp(self.netG)).eval().requires_grad_(False)
        # `_update_average` (model_vrt.py) calls this function.
        self.ema_update = torch.optim.swa_utils.get_ema_multi_avg_fn(decay)
        if state is None:  # without a path, netE keeps the weights of netG
            load_pretrained(self.netE, path, self.train_opt.G_param_strict, "netE")

    def _load_training(self, state: dict[str, Any]) -> None:
        """Load moments, loss scale, averaged weights and the count of skipped steps.

        state: the content of a checkpoint.
        """
        net = unwrap_ddp(self.netG)
        train_then = state["options"]["train"]  # section of the run that wrote `state`
        load_moments(self.optimizer, state["optimizer"], net, train_then, self.train_opt)
        # A checkpoint of an earlier version may lack these keys (utils/run/saved_state.py).
        scaler = state.get("scaler")
        if scaler:  # empty if the checkpoint was trained without float16
            self.scaler.load_state_dict(scaler)
        averages = state.get("ema_state_dict")
        if self.netE is not None and averages is not None:
            self._load_averages(self.netE, averages)
        self.nonfinite.in_a_row = state.get("nonfinite_in_a_row", 0)
        # Set the rate of the last step, because the checkpoint may be saved again before the next
        # step sets a rate. utils/run adds "step" to the result of `training_state`, so a state that
        # no run has saved has no "step". Test:
        # test_a_checkpoint_that_is_saved_after_a_restore_equals_the_restored_checkpoint
        if state.get("step"):
            self._set_learning_rate(state["step"])

    def _load_averages(self, netE: nn.Module, averages: dict[str, torch.Tensor]) -> None:
        """Load the averaged weights of a checkpoint. Raises CheckpointError if they do not fit.

        The weights of netG have fitted before, so averages that do not fit come from a damaged or
        changed file.
        """
        try:
            load_weights(netE, averages, "ema_state_dict of the checkpoint", strict=True)
        except SpoiltWeightsError:  # NaN or integers: this error has its own advice
            raise
        except CheckpointError as e:
            e.expected = "the averages of the tensors in model_state_dict"
            e.do = TAKE_ANOTHER  # the advice to resume from another checkpoint
            raise

    def _set_learning_rate(self, step: int) -> None:
        """Set the learning rate of each group of parameters for a step.

        The rate depends only on the step and on the options of the run.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr_at(step, group["initial_lr"], self.train_opt)

    # ---- Saving ----

    def training_state(self) -> dict[str, Any]:
        """Return the state that a resume needs, as plain types and CPU tensors.

        The keys are part of the checkpoint format. `_load_training` must accept a checkpoint of an
        older version that lacks a new key. The experiment (utils/run) adds the keys of the run to
        the file: "options", "step", and others.

        Raises NonFiniteError if trained weights hold NaN or Inf.
        """
        self._refuse_to_save_spoilt_weights()
        return to_cpu(
            {
                "model_state_dict": unwrap_ddp(self.netG).state_dict(),
                "ema_state_dict": self.netE.state_dict() if self.netE is not None else None,
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "nonfinite_in_a_row": self.nonfinite.in_a_row,
                # The options of the network, from which a program can build it again.
                "network": self.network_options,
            }
        )

    def _refuse_to_save_spoilt_weights(self) -> None:
        """Raise NonFiniteError if trained weights hold NaN or Inf.

        If such weights were saved, they would replace a good checkpoint. Steps with a loss or
        gradient of NaN are skipped, but an update with finite gradients may overflow, too, e.g. if
        the learning rate is far too high.
        """
        for name, parameter in unwrap_ddp(self.netG).named_parameters():
            # A parameter that is not trained may be a mask of -Inf.
            if parameter.requires_grad and not parameter.isfinite().all():
                raise NonFiniteError(
                    what=f"the weights have become NaN or Inf ({name} among them), and are not "
                    "saved",
                    where="the update of the weights, in a step since the last save",
                    expected="numbers",
                    do="lower train.G_optimizer_lr, and start the same command again: it resumes "
                    "from the last checkpoint",
                )

    def save_weights(self, folder: Path, step: int) -> None:
        """Write the weights to <step>_G.pth, and the averaged weights, if any, to <step>_E.pth.

        Each file holds {"params": weights, "options": options of the network, "iter": step}. These
        keys must stay: weights_file.py reads "params" (CONTAINERS), and portable.py "options".
        """
        for letter, net in (("G", self.netG), ("E", self.netE)):
            if net is None:
                continue
            content = {
                "params": to_cpu(unwrap_ddp(net).state_dict()),
                "options": self.network_options,
                "iter": step,
            }
            # No run resumes from this file. So the file needs no former versions (keep=0) and no
            # sidecar. (A sidecar is a small file beside a checkpoint, with its checksum.)
            path = folder / f"{step}_{letter}.pth"
            checkpoint.save(content, path, keep=0, has_sidecar=False)

    # ---- For logs and comparisons ----

    def weights_hash(self) -> str:
        """Return the hash of netG's weights, 12 hex digits. Ranks compare it."""
        return weights_hash(self.netG)  # the function at the end of this file

    def parameter_count(self) -> int:
        """Return the number of netG's parameters, trained or frozen."""
        return sum(parameter.numel() for parameter in unwrap_ddp(self.netG).parameters())

    def describe(self) -> str:
        """Describe kind and size of netG in one line, for the log.

        E.g. "vrt, fusion gated, 35.60 M parameters; 0.57 GB without activations". Activations are
        not counted, because they depend on the clips. The log reports the peak of a step later.
        """
        parameter_count = self.parameter_count()
        options = self.network_options["netG"]
        # A parameter needs four numbers: its weight, its gradient, and two moments of Adam. With a
        # netE, the average is a fifth number. E.g. 35.60 M parameters without a netE: 4 bytes * 4 *
        # 35.60 M = 0.57 GB. cpu_memory.py counts the same numbers (BYTES_PER_PARAMETER), so change
        # both together.
        numbers_per_parameter = 4 if self.netE is None else 5
        bytes_per_number = 4  # float32
        gigabytes = bytes_per_number * numbers_per_parameter * parameter_count / 1e9

        text = options["net_type"]
        if options.get("fusion"):
            text += f", fusion {options['fusion']['type']}"
        millions = parameter_count / 1e6
        text += f", {millions:.2f} M parameters; {gigabytes:.2f} GB without activations"
        if options.get("checkpoint"):
            text += "; checkpoint auto: fitted to the memory at the first step"
        return text


def weights_hash(net: nn.Module) -> str:
    """Hash all weights and buffers to 12 hex digits. Equal hashes mean that every bit is equal.

    `net` may be in DDP.
    """
    digest = hashlib.sha256()
    for name, tensor in unwrap_ddp(net).state_dict().items():
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        # Take the numbers as bytes, because NumPy does not know bfloat16.
        as_bytes = flat.view(torch.uint8)
        digest.update(as_bytes.numpy())
    return digest.hexdigest()[:12]


def to_cpu(value: Any) -> Any:
    """Copy `value` with its tensors (in dicts, lists, tuples) detached, contiguous, on the CPU."""

    def tensor_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().cpu().contiguous()

    return utils_dist.map_tensors(value, tensor_to_cpu)
