import math
from typing import Any

import pytest
import torch
from torch import nn

from models.losses import LOSSES
from models.optim import build_optimizer
from models.schedules import lr_at
from utils.options.models import TrainOptions

OPTIONS: dict[str, Any] = {
    "G_optimizer_type": "adam", "G_optimizer_lr": 4e-4, "fix_keys": ["spynet", "deform"],
    "fix_lr_mul": 0.125, "G_scheduler_periods": 300, "G_scheduler_milestones": [10, 20],
}  # fmt: skip
TRAIN = TrainOptions(**OPTIONS)


def changed(**changes: Any) -> TrainOptions:
    return TrainOptions(**(OPTIONS | changes))


def test_the_cosine_is_that_of_torch_until_its_end_and_stays_low_there():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=4e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 300, eta_min=1e-7)
    for step in range(1, 300):
        optimizer.step()
        scheduler.step()
        assert lr_at(step, 4e-4, TRAIN) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
    # torch restarts here at the full rate; the last steps of a run must not.
    assert lr_at(300, 4e-4, TRAIN) == lr_at(301, 4e-4, TRAIN) == 1e-7


def test_later_periods_restart_with_their_weight_and_milestones_follow_a_warm_up():
    train = changed(G_scheduler_periods=[100, 50], G_scheduler_restart_weights=[1.0, 0.5])
    assert lr_at(100, 1.0, train) == pytest.approx(0.5, rel=1e-6)
    assert lr_at(125, 1.0, train) == pytest.approx(0.25, rel=1e-3)
    assert lr_at(150, 1.0, train) == 1e-7
    train = changed(G_scheduler_type="MultiStepLR", G_warmup_iter=4)
    assert [lr_at(step, 1.0, train) for step in (1, 4, 9, 10, 19, 20)] == [
        0.25,
        1,
        1,
        0.5,
        0.5,
        0.25,
    ]


@pytest.mark.parametrize(
    ("fix_iter", "expected"),
    [(20_000, [(2, 4e-4), (4, 5e-5)]), (-1, [(6, 4e-4)]), (None, [(6, 4e-4)])],
)
def test_flow_and_alignment_form_the_slow_group_unless_it_is_switched_off(fix_iter, expected):
    net = nn.ModuleDict(
        {"spynet": nn.Linear(2, 2), "pa_deform": nn.Linear(2, 2), "mlp": nn.Linear(2, 2)}
    )
    groups = build_optimizer(net, changed(fix_iter=fix_iter)).param_groups
    assert [(len(g["params"]), g["initial_lr"]) for g in groups] == expected


def test_a_key_of_the_slow_group_without_a_parameter_is_named(caplog):
    net = nn.ModuleDict({"spynet": nn.Linear(2, 2), "pa_deform": nn.Linear(2, 2)})
    build_optimizer(net, changed(fix_iter=5, fix_keys=["spynet", "spynt", "deform"]))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["train.fix_keys: no parameter of the network has spynt in its name"]


def test_the_charbonnier_loss_has_eps_inside_the_root():
    loss = LOSSES.build({"G_lossfn_type": "charbonnier", "G_charbonnier_eps": 1e-2}, "train")
    assert loss(torch.zeros(4), torch.zeros(4)).item() == pytest.approx(0.1)
    expected = (math.sqrt(9.01) + math.sqrt(16.01)) / 2
    restored, gt = torch.tensor([1.0, 5.0]), torch.tensor([4.0, 1.0])
    assert loss(restored, gt).item() == pytest.approx(expected)


@pytest.mark.parametrize(("name", "expected"), [("l1", 3.5), ("l2", 12.5)])
def test_a_loss_is_the_mean_over_the_differences_of_all_values(name, expected):
    loss = LOSSES.build({"G_lossfn_type": name}, "train")
    restored, gt = torch.tensor([1.0, 5.0]), torch.tensor([4.0, 1.0])

    assert loss(restored, gt).item() == expected
