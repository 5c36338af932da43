"""Training of a video restoration network: feed a batch, optimize, test, log, and the state that a resume needs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from models.amp import AMP_DTYPES, amp_dtype
from models.ddp import bare, wrap_ddp
from models.losses import LOSSES
from models.model_base import ModelBase, cpu_state
from models.nonfinite import NonFiniteSteps
from models.optim import build_optimizer, is_fix_key, load_moments, set_lr
from models.out_of_memory import memory_error
from models.restore.restorer import Restorer
from models.restore.tiling import Tiling, out_of_memory
from models.weights import load_pretrained, load_weights
from utils import utils_dist
from utils.contract import InputSpec, input_spec
from utils.dist import watchdog
from utils.errors import CheckpointError
from utils.options.models import Options, ValOptions
from utils.run.resume import differences

logger = logging.getLogger(__name__)


class ModelVRT(ModelBase):
    """Any network with ``netG(lq, spike) -> (B, T, 3, sH, sW)``, trained on the batches of design.md."""

    def __init__(self, opt: Options, spike_channels: int | None = None) -> None:
        super().__init__(opt, spike_channels)
        self.train_opt = opt.train
        self.tiling = tile_options(opt.val, input_spec(self.netG))
        self.seed = self.train_opt.manual_seed
        self.amp_dtype = amp_dtype(self.train_opt.amp, self.device)
        self.nonfinite = NonFiniteSteps(self.train_opt.max_nonfinite_steps, opt.folder)
        self.loss_sum, self.loss_count = torch.zeros((), device=self.device), 0
        self.is_described = False  # whether the first batch has been shown (debug.every)

    # ---- before the first step -------------------------------------------------------------------------------------

    def init_train(self, state: dict[str, Any] | None = None) -> None:
        """Weights, freeze, DDP, optimizer, in this order. Collective.

        state: a full checkpoint, which wins over `path.pretrained_netG`; None: pretrained weights, or from scratch.
        """
        path, strict = self.opt.path, self.train_opt.G_param_strict
        if state is None:
            load_pretrained(bare(self.netG), path.pretrained_netG, strict)
        else:
            self._load_checkpoint_weights(state)
        self.init_ema(self.train_opt.E_decay)
        if state is None and self.netE is not None:
            load_pretrained(self.netE, path.pretrained_netE, strict, "netE")
        if self.train_opt.compile:
            self.netG.compile()  # in place: weights keep their names, and no wrapper stands in the way
        self.lossfn: nn.Module = LOSSES.build(self.train_opt, "train").to(self.device)
        self.optimizer = build_optimizer(self.netG, self.train_opt)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.amp_dtype is torch.float16)
        if state is not None:
            self._load_training_state(state)
        self.frozen: bool | None = None  # decided, and DDP built, by the first step
        self.netG.train()

    def _load_checkpoint_weights(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError, with the options of netG that differ, where not every tensor fits."""
        try:
            load_weights(bare(self.netG), state["model_state_dict"], "the checkpoint to resume from", strict=True)
        except CheckpointError as e:
            changed = ", ".join(differences(state["options"]["netG"], self.opt.netG.plain(), "netG."))
            e.expected = "the network that the checkpoint was trained with"
            e.do = (
                f"undo the change of {changed or 'netG'}, or start a new task from these weights (path.pretrained_netG)"
            )
            raise

    def _load_training_state(self, state: dict[str, Any]) -> None:
        was, now = state["options"]["train"]["fix_keys"], self.train_opt.fix_keys
        load_moments(self.optimizer, state["optimizer"], bare(self.netG), was, now)
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.netE is not None and state["ema_state_dict"] is not None:
            self.netE.load_state_dict(state["ema_state_dict"])
        self.nonfinite.in_a_row = state["nonfinite_in_a_row"]

    def training_state(self) -> dict[str, Any]:
        """Everything of the model that a resume needs, as plain types and CPU tensors."""
        return {
            "model_state_dict": cpu_state(self.netG),
            "ema_state_dict": cpu_state(self.netE) if self.netE is not None else None,
            "optimizer": _to_cpu(self.optimizer.state_dict()),
            "scaler": _to_cpu(self.scaler.state_dict()),
            "nonfinite_in_a_row": self.nonfinite.in_a_row,
            "network": self.portable,
        }

    # ---- one step --------------------------------------------------------------------------------------------------

    def is_frozen_at(self, step: int) -> bool:
        """Whether the parameters of `fix_keys` are left as they are in this step."""
        return step < self.train_opt.fix_iter

    def set_phase(self, step: int, batch: dict[str, Any]) -> None:
        """Freeze or release the parameters of `fix_keys` and wrap in DDP anew. Collective.

        A parameter released after DDP was built would never be reduced, and a static graph may not change: hence the
        new wrap, on all ranks at the same step.
        """
        frozen = self.is_frozen_at(step)
        if self.frozen is not None:
            logger.info("iteration %d: %s are trained from now on", step, ", ".join(self.train_opt.fix_keys))
        self.frozen = frozen
        net = bare(self.netG)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(not (frozen and is_fix_key(name, self.train_opt.fix_keys)))
        self.fit_memory(batch)
        self.netG = self.wrapped(net)
        if isinstance(self.netG, DistributedDataParallel) and not self.opt.find_unused_parameters:
            self._settle_buckets(batch)

    def wrapped(self, net: nn.Module) -> nn.Module:
        """`net` in DDP, as the options ask for it. Collective."""
        return wrap_ddp(net, self.opt.find_unused_parameters, self.opt.use_static_graph)

    def fit_memory(self, batch: dict[str, Any]) -> None:
        """Lets a network that can do so choose what it computes anew, for training steps on batches like this."""
        if hasattr(bare(self.netG), "fit"):
            self.feed_data(batch)
            with self.autocast():
                bare(self.netG).fit(self.lq, self.spike)

    def _settle_buckets(self, batch: dict[str, Any]) -> None:
        """Two passes whose gradients are dropped. Collective.

        DDP lays its buckets out anew before the second pass of each process life; from three ranks on, that changes
        the order of the sums. With the layout settled before the first step, a resumed run repeats the bits of one
        that was never interrupted.
        """
        if utils_dist.get_world_size() > 2:
            self.feed_data(batch)
            for _ in range(2):
                self.loss().backward()
                self.netG.zero_grad(set_to_none=True)

    def optimize_parameters(self, step: int, micro_batches: Sequence[dict[str, Any]]) -> None:
        """One optimizer step on `accumulation_steps` micro-batches; step counts from 1. Collective.

        The gradient norm after the reduction is the same number on all ranks, so a NaN or Inf anywhere is seen by all
        of them without another collective, and all skip the step. Raises NonFiniteError, on all ranks, after
        `max_nonfinite_steps` such steps in a row.
        """
        is_first = self.is_frozen_at(step) != self.frozen
        # Such a step also settles DDP, compiles and tunes kernels, which may take minutes.
        with watchdog.stage("first step") if is_first else nullcontext():
            watchdog.phase("forward", step - 1)
            try:
                if is_first:
                    self.set_phase(step, micro_batches[0])
                set_lr(self.optimizer, step, self.train_opt)
                # Randomness in the network depends on nothing but these three: no generator state needs saving.
                torch.manual_seed(mix_seed(self.seed, step, utils_dist.get_rank()))
                self.optimizer.zero_grad(set_to_none=True)
                self.step_loss = torch.zeros((), device=self.device)
                self._accumulate(step, micro_batches)
            except (RuntimeError, MemoryError) as e:
                if not out_of_memory(e):
                    raise
                clips = (micro_batches[0]["lq"], micro_batches[0].get("spike"))
                raise memory_error(e, f"iteration {step}", self.opt, bare(self.netG), clips, self.autocast) from e
            watchdog.phase("optimizer")
            self._apply_gradients(step, micro_batches)

    def _accumulate(self, step: int, micro_batches: Sequence[dict[str, Any]]) -> None:
        """Forward and backward over the micro-batches; the gradients are reduced in the last backward pass."""
        for index, batch in enumerate(micro_batches):
            self.feed_data(batch)
            is_last = index == len(micro_batches) - 1
            with (
                nullcontext() if is_last or not isinstance(self.netG, DistributedDataParallel) else self.netG.no_sync()
            ):
                watchdog.phase("forward", step - 1)
                loss = self.loss() / len(micro_batches)
                # The last backward pass meets the other ranks.
                (watchdog.sync if is_last else watchdog.phase)("backward")
                self.scaler.scale(loss).backward()
            self.step_loss = self.step_loss + loss.detach()

    def feed_data(self, batch: dict[str, Any]) -> None:
        self.lq = batch["lq"].to(self.device, non_blocking=True)
        self.gt = batch["gt"].to(self.device, non_blocking=True) if "gt" in batch else None
        self.spike = batch["spike"].to(self.device, non_blocking=True) if "spike" in batch else None

    def loss(self) -> Tensor:
        """Loss of the batch fed last; the network in the AMP dtype, the loss itself in float32 (or better)."""
        with self.autocast():
            restored = self.netG(self.lq, self.spike)
        restored = restored.float() if restored.dtype in AMP_DTYPES.values() else restored
        return self.train_opt.G_lossfn_weight * self.lossfn(restored, self.gt)

    def autocast(self) -> Any:
        return torch.autocast(self.device.type, self.amp_dtype) if self.amp_dtype else nullcontext()

    def _apply_gradients(self, step: int, micro_batches: Sequence[dict[str, Any]]) -> None:
        self.scaler.unscale_(self.optimizer)
        clip = self.train_opt.G_optimizer_clipgrad
        gradients = [p.grad for p in bare(self.netG).parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        # The one place that waits for the device: whether to skip must be known before the weights change.
        if torch.isfinite(norm):
            self.nonfinite.passed()
            self.loss_sum, self.loss_count = self.loss_sum + self.step_loss, self.loss_count + 1
            if clip:
                nn.utils.clip_grads_with_norm_(bare(self.netG).parameters(), clip, norm)
            self.scaler.step(self.optimizer)
            self.update_ema()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            keys = [key for batch in micro_batches for key in batch["key"]]
            lr, scale = self.optimizer.param_groups[0]["lr"], self.scaler.get_scale()
            self.nonfinite.skipped(step, float(self.step_loss), keys, float(norm), lr, scale)
        if self.scaler.is_enabled():
            self.scaler.update()

    # ---- log and test ----------------------------------------------------------------------------------------------

    def current_log(self) -> dict[str, float]:
        """Mean loss since the last call, over all ranks, and the learning rate. Collective."""
        mean = utils_dist.all_reduce_mean(self.loss_sum / max(1, self.loss_count))
        self.loss_sum, self.loss_count = torch.zeros((), device=self.device), 0
        return {"loss": float(mean), "lr": self.optimizer.param_groups[0]["lr"]}

    @contextmanager
    def restorer(self) -> Iterator[Restorer]:
        """netE (or netG) with the tiles of `val`; the network is in eval mode meanwhile."""
        net = self.net_for_test
        training = net.training
        dtype = str(self.amp_dtype or torch.float32).removeprefix("torch.")
        do = "lower val.size_patch_testing, val.num_frame_testing or val.batch_tiles (0: the whole clip at once)"
        try:
            # A frame with NaN must not end the training: its score is NaN, and never the best.
            yield Restorer(net, Tiling(**self.tiling), self.device, dtype=dtype, finite_only=False, do=do)
        finally:
            net.train(training)


def tile_options(val: ValOptions, spec: InputSpec) -> dict[str, Any]:
    """The fields of `models.restore.tiling.Tiling` that the options `val` and what the network needs determine."""
    same = ("num_frame_testing", "num_frame_overlapping", "size_patch_testing", "batch_tiles")
    return {key: getattr(val, key) for key in (*same, "flip_seq", "pad_seq", "center_frame_only")} | {
        "size_overlapping": val.size_patch_overlapping,
        "window_size": spec.window_size,
        "scale": spec.scale,
        "min_frames": 1 if spec.interpolates else spec.least_frames,
    }


def mix_seed(*parts: int) -> int:
    """A 63-bit seed from a few integers, the same on every machine (Python's hash() is salted per process)."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _to_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_cpu(item) for item in value)
    return value
