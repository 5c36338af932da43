"""Clips and equations that several test files of this folder share."""

from dataclasses import replace

import pytest

from tests.helpers.joint_case import MOVING, Case, true_motion


@pytest.fixture(scope="session")
def moving_clip(tmp_path_factory):
    """Give the folder of a clip that moves."""
    return MOVING.write(tmp_path_factory.mktemp("moving") / "clip")


@pytest.fixture(scope="session", params=["linear", "display"])
def true_case(request, tmp_path_factory):
    """Give a clip along its true motion, for each light that the spike camera may integrate."""
    scene = replace(MOVING, light=request.param)
    folder = scene.write(tmp_path_factory.mktemp("light") / "clip")
    return Case(folder, true_motion(scene))
