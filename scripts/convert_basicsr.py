"""Options of BasicSR, whose names are those of its public documentation, in our words."""

from __future__ import annotations

import json
from typing import Any

from scripts.convert_tools import Conversion, look_up

DATASET_TYPES = {
    "REDSDataset": "VideoRecurrentTrainDataset", "REDSRecurrentDataset": "VideoRecurrentTrainDataset",
    "VideoRecurrentTrainDataset": "VideoRecurrentTrainDataset", "Vimeo90KDataset": "VideoRecurrentTrainVimeoDataset",
    "Vimeo90KRecurrentDataset": "VideoRecurrentTrainVimeoDataset", "VideoTestDataset": "VideoRecurrentTestDataset",
    "VideoRecurrentTestDataset": "VideoRecurrentTestDataset", "VideoTestVimeo90KDataset": "VideoTestVimeo90KDataset",
}  # fmt: skip
LOSSES = {"CharbonnierLoss": "charbonnier", "L1Loss": "l1", "MSELoss": "l2"}
OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw"}
COSINE, STEPS = "CosineAnnealingWarmRestarts", "MultiStepLR"
SCHEDULERS = {
    "MultiStepLR": STEPS, "MultiStepRestartLR": STEPS, "CosineAnnealingRestartLR": COSINE,
    "TrueCosineAnnealingLR": COSINE, "CosineAnnealingLR": COSINE,
}  # fmt: skip
# Their key -> ours, with the same meaning; those of a data set are below both datasets.train and datasets.val.
SAME = {
    "name": "task", "scale": "scale", "manual_seed": "train.manual_seed",
    "find_unused_parameters": "find_unused_parameters",
    "path.pretrain_network_g": "path.pretrained_netG", "path.strict_load_g": "train.G_param_strict",
    "train.total_iter": "train.total_iter", "train.ema_decay": "train.E_decay",
    "train.optim_g.lr": "train.G_optimizer_lr", "train.optim_g.betas": "train.G_optimizer_betas",
    "train.optim_g.weight_decay": "train.G_optimizer_wd", "train.pixel_opt.loss_weight": "train.G_lossfn_weight",
    "train.scheduler.milestones": "train.G_scheduler_milestones", "train.scheduler.gamma": "train.G_scheduler_gamma",
    "train.scheduler.periods": "train.G_scheduler_periods", "train.scheduler.T_max": "train.G_scheduler_periods",
    "train.scheduler.restart_weights": "train.G_scheduler_restart_weights",
    "train.scheduler.eta_min": "train.G_scheduler_eta_min", "train.flow_lr_mul": "train.fix_lr_mul",
    "val.save_img": "val.save_img", "val.val_freq": "train.checkpoint_test",
    "logger.print_freq": "train.checkpoint_print",
    "logger.save_checkpoint_freq": "train.checkpoint_save", "logger.use_tb_logger": "logging.use_tensorboard",
}  # fmt: skip
SAME_DATASET = {
    "name": "name", "dataroot_gt": "dataroot_gt", "dataroot_lq": "dataroot_lq", "meta_info_file": "meta_info_file",
    "filename_ext": "filename_ext", "val_partition": "val_partition", "io_backend": "io_backend",
    "cache_data": "cache_data", "num_frame": "num_frame", "gt_size": "gt_size", "interval_list": "interval_list",
    "random_reverse": "random_reverse", "use_hflip": "use_hflip", "use_flip": "use_hflip", "use_rot": "use_rot",
    "use_shuffle": "dataloader_shuffle", "num_worker_per_gpu": "dataloader_num_workers",
    "batch_size_per_gpu": "dataloader_batch_size", "dataset_enlarge_ratio": "dataloader_epoch_repeat",
    "persistent_workers": "dataloader_persistent_workers",
}  # fmt: skip
NO_EFFECT = {
    "model_type": "there is one training procedure", "dist_params": "the launch decides; see docs/ddp.md",
    "val.pbar": "see logging.progress", "logger.wandb.resume_id": "a resumed run continues its own W&B run",
    "path.ignore_resume_networks": "a resumed run continues with all of its parts",
    "train.pixel_opt.reduction": "the loss is a mean",
}  # fmt: skip
NO_EFFECT_DATASET = {
    "prefetch_mode": "the loader prefetches always (dataloader_prefetch_factor)",
    "pin_memory": "memory is pinned where there is a GPU", "num_prefetch_queue": "see dataloader_prefetch_factor",
    "test_mode": "datasets.train is for training, datasets.test for testing", "phase": "it follows from the section",
    "dataroot_flow": "no flow is read from files",
}  # fmt: skip


def is_basicsr(values: dict[str, Any]) -> bool:
    """Whether a file has sections that only BasicSR has."""
    found = (look_up(values, key) for key in ("network_g", "train.optim_g", "datasets.train.type"))
    return any(isinstance(value, (dict, str)) for value in found)


def convert(c: Conversion) -> None:
    """Fill `c`. What is left in the source afterwards is unknown, and a problem each."""
    _losses(c)
    _schedule(c)
    _checkpoints(c)
    for split, ours in (("train", "train"), ("val", "test")):
        _dataset(c, split, f"datasets.{ours}")
    sections = c.get("datasets")
    for key in [k for k in (sections if isinstance(sections, dict) else {}) if str(k).startswith(("val", "test"))]:
        c.take(f"datasets.{key}")
        c.unsaid[f"datasets.{key}"] = "one data set is validated in training; test on others with main_test_vrt.py"
    _network(c)
    _devices(c)
    for old, new in SAME.items():
        c.move(old, new)
    for key, why in NO_EFFECT.items():
        c.drop(key, why)
    for key in list(_open_keys(c.source)):
        c.take(key)
        c.problems[key] = ("unknown to this script, or without a counterpart here", f"--drop {key}, to train without")


def _open_keys(values: dict[str, Any]) -> list[str]:
    """What is left: single keys, but a section of another part (network_d, gan_opt) as a whole."""
    found = []
    for key, value in values.items():
        if key in ("datasets", "train", "val", "path", "logger") and isinstance(value, dict):
            found += [f"{key}.{inner}" for inner in _open_keys(value)]
        else:
            found.append(key)
    return found


def _choose(c: Conversion, old: str, new: str, known: dict[str, str]) -> str | None:
    """Our name for the type that `old` names; None, with a problem, for a type that is not here."""
    if not c.has(old):
        return None
    name = c.take(old)
    if not isinstance(name, str) or name not in known:
        ours = list(dict.fromkeys(known.values()))
        what = f"{name!r} is not available here; {', '.join(known)} are"
        c.problems[old] = (what, f"--drop {old}, and give {new}={' or '.join(ours)}")
        c.put(new, ours[0])  # it stands in, so that the other keys are checked
        return None
    c.put(new, known[name])
    c.translated[old] = f"{new} = {known[name]}"
    return known[name]


def _losses(c: Conversion) -> None:
    loss = _choose(c, "train.pixel_opt.type", "train.G_lossfn_type", LOSSES)
    if c.get("train.pixel_opt.reduction", "mean") != "mean":
        c.problems["train.pixel_opt.reduction"] = ("only means are computed", "--drop train.pixel_opt.reduction")
        c.take("train.pixel_opt.reduction")
    if loss == "charbonnier":
        eps = c.take("train.pixel_opt.eps", 1e-12)
        c.put("train.G_charbonnier_eps", eps, "Added inside the root; 1e-12 where a file of BasicSR does not say.")
        c.translated["train.pixel_opt.eps"] = f"train.G_charbonnier_eps = {eps:g}"


def _schedule(c: Conversion) -> None:
    _choose(c, "train.optim_g.type", "train.G_optimizer_type", OPTIMIZERS)
    _choose(c, "train.scheduler.type", "train.G_scheduler_type", SCHEDULERS)
    warm = c.take("train.warmup_iter", -1)
    if isinstance(warm, int) and warm > 0:
        c.put("train.G_warmup_iter", warm)
        c.translated["train.warmup_iter"] = f"train.G_warmup_iter = {warm}"
    if c.get("train.fix_flow"):
        steps = c.take("train.fix_flow")
        c.put("train.fix_iter", steps)
        c.put("train.fix_keys", ["spynet"])
        c.translated["train.fix_flow"] = f'train.fix_iter = {steps}, train.fix_keys = ["spynet"]'


def _checkpoints(c: Conversion) -> None:
    project = c.take("logger.wandb.project")
    if project:
        c.put("logging.use_wandb", True)
        c.put("logging.wandb_project", project)
        c.translated["logger.wandb.project"] = f"logging.wandb_project = {project}, logging.use_wandb = true"
    state = c.take("path.resume_state")
    if state:
        c.unsaid["path.resume_state"] = "states of BasicSR cannot be resumed; the run starts at step 0 from the weights"
    metrics = c.take("val.metrics")
    if isinstance(metrics, dict):
        c.dropped["val.metrics"] = "PSNR and SSIM of the RGB picture are always computed, over the whole frame"
        if any(isinstance(m, dict) and m.get("test_y_channel") for m in metrics.values()):
            c.unsaid["val.metrics.*.test_y_channel"] = (
                "scores of the Y channel are not computed in training; they are usually higher, by 1 to 2 dB"
            )
        if any(isinstance(m, dict) and m.get("crop_border") for m in metrics.values()):
            c.unsaid["val.metrics.*.crop_border"] = "borders are not left out of the scores; usually below 0.1 dB"


def _dataset(c: Conversion, split: str, ours: str) -> None:
    where = f"datasets.{split}"
    if not isinstance(c.get(where), dict):
        return
    if c.has(f"{where}.type"):
        known = {old: new for old, new in DATASET_TYPES.items() if ("Test" in new) == (split == "val")}
        _choose(c, f"{where}.type", f"{ours}.dataset_type", known)
    template = c.take(f"{where}.filename_tmpl")
    if template == "{}":
        c.dropped[f"{where}.filename_tmpl"] = "'{}' is any name"
    elif template is not None:
        c.put(f"{ours}.filename_tmpl", template)
    for old, new in SAME_DATASET.items():
        if split == "val" and new.startswith("dataloader_"):
            c.drop(f"{where}.{old}", "clips are tested one after the other, without a loader")
        c.move(f"{where}.{old}", f"{ours}.{new}")
    for key, why in NO_EFFECT_DATASET.items():
        c.drop(f"{where}.{key}", why)


def _network(c: Conversion) -> None:
    default = {"net_type": "vrt", "upscale": c.get("scale", 1)}
    if not c.has("network_g"):
        c.put("netG", default, "The original names no network: VRT's defaults.")
        return
    network = c.take("network_g")
    name = network.pop("type", None) if isinstance(network, dict) else network
    if str(name).lower() != "vrt":
        what = f"type {name!r} is not available here; VRT is"
        c.problems["network_g"] = (what, "--drop network_g, to train VRT with its default sizes instead")
        c.put("netG", default)
        return
    c.put("netG", {"net_type": "vrt", **(network if isinstance(network, dict) else {})})
    c.origins["netG"] = "network_g"
    c.translated["network_g"] = f"netG, net_type vrt, {len(c.target['netG']) - 1} keys as they are"


def _devices(c: Conversion) -> None:
    count = c.take("num_gpu")
    if isinstance(count, int) and count > 0:
        c.put("gpu_ids", list(range(count)), f"The original trains on {count}: ./launch_train.sh {count} FILE")
        c.put("dist", count > 1)
        c.translated["num_gpu"] = f"gpu_ids = {json.dumps(list(range(count)))}"
