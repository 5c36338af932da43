"""The base class of all forms. A form is one place where attention over frames may be added.

A form has the data, two networks and their tests. The network "attention" has attention over
frames. The network "control" has none, and has about the same number of parameters. E.g. in the
form "motion" (motion.py), both networks find the motion within an exposure.

What must stay: both networks of a form get the same data
(test_both_networks_of_a_form_are_trained_for_the_same_time). Free to add: a form, i.e. a subclass
of `Form` in a module of its own, and an entry of FORMS in lab/vrt_curve.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# The two networks of a form. A function that makes or tests one of them has an argument `arm` with
# one of these names.
ATTENTION = "attention"
CONTROL = "control"
ARMS = (ATTENTION, CONTROL)
# The light of the tests, from dark to bright. A light is an entry of NAMED in
# data/cameras/rig_values.py, which has the brightness and the cameras of a simulated recording.
# "rig", two plausible cameras, is brighter than "dim" and darker than "ideal".
LIGHTS = ("dim", "rig", "ideal")
# Light -> name of the scene or clip -> score, e.g. {"dim": {"coffee_00": 3.5, ...}, ...}. In the
# form "motion" a score is an error in pixels, and less is better. In the forms "prior" and "behind"
# it is a gain in dB, and more is better.
Scores = dict[str, dict[str, float]]


class Form(ABC):
    """The data, the networks, the loss and the tests of a value of --form.

    Both networks of a form use one `Form` object, so both get the same data.

    `Training` calls `network` and `loss`. lab/vrt_curve.py calls `make`, `references` and
    `scores_of_weights`. `scores_of_weights` calls `scores`. An argument `arm` is ATTENTION or
    CONTROL.
    """

    name: str  # a value of --form
    score: str  # what the scores are, with their unit
    rate: float  # the learning rate

    @classmethod
    @abstractmethod
    def make(cls, videos: Path, out: Path) -> "Form":
        """Make the data, or read data that an earlier call has made.

        videos: folder of the videos of lab/quality.py.
        out: folder in which clips are kept.
        """

    @abstractmethod
    def network(self, arm: str) -> nn.Module:
        """Build one of the two networks, with new weights from torch's generator."""

    @abstractmethod
    def loss(self, net: nn.Module, rng: np.random.Generator) -> Tensor:
        """Draw the data of a step, and return the loss of the network on these data.

        rng: draws the data. `Training` gives both networks an rng with the same seed. Draw equally
            many numbers for both networks. Then step n of both networks sees the same data.
        """

    @abstractmethod
    def scores(self, net: nn.Module) -> Scores:
        """Test a network. Returns the score of each scene or clip in each light."""

    def references(self) -> dict[str, Any]:
        """Return the scores of methods that are not trained here: name -> scores.

        lab/vrt_curve.py writes these scores to its file, for comparison. A form without such
        methods returns {}.
        """
        return {}

    def scores_of_weights(self, arm: str, weights: Mapping[str, Tensor]) -> Scores:
        """Return the scores of a network with these weights."""
        net = self.network(arm)
        net.load_state_dict(weights)
        with torch.no_grad():
            return self.scores(net.eval())
