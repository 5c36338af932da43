"""Training of a video restoration network: netG in DDP and mixed precision, its moving average netE, the optimizer
steps, log values, and the state needed to resume.
"""

import copy
import hashlib
import json
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from models.losses import LOSSES, taken_by
from models.optim import build_optimizer, group_names, load_moments, lr_at
from models.portable import load_pretrained, load_weights
from models.select_network import NETWORKS, define_G
from models.vrt.fit_memory import is_out_of_memory, out_of_memory_error
from models.vrt.layers import tf32
from utils import utils_dist
from utils.contract import input_spec
from utils.dist import watchdog
from utils.dist.state import tell
from utils.errors import CheckpointError, DataError, NonFiniteError
from utils.files import write_whole
from utils.options.load import read_options
from utils.options.models import AmpOptions, Options
from utils.random_streams import mix_seed
from utils.run import checkpoint
from utils.run.measure import DeviceClock

logger = logging.getLogger(__name__)

AMP_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def define_Model(opt: Options | Mapping[str, Any], spike_channels: int | None = None) -> "ModelVRT":
    """The model of the options; for notebooks also of a mapping in KAIR's form, completed with all defaults.

    spike_channels: S of the batches; None: S of the options' datasets (0 for a mapping: its datasets are not read).
    Raises OptionError, as for an option file.
    """
    if not isinstance(opt, Options):
        values = {key: value for key, value in opt.items() if key != "datasets"}
        opt = read_options({"task": "notebook", **values}, {"netG": NETWORKS, "train": LOSSES})
    return ModelVRT(opt, spike_channels)


class ModelVRT:
    """Trains any network with netG(lq, spike) -> (B, T, 3 K, sH, sW), K = netG.out_instants.

    netG is in DDP during training; netE is its exponential moving average, or None.

    A batch holds lq (B, T, 3, H, W), gt (B, T, 3, sH, sW), both in [0, 1], spike (B, T, S, H, W) and key, a list of B
    sample names; for K > 1 the sharp instants gt_instants (B, T, 3 K, sH, sW). For non-blind denoising lq has a fourth
    channel, the noise map; for frame interpolation gt holds the new frames, (B, 1, 3, H, W).
    """

    def __init__(self, opt: Options, spike_channels: int | None = None) -> None:
        """spike_channels: see `define_Model`."""
        channels = opt.spike_channels if spike_channels is None else spike_channels
        # torch's layers draw their first weights from the default generator. Seeded: the same on every rank.
        torch.manual_seed(opt.train.manual_seed)
        self.device = utils_dist.get_device()
        self.netG = define_G(opt, channels).to(self.device)
        self.netE: nn.Module | None = None
        self.portable = {**opt.portable(), "spike_channels": channels}  # what a weights file says of netG
        self.opt, self.train_opt = opt, opt.train
        self.amp_dtype = amp_dtype(self.train_opt.amp, self.device)
        self.autocast = torch.autocast(self.device.type, self.amp_dtype, enabled=self.amp_dtype is not None)
        self.nonfinite = NonFiniteSteps(self.train_opt.max_nonfinite_steps, opt.folder)
        # Of the steps since the last log line: "loss" and, if it has several terms, each. No value leaves the device
        # before it is logged.
        self.line_losses: dict[str, list[Tensor]] = {}
        self.epoch_loss, self.epoch_steps, self.epoch_skipped = 0.0, 0, 0  # sum and numbers since the last epoch
        self.grad_norms: list[float] = []  # of the steps since the last log line, before clipping
        self.forward_clock = DeviceClock(self.device)
        self.is_described = False  # whether the first batch has been printed (debug.every)

    def init_train(self, state: dict[str, Any] | None = None) -> None:
        """Load the weights, then create netE, the loss, the optimizer and the gradient scaler. Collective.

        The first step freezes parameters and wraps netG in DDP.
        state: a full checkpoint to resume from; None: start from `path.pretrained_netG`, or from scratch.
        """
        path, strict = self.opt.path, self.train_opt.G_param_strict
        net = unwrap_ddp(self.netG)
        if state is None:
            load_pretrained(net, path.pretrained_netG, strict)
        else:
            try:
                load_weights(net, state["model_state_dict"], "the checkpoint to resume from", strict=True)
            except CheckpointError as e:
                changed = ", ".join(checkpoint.differences(state["options"]["netG"], self.opt.netG.plain(), "netG."))
                e.expected = "the network that the checkpoint was trained with"
                e.do = f"undo the change of {changed or 'netG'}, or start a new task with path.pretrained_netG"
                raise
        if self.train_opt.E_decay:
            self.netE = copy.deepcopy(net).eval().requires_grad_(False)
            self.ema_update = torch.optim.swa_utils.get_ema_multi_avg_fn(self.train_opt.E_decay)
        elif path.pretrained_netE and utils_dist.is_main_process():
            logger.warning("path.pretrained_netE has no effect in training while train.E_decay is 0")
        if state is None and self.netE is not None:
            load_pretrained(self.netE, path.pretrained_netE, strict, "netE")
        if self.train_opt.compile:
            self.netG.compile()  # in place: the names in the state dict stay the same
        self.lossfn: nn.Module = LOSSES.build(self.train_opt, "train").to(self.device)
        self.taken = taken_by(type(self.lossfn))
        self.optimizer = build_optimizer(self.netG, self.train_opt)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.amp_dtype is torch.float16)
        if state is not None:
            load_moments(self.optimizer, state["optimizer"], net, state["options"]["train"], self.train_opt)
            if state["scaler"]:
                self.scaler.load_state_dict(state["scaler"])
            if self.netE is not None and state["ema_state_dict"] is not None:
                self.netE.load_state_dict(state["ema_state_dict"])
            self.nonfinite.in_a_row = state["nonfinite_in_a_row"]
        self.frozen: bool | None = None  # set by the first step
        self.netG.train()

    def training_state(self) -> dict[str, Any]:
        """The state of the model that a resume needs, as plain types and CPU tensors."""
        return to_cpu({
            "model_state_dict": unwrap_ddp(self.netG).state_dict(),
            "ema_state_dict": self.netE.state_dict() if self.netE is not None else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "nonfinite_in_a_row": self.nonfinite.in_a_row,
            "network": self.portable,
        })  # fmt: skip

    def describe(self) -> str:
        """Kind and size of netG in one line, for the log. Activations depend on the clips: the log gives the peak."""
        count = sum(p.numel() for p in unwrap_ddp(self.netG).parameters())
        options = self.portable["netG"]
        fusion = f", fusion {options['fusion']['type']}" if options.get("fusion") else ""
        # Weights, gradients and two moments of Adam; the averaged weights of netE.
        gb = count * 4 * (4 + (self.netE is not None)) / 1e9
        fitted = "; checkpoint auto: fitted to the memory at the first step" if options.get("checkpoint") else ""
        size = f"{count / 1e6:.2f} M parameters; {gb:.2f} GB without activations"
        return f"{options['net_type']}{fusion}, {size}{fitted}"

    def save_weights(self, folder: Path, step: int) -> None:
        """Write <step>_G.pth and <step>_E.pth: {"params", "options" (see Options.portable), "iter"}."""
        for letter, net in (("G", self.netG), ("E", self.netE)):
            if net is not None:
                content = {"params": to_cpu(unwrap_ddp(net).state_dict()), "options": self.portable, "iter": step}
                checkpoint.save(content, folder / f"{step}_{letter}.pth", keep=None)

    def set_phase(self, step: int, freezes: bool, batch: dict[str, Any]) -> None:
        """Freeze or unfreeze the parameters of `fix_keys` and wrap netG in DDP again. Collective.

        DDP never reduces parameters that are unfrozen after it was built, and a static graph may not change. All
        ranks therefore wrap again at the same step.
        """
        if self.frozen is not None:
            logger.info("iteration %d: %s are trained from now on", step, ", ".join(self.train_opt.fix_keys))
        self.frozen, net = freezes, unwrap_ddp(self.netG)
        _, fixed = group_names(net, self.train_opt.fix_iter, self.train_opt.fix_keys)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(not freezes or name not in fixed)
        self.fit_memory(batch)
        self.netG = self.wrap(net)
        # DDP rebuilds its buckets before the second pass of each process. With three or more ranks that changes the
        # order of the sums. Two passes before the first step make a resumed run bitwise equal to an uninterrupted one.
        if utils_dist.get_world_size() > 2 and not self.opt.find_unused_parameters:
            for _ in range(2):
                self.loss().backward()
                self.netG.zero_grad(set_to_none=True)

    def fit_memory(self, batch: dict[str, Any]) -> None:
        """Feed the batch, and let the network choose its checkpointed blocks for batches of this size."""
        self.feed_data(batch)
        net = unwrap_ddp(self.netG)
        if hasattr(net, "fit"):
            with self.autocast:
                net.fit(self.lq, self.spike)

    def wrap(self, net: nn.Module) -> nn.Module:
        """`net` in DDP with the DDP options of this run; `net` itself in a single process. Collective.

        DDP reduces only the parameters that require a gradient when it is built. After freezing or unfreezing, wrap the
        network again, or its weights diverge between ranks without any error.
        """
        if utils_dist.get_world_size() == 1:
            return net
        # DDP needs these equal on all ranks; it raises an error on one rank only, and the others would wait for it.
        parts = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in net.named_parameters()]
        parts += [(n, tuple(b.shape), str(b.dtype)) for n, b in net.named_buffers()]
        utils_dist.check_same_on_all_ranks("the networks", hashlib.sha256(repr(parts).encode()).hexdigest()[:12])
        index = self.device.index if self.device.type == "cuda" else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers is renamed in torch 2.15
            return DistributedDataParallel(
                net,
                device_ids=None if index is None else [index],
                output_device=index,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=self.opt.find_unused_parameters,
                static_graph=self.opt.use_static_graph,
            )

    def optimize_parameters(self, step: int, micro_batches: Sequence[dict[str, Any]]) -> None:
        """One optimizer step on `accumulation_steps` micro-batches; step counts from 1. Collective.

        The gradient norm after the reduction is the same on all ranks. If it is NaN or Inf, all ranks skip the step
        without another collective. Raises NonFiniteError on all ranks after `max_nonfinite_steps` such steps in a row.
        """
        freezes, is_start = step < (self.train_opt.fix_iter or 0), self.frozen is None
        is_first = freezes != self.frozen
        # The first step also builds DDP, compiles and tunes kernels, which may take minutes.
        precision = nullcontext() if self.train_opt.tf32 is None else tf32(self.train_opt.tf32)
        with watchdog.stage("first step") if is_first else nullcontext(), precision:
            watchdog.phase("forward", step - 1)
            try:
                if is_first:
                    self.set_phase(step, freezes, micro_batches[0])
                for group in self.optimizer.param_groups:
                    group["lr"] = lr_at(step, group["initial_lr"], self.train_opt)
                # All random numbers of the step follow from these three: a checkpoint holds no generator state.
                # DropPath says why they come from torch's default generator.
                torch.manual_seed(mix_seed(self.train_opt.manual_seed, step, utils_dist.get_rank()))
                self.optimizer.zero_grad(set_to_none=True)
                self.step_losses: dict[str, Tensor] = {}
                self._accumulate(step, micro_batches)
                watchdog.phase("optimizer")
                self._apply_gradients(step, micro_batches)
            except (RuntimeError, MemoryError) as e:
                if not is_out_of_memory(e):
                    raise
                options = self.train_opt, self.opt.datasets.train, self.opt.netG, input_spec(unwrap_ddp(self.netG))
                where = f"iteration {step}, clips of {tuple(micro_batches[0]['lq'].shape)}"
                raise out_of_memory_error(where, self.device, *options) from e
            if is_start:
                self.forward_clock.read()  # leave this step out, as StepTimer does

    def _accumulate(self, step: int, micro_batches: Sequence[dict[str, Any]]) -> None:
        """Forward and backward of the micro-batches; the last backward pass reduces the gradients."""
        for index, batch in enumerate(micro_batches):
            self.feed_data(batch)
            is_last = index == len(micro_batches) - 1
            reduces = is_last or not isinstance(self.netG, DistributedDataParallel)
            with nullcontext() if reduces else self.netG.no_sync():
                watchdog.phase("forward", step - 1)
                with self.forward_clock.measured():
                    loss = self.loss() / len(micro_batches)
                # The last backward pass waits for the other ranks.
                watchdog.phase("backward", is_sync=is_last)
                # An infinite loss may have gradients of 0: its factor is NaN, that of a finite loss 1.
                self.scaler.scale(loss * (1 + 0 * loss.detach())).backward()
            for name, value in {"loss": loss.detach(), **self.loss_terms}.items():
                share = value if name == "loss" else value / len(micro_batches)
                self.step_losses[name] = self.step_losses.get(name, 0.0) + share

    def feed_data(self, batch: dict[str, Any]) -> None:
        self.lq = batch["lq"].to(self.device, non_blocking=True)
        self.spike = batch["spike"].to(self.device, non_blocking=True) if "spike" in batch else None
        # Of a network with several instants, gt is the middle one alone.
        gt = "gt_instants" if input_spec(unwrap_ddp(self.netG)).out_instants > 1 else "gt"
        keys = {name: gt if name == "gt" else name for name in self.taken}
        self.compared = {n: batch[key].to(self.device, non_blocking=True) for n, key in keys.items() if key in batch}

    def loss(self) -> Tensor:
        """Loss of the current batch: the network runs in the AMP dtype, the loss in float32 (float64 stays)."""
        with self.autocast:
            restored = self.netG(self.lq, self.spike)
        restored = restored.float() if restored.dtype in AMP_DTYPES.values() else restored
        found, weight = self.lossfn(restored, *self.compared.values()), self.train_opt.G_lossfn_weight
        if isinstance(found, Tensor):
            self.loss_terms: dict[str, Tensor] = {}
            return weight * found
        self.loss_terms = {f"loss_{name}": (weight * term).detach() for name, term in found.items()}
        return weight * sum(found.values())

    def _apply_gradients(self, step: int, micro_batches: Sequence[dict[str, Any]]) -> None:
        self.scaler.unscale_(self.optimizer)
        clip = self.train_opt.G_optimizer_clipgrad
        gradients = [p.grad for p in unwrap_ddp(self.netG).parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        # The only synchronisation with the device: the weights must not change if the step is skipped.
        norm_value = float(norm)
        if math.isfinite(norm_value):
            if self.nonfinite.in_a_row:
                self.nonfinite.in_a_row = 0
                self.nonfinite.records.clear()
                tell(loss_is_finite=True)
            for name, loss in self.step_losses.items():
                self.line_losses.setdefault(name, []).append(loss)
            self.epoch_loss, self.epoch_steps = self.epoch_loss + self.step_losses["loss"], self.epoch_steps + 1
            self.grad_norms.append(norm_value)
            if clip:
                nn.utils.clip_grads_with_norm_(unwrap_ddp(self.netG).parameters(), clip, norm)
            self.scaler.step(self.optimizer)
            if self.netE is not None:
                with torch.no_grad():
                    current = [p.detach() for p in unwrap_ddp(self.netG).parameters()]
                    self.ema_update(list(self.netE.parameters()), current, None)
        else:
            self.optimizer.zero_grad(set_to_none=True)
            self.epoch_skipped += 1
            keys = [key for batch in micro_batches for key in batch["key"]]
            lr, scale = self.optimizer.param_groups[0]["lr"], self.scaler.get_scale()
            self.nonfinite.skipped(step, float(self.step_losses["loss"]), keys, norm_value, lr, scale)
        if self.scaler.is_enabled():
            self.scaler.update()

    def print_debug_lines(self, step: int, micro_batches: Sequence[dict[str, Any]], every: int) -> None:
        """Print the tensors of the first batch once per process, and loss and samples every `every` steps."""
        rank = f"[Rank {utils_dist.get_rank()}/{utils_dist.get_world_size()}]"
        loss, lines = self.step_losses["loss"], []
        if not self.is_described:
            self.is_described = True
            tensors = {"lq": self.lq, "spike": self.spike, **self.compared, "loss": loss}
            found = []  # e.g. "lq (1, 2, 3, 32, 32) float32 0.012..0.98 on cpu"
            for name, x in tensors.items():
                if x is not None:
                    low, high, kind = x.min().item(), x.max().item(), str(x.dtype).removeprefix("torch.")
                    found.append(f"{name} {tuple(x.shape)} {kind} {low:.3g}..{high:.3g} on {x.device}")
            lines.append(f"{rank} First batch: {'; '.join(found)}")
        if step % every == 0:
            keys = [key for batch in micro_batches for key in batch["key"]]
            about = f"Batch size: {len(keys)}, Loss: {float(loss):.4f}, Samples: {', '.join(keys)}"
            lines.append(f"{rank} Step {step}, {about}")
        with suppress(OSError):  # a full disk behind stdout must not end the run
            print("".join(f"{line}\n" for line in lines), end="", flush=True)

    def current_log(self) -> dict[str, Any]:
        """Of this rank since the last call: mean `loss`, also of each of its terms, NaN if no step counted; `lr`;
        `grad_norms` of the steps, before clipping; `forward_s`, seconds of all forward passes.
        """
        losses = {"loss": math.nan}
        for name, steps in self.line_losses.items():
            losses[name] = float(sum(steps)) / len(steps) if steps else math.nan
            steps.clear()
        norms, self.grad_norms = self.grad_norms, []
        lr = self.optimizer.param_groups[0]["lr"]
        return {**losses, "lr": lr, "grad_norms": norms, "forward_s": self.forward_clock.read()}

    def epoch_log(self) -> dict[str, float]:
        """`steps` of this process since the last call, those that were `skipped`, and the mean `loss`. Collective."""
        total, count, skipped = self.epoch_loss, self.epoch_steps, self.epoch_skipped
        self.epoch_loss, self.epoch_steps, self.epoch_skipped = 0.0, 0, 0
        losses = utils_dist.gather_objects(float(total) / count if count else math.nan)
        return {"steps": count + skipped, "skipped": skipped, "loss": sum(losses) / len(losses)}


class NonFiniteSteps:
    """Counts consecutive skipped steps, and records their numbers and samples.

    limit: this many end the run (`train.max_nonfinite_steps`). folder: of the run, for the report file.
    """

    def __init__(self, limit: int, folder: Path) -> None:
        self.limit, self.folder = limit, folder
        self.in_a_row = 0
        self.records: list[dict[str, Any]] = []

    def skipped(self, step: int, loss: float, keys: list[str], grad_norm: float, lr: float, scale: float) -> None:
        """Record a step that all ranks skip, and log the ranks whose loss was not finite. Collective.

        loss, keys: loss and sample names of this rank. grad_norm: of the reduced gradient, NaN or Inf on all ranks.
        scale: the loss scale in float16, else 1. Raises NonFiniteError on all ranks when the limit is reached.
        """
        ranks = []
        for rank, (value, samples) in enumerate(utils_dist.gather_objects((loss, keys))):
            # JSON has no NaN and no Inf.
            plain, is_finite = (value, True) if math.isfinite(value) else (str(value), False)
            ranks.append({"rank": rank, "loss": plain, "finite": is_finite, "samples": samples})
        if scale > 1 and all(r["finite"] for r in ranks):
            # Every float16 run starts like this: GradScaler lowers its scale until the gradients are finite.
            logger.info("iteration %d: gradients overflow float16, so the loss scale is lowered", step)
            return
        self.in_a_row += 1
        tell(loss_is_finite=math.isfinite(loss))
        nonfinite = [r for r in ranks if not r["finite"]]
        kind = "loss" if nonfinite else "gradient"
        names = "; ".join(f"rank {r['rank']}: {', '.join(r['samples'])}" for r in nonfinite or ranks)
        self.records.append(
            {"step": step, "what": kind, "grad_norm": str(grad_norm), "lr": lr, "scale": scale, "ranks": ranks}
        )
        if utils_dist.is_main_process():
            logger.warning("iteration %d: %s is NaN or Inf, step skipped on all ranks (%s)", step, kind, names)
        if self.in_a_row < self.limit:
            return
        saved = f"report: {self.folder / f'nonfinite_{step}.json'}"
        if utils_dist.is_main_process():
            report = json.dumps({"steps": self.records}, indent=2, allow_nan=False).encode()
            try:
                write_whole(self.folder / f"nonfinite_{step}.json", report)
            except DataError as e:
                saved = f"the report could not be written to {self.folder} ({e.what})"
        # The gather makes all ranks wait: a rank that exits early would kill rank 0 in the middle of the write.
        saved = utils_dist.gather_objects(saved)[0]
        raise NonFiniteError(
            f"{kind} NaN or Inf in {self.limit} steps in a row", f"iteration {step}, {names}; {saved}",
            f"finite numbers, or fewer than {self.limit} skipped steps in a row (train.max_nonfinite_steps)",
            "lower train.G_optimizer_lr, set train.G_optimizer_clipgrad, use bfloat16, or check these samples",
        )  # fmt: skip


def unwrap_ddp(net: nn.Module) -> nn.Module:
    """The network without its DDP wrapper."""
    return net.module if isinstance(net, DistributedDataParallel) else net


def weights_hash(net: nn.Module) -> str:
    """12 hex digits of all weights and buffers, bit for bit; `net` may be in DDP."""
    digest = hashlib.sha256()
    for key, value in unwrap_ddp(net).state_dict().items():
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


def amp_dtype(amp: AmpOptions, device: torch.device) -> torch.dtype | None:
    """The autocast dtype for `train.amp`, written to the log; None without mixed precision. Collective.

    "auto" is bfloat16 if every rank's device supports it natively, else float16. All ranks use one dtype: gradients are
    scaled in float16 only, and the reduction must not mix them.
    """
    if not amp.enable:
        return None
    # GPUs before Ampere (V100, T4, MX450) emulate bfloat16, several times slower than float16.
    native = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    native = utils_dist.gather_objects(native)
    name = amp.dtype if amp.dtype != "auto" else "bfloat16" if all(native) else "float16"
    logger.info("mixed precision in %s%s", name, ", with gradient scaling" if name == "float16" else "")
    if name == "bfloat16" and not all(native) and utils_dist.is_main_process():
        ranks = ", ".join(str(rank) for rank, found in enumerate(native) if not found)
        logger.warning('the GPU of rank %s emulates bfloat16, which is slow; set train.amp.dtype to "auto"', ranks)
    return AMP_DTYPES[name]


def to_cpu(value: Any) -> Any:
    """`value` with all tensors in its dicts, lists and tuples on the CPU, detached and contiguous."""
    return utils_dist.map_tensors(value, lambda tensor: tensor.detach().cpu().contiguous())
