"""models/schedules.py, models/optim.py and models/losses.py: learning rate, groups, losses.

An optimizer can have two groups of parameters. The parameters of the "slow group" are frozen for
the first steps (fix_iter). Then they learn with a smaller rate than all other parameters.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.losses import (
    LOSSES,
    refuse_missing_targets,
    refuse_wrong_loss,
    refuse_wrong_output,
    warn_of_untrained,
)
from models.optim import OPTIMIZERS, OptimizerPart, build_optimizer, load_moments
from models.schedules import SCHEDULES, Schedule, lr_at
from utils.errors import OptionError
from utils.options.train_options import TrainOptions

OPTIONS: dict[str, Any] = {
    "G_optimizer_type": "adam",
    "G_optimizer_lr": 4e-4,
    # Parameters with one of these words in their names form the slow group.
    "fix_keys": ["spynet", "deform"],
    # The learning rate of the slow group is this number times the full rate.
    "fix_lr_mul": 0.125,
    "G_scheduler_periods": 300,
    "G_scheduler_milestones": [10, 20],
}


def train_options(**changes: Any) -> TrainOptions:
    """Return a section `train`. changes: keys to change."""
    return TrainOptions(**(OPTIONS | changes))


# ---- The learning rate of a step ----

# The learning rate at the end of the cosine.
FLOOR = 1e-7


def test_the_cosine_equals_torchs_cosine_until_its_end():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=4e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 300, eta_min=FLOOR)

    for step in range(1, 300):
        optimizer.step()
        scheduler.step()
        of_torch = scheduler.get_last_lr()[0]
        assert lr_at(step, base=4e-4, train=train_options()) == pytest.approx(of_torch, rel=1e-9)


@pytest.mark.parametrize("step", [300, 301])
def test_the_cosine_stays_low_after_its_end(step):
    # G_scheduler_periods is 300. torch's schedule restarts at step 300 with the full rate. The last
    # steps of our run must keep the low rate.
    assert lr_at(step, base=4e-4, train=train_options()) == FLOOR


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        pytest.param(100, 0.5, id="beginning of the second period"),
        pytest.param(125, 0.25, id="its middle"),
        pytest.param(150, FLOOR, id="its end"),
    ],
)
def test_a_later_period_restarts_with_its_weight(step, rate):
    # The second period begins at step 100 with 0.5 times the full rate, and ends at step 150. In
    # its middle, a cosine has fallen to half of this: 0.25.
    train = train_options(G_scheduler_periods=[100, 50], G_scheduler_restart_weights=[1.0, 0.5])

    assert lr_at(step, base=1.0, train=train) == pytest.approx(rate, rel=1e-3)


def test_the_second_period_begins_exactly_with_its_weight():
    train = train_options(G_scheduler_periods=[100, 50], G_scheduler_restart_weights=[1.0, 0.5])

    assert lr_at(100, base=1.0, train=train) == pytest.approx(0.5, rel=1e-6)
    assert lr_at(150, base=1.0, train=train) == FLOOR


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        pytest.param(1, 0.25, id="first step of the warm-up"),
        pytest.param(4, 1, id="last step of the warm-up"),
        pytest.param(9, 1, id="before the first milestone"),
        pytest.param(10, 0.5, id="first milestone"),
        pytest.param(19, 0.5, id="before the second milestone"),
        pytest.param(20, 0.25, id="second milestone"),
    ],
)
def test_milestones_follow_a_warm_up(step, rate):
    # The rate by step, as a fraction of the full rate:
    #
    #     warm-up, step n of 4    n / 4, e.g. 0.25 in step 1
    #     steps 4 to 9            1
    #     from milestone 10 on    0.5, because G_scheduler_gamma is 0.5 by default
    #     from milestone 20 on    0.25
    train = train_options(G_scheduler_type="MultiStepLR", G_warmup_iter=4)

    assert lr_at(step, base=1.0, train=train) == rate


@pytest.fixture
def own_schedule(monkeypatch):
    """Give a function that registers a schedule of a user, and returns options that name it."""

    def register(rate: Any) -> TrainOptions:
        schedule = Schedule(lambda step, base: rate, keys=(), stretched_by="", floor=None)
        monkeypatch.setitem(SCHEDULES, "own", schedule)
        return train_options().model_copy(update={"G_scheduler_type": "own"})

    return register


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1e-4, None, "1e-4"])
def test_a_schedule_that_returns_no_rate_is_refused(own_schedule, rate):
    with pytest.raises(OptionError, match="the learning rate of step 7 is"):
        lr_at(7, base=1.0, train=own_schedule(rate))


def test_a_rate_of_numpy_can_be_saved(own_schedule):
    # A checkpoint holds only plain types, so the rate must be a float of Python.
    assert type(lr_at(7, base=1.0, train=own_schedule(np.float64(0.5)))) is float


# ---- Groups of parameters ----


def linear_layers(*names: str) -> nn.ModuleDict:
    """Return a network of linear layers with these names. Each has two parameters."""
    return nn.ModuleDict({name: nn.Linear(2, 2) for name in names})


@pytest.mark.parametrize(
    ("fix_iter", "expected"),
    [
        # A pair is the number of parameters of a group and its learning rate. The first group has
        # the 2 parameters of "mlp". The slow group has 2 x 2 parameters, and its rate is
        # 0.125 x 4e-4 = 5e-5.
        pytest.param(20_000, [(2, 4e-4), (4, 5e-5)], id="frozen at first, then slow"),
        pytest.param(-1, [(6, 4e-4)], id="-1"),
        pytest.param(None, [(6, 4e-4)], id="not given"),
    ],
)
def test_flow_with_alignment_form_the_slow_group_unless_it_is_switched_off(fix_iter, expected):
    net = linear_layers("spynet", "pa_deform", "mlp")

    groups = build_optimizer(net, train_options(fix_iter=fix_iter)).param_groups

    found = [(len(group["params"]), group["initial_lr"]) for group in groups]
    assert found == expected


def test_a_key_of_the_slow_group_without_a_parameter_is_named(caplog):
    net = linear_layers("spynet", "pa_deform")

    build_optimizer(net, train_options(fix_iter=5, fix_keys=["spynet", "spynt", "deform"]))

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["train.fix_keys: no parameter of the network has spynt in its name"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        pytest.param(
            lambda groups, fused: torch.optim.SGD(groups[0]["params"], lr=0.1),
            "has groups without initial_lr",
            id="without the groups",
        ),
        pytest.param(lambda groups, fused: None, "is a NoneType", id="nothing"),
    ],
)
def test_an_optimizer_without_the_groups_is_refused(monkeypatch, build, words):
    monkeypatch.setitem(OPTIMIZERS, "own", OptimizerPart(build, keys=()))
    train = train_options(fix_keys=[]).model_copy(update={"G_optimizer_type": "own"})

    with pytest.raises(OptionError, match=words):
        build_optimizer(linear_layers("mlp"), train)


# ---- Moments of a checkpoint ----


def saved_moments(optimizer: torch.optim.Optimizer, net: nn.Module) -> dict[str, Any]:
    """Return the state dict of an optimizer after a step."""
    take_step(optimizer, net)
    return optimizer.state_dict()


def take_step(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    """Take a step in which each gradient is 1."""
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_the_moments_of_another_optimizer_begin_anew(caplog):
    # fix_keys is [] here. With OPTIONS["fix_keys"] there would be a second warning, because no
    # parameter of this network has such a name.
    net = linear_layers("mlp")
    saved = saved_moments(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net)
    optimizer = build_optimizer(net, train_options(fix_keys=[]))
    saved_options = {"G_optimizer_type": "momentum", "fix_iter": None, "fix_keys": []}

    load_moments(optimizer, saved, net, saved_options, train_options(fix_keys=[]))
    # This step would fail if Adam had got the moments of SGD.
    take_step(optimizer, net)

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["train.G_optimizer_type: momentum -> adam; its moments begin at zero"]


def test_adam_and_adamw_share_their_moments():
    net = linear_layers("mlp")
    saved = saved_moments(torch.optim.AdamW(net.parameters()), net)
    optimizer = build_optimizer(net, train_options())
    saved_options = {"G_optimizer_type": "adamw", "fix_iter": None, "fix_keys": []}

    load_moments(optimizer, saved, net, saved_options, train_options())

    # The state of a new optimizer is empty. Step 1 was taken by AdamW before it was saved.
    assert optimizer.state_dict()["state"][0]["step"] == 1


# ---- Losses ----

# The two values of these tensors differ by 3 and by 4.
RESTORED = torch.tensor([1.0, 5.0])
GT = torch.tensor([4.0, 1.0])


def loss_of(name: str, restored: torch.Tensor, gt: torch.Tensor, **options: Any) -> float:
    """Return the value of a loss."""
    loss = LOSSES.build({"G_lossfn_type": name, **options}, "train")
    return loss(restored, gt).item()


def test_the_charbonnier_loss_has_eps_inside_the_root():
    found = loss_of("charbonnier", RESTORED, GT, G_charbonnier_eps=1e-2)

    # The loss is the mean of sqrt(difference^2 + eps).
    assert found == pytest.approx((math.sqrt(9 + 0.01) + math.sqrt(16 + 0.01)) / 2)


def test_the_charbonnier_loss_of_equal_frames_is_the_root_of_eps():
    found = loss_of("charbonnier", torch.zeros(4), torch.zeros(4), G_charbonnier_eps=1e-2)

    assert found == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [pytest.param("l1", (3 + 4) / 2, id="l1"), pytest.param("l2", (9 + 16) / 2, id="l2")],
)
def test_a_loss_is_the_mean_over_the_differences_of_all_values(name, expected):
    assert loss_of(name, RESTORED, GT) == expected


class MaskedLoss(nn.Module):
    """A loss that a user could write. It takes tensors that a batch may lack."""

    takes = ("mask", "gt", "lq")

    def forward(self, restored, mask=None, gt=None, lq=None): ...


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param(["mask"], id="before a tensor that is there"),
        pytest.param(["mask", "lq"], id="before and at the end"),
    ],
)
def test_a_tensor_that_a_batch_lacks_is_not_replaced_by_the_next_one(missing):
    # A loss is called with the tensors of `takes` that the batch has, in this order. If the batch
    # lacks the mask, gt would be passed as the argument `mask`.
    with pytest.raises(OptionError, match="takes mask, gt, lq in this order"):
        refuse_missing_targets(MaskedLoss(), missing, batch=("lq", "gt"))


def test_a_batch_may_lack_the_last_tensors_of_a_loss():
    refuse_missing_targets(MaskedLoss(), ["lq"], batch=("mask", "gt"))
    refuse_missing_targets(MaskedLoss(), ["gt", "lq"], batch=("mask",))


# The shape of sharp clips: B, T, C, H, W.
SHARP = (2, 3, 3, 8, 8)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((2, 1, 3, 8, 8), id="one frame"),
        pytest.param((2, 3, 1, 8, 8), id="one channel"),
        pytest.param((2, 3, 3, 4, 4), id="another size"),
        pytest.param((6, 3, 8, 8), id="clips and frames in one axis"),
    ],
)
def test_a_network_that_returns_clips_of_another_shape_is_refused(shape):
    with pytest.raises(OptionError, match="the network returns clips of"):
        refuse_wrong_output(torch.zeros(shape), torch.zeros(SHARP))


@pytest.mark.parametrize("output", [None, (torch.zeros(SHARP), None)], ids=["None", "tuple"])
def test_a_network_that_returns_no_tensor_is_refused(output):
    with pytest.raises(OptionError, match=r"the network returns a (NoneType|tuple)"):
        refuse_wrong_output(output, gt=None)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param(torch.zeros(2, 3), r"a tensor \(2, 3\)", id="no mean"),
        pytest.param(0.5, "0.5", id="a number of Python"),
        pytest.param(None, "None", id="nothing"),
        pytest.param({}, "no term", id="an empty table"),
        pytest.param({"a": torch.zeros(()), "b": 0}, "b: 0", id="a term that is no tensor"),
    ],
)
def test_a_loss_that_returns_no_loss_is_refused(value, words):
    with pytest.raises(OptionError, match=f"the loss MaskedLoss returns .*{words}"):
        refuse_wrong_loss(MaskedLoss(), value)


def test_a_network_may_return_more_channels_than_the_sharp_frames_have():
    refuse_wrong_output(torch.zeros(2, 3, 6, 8, 8), torch.zeros(SHARP))


class WeightedLoss(nn.Module):
    """A loss that wants to learn the weight of its term."""

    def __init__(self) -> None:
        super().__init__()
        self.term_weight = nn.Parameter(torch.ones(()))

    def forward(self, restored: torch.Tensor, gt: torch.Tensor) -> torch.Tensor:
        """Return the weighted mean difference."""
        return self.term_weight * (restored - gt).abs().mean()


def test_parameters_of_a_loss_that_nobody_trains_are_named(caplog):
    warn_of_untrained(WeightedLoss())

    [record] = caplog.records
    assert "WeightedLoss has parameters that are not trained: term_weight" in record.getMessage()


def test_fixed_parameters_of_a_loss_give_no_warning(caplog):
    warn_of_untrained(WeightedLoss().requires_grad_(False))

    assert not caplog.records
