"""Keys of `train`: loss, optimizer, learning rate, averaged weights, and what is due when.

The keys stand in the order in which a step uses them: data and length of the run, loss, optimizer,
schedule, average, frozen parts, precision. Intervals of validations, checkpoints and log lines come
last. If only one loss, optimizer or schedule has a key, the key is a parameter of its function, and
models/train_section.py adds the key to `train`.

KAIR is the program in which VRT was published. A key that KAIR has, too, has KAIR's name. In these
names G is the trained network, and E is its averaged copy.

What must stay and what is free to change: see the head of models.py. How the keys are used:
models/optim.py, models/schedules.py, models/precision.py, models/model_state.py, utils/run/run.py.

Tests: tests/parts/models/test_optim.py, tests/stories/test_main_train.py
"""

from typing import Annotated, Literal

from pydantic import Field

from utils.options.section import Positive, Section


class AmpOptions(Section):
    # With mixed precision, the network computes with 16-bit numbers wherever they are exact enough.
    # float16 has a small range, and would turn small gradients into 0. So with float16 the loss is
    # multiplied by a large factor (gradient scaling).
    enable: bool = Field(False, description="Mixed precision.")
    dtype: Literal["auto", "bfloat16", "float16"] = Field(
        "auto",
        description="auto: bfloat16 if all devices compute in it, else float16 with gradient "
        "scaling.",
    )


class TrainOptions(Section):
    """Keys of `train`. The loss that `G_lossfn_type` names adds its own keys."""

    # The defaults of optimizer, schedule and intervals are the values of VRT's published option
    # files (tests/data/kair_options.json).
    manual_seed: int = Field(0, ge=0, description="All randomness of a run follows from it.")
    total_iter: int | None = Field(
        300000,
        ge=1,
        description="Optimizer steps of the whole run; null: only the key epochs says when "
        "the run ends.",
    )
    epochs: int | None = Field(
        None,
        ge=1,
        description="Epochs after which the run stops, if total_iter does not stop it earlier.",
    )
    global_batch_size: int | None = Field(
        None,
        ge=1,
        description="Samples of an optimizer step on all ranks together. accumulation_steps is "
        "then chosen so that a step comes as near to it as the ranks allow; null: "
        "accumulation_steps as written.",
    )
    accumulation_steps: int = Field(1, ge=1, description="Batches per optimizer step.")

    G_lossfn_weight: float = Field(1.0, gt=0, description="Factor of the loss.")
    G_optimizer_type: Literal["adam", "adamw"] = Field("adam", description="Optimizer.")
    # "Full": after the warm-up has raised the rate, and before the scheduler lowers it.
    G_optimizer_lr: float = Field(4e-4, gt=0, description="Full learning rate.")
    G_optimizer_betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        [0.9, 0.99], min_length=2, max_length=2, description="Decay of the first and second moment."
    )
    G_optimizer_wd: float = Field(0.0, ge=0, description="Weight decay.")
    G_optimizer_clipgrad: float | None = Field(
        None, gt=0, description="Largest gradient norm; null: no clipping."
    )

    G_scheduler_type: Literal["MultiStepLR", "CosineAnnealingWarmRestarts"] = Field(
        "CosineAnnealingWarmRestarts", description="Course of the learning rate."
    )
    G_scheduler_milestones: list[Positive] = Field(
        [], description="MultiStepLR: steps at which the rate drops."
    )
    G_scheduler_gamma: float = Field(
        0.5, gt=0, le=1, description="MultiStepLR: factor of each drop."
    )
    G_scheduler_periods: Positive | list[Positive] = Field(
        300000,
        description="Cosine: steps of each period; after the last period the rate is eta_min.",
    )
    # A period begins with the rate eta_min + factor * (full rate - eta_min). A list has a factor
    # for each period.
    G_scheduler_restart_weights: float | list[float] = Field(
        1.0, description="Cosine: height of each restart."
    )
    G_scheduler_eta_min: float = Field(1e-7, ge=0, description="Cosine: lowest learning rate.")
    G_warmup_iter: int = Field(0, ge=0, description="Steps of linear warm-up.")

    # E.g. 0.999: after each step, average = 0.999 * average + 0.001 * weights.
    E_decay: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay of the averaged weights (EMA); 0: the weights are not averaged.",
    )
    # The next three keys are for parts of the network that were trained before. E.g. VRT's files
    # freeze its optical flow and its alignment (fix_keys ["spynet", "deform"]) for the first 20000
    # steps. After these steps, the two parts learn at 1/8 of the learning rate.
    fix_iter: int | None = Field(
        0,
        ge=-1,
        description="Steps at the start in which the parameters of fix_keys are frozen; null, "
        "0 or -1: they are never frozen.",
    )
    fix_lr_mul: float = Field(
        1.0,
        ge=0,
        description="Factor of the learning rate of these parameters after the frozen steps.",
    )
    fix_keys: list[str] = Field(
        [],
        description="Parts of names, e.g. spynet: they choose the parameters for fix_iter and "
        "fix_lr_mul.",
    )

    G_param_strict: bool = Field(
        False,
        description="true: every tensor of pretrained_netG must match the network; false: 90 "
        "% of the tensors.",
    )

    amp: AmpOptions = AmpOptions()
    compile: bool = Field(False, description="torch.compile the network.")
    tf32: bool | None = Field(
        None,
        description="Compute float32 products on a GPU in TF32: faster, with 10 bits of "
        "precision. null: only in convolutions, as torch does.",
    )
    empty_cache: bool = Field(
        False, description="Give unused GPU memory back at the start of each epoch; costs time."
    )
    max_nonfinite_steps: int = Field(
        10, ge=1, description="Number of steps in a row with NaN or Inf that stops the run."
    )

    checkpoint_test: int = Field(5000, ge=1, description="Steps between validations.")
    checkpoint_save: int = Field(5000, ge=1, description="Steps between checkpoints.")
    checkpoint_print: int = Field(200, ge=1, description="Steps between log lines.")
    keep_checkpoints: int = Field(
        1,
        ge=1,
        description="Number of former versions that are kept, of the latest checkpoint and of "
        "the best one.",
    )
