import numpy as np
import pytest

from data.augment import Augment

ALL = {"hflip": True, "rot": True, "reverse": True}


def draws(count=200, size=(20, 30), patch=8, step=2, **allowed):
    rng = np.random.default_rng(0)
    return [Augment.draw(rng, size, patch, step, **allowed) for _ in range(count)]


def test_rectangles_reach_every_allowed_place_and_no_other():
    found = draws(2000)
    assert {a.top for a in found} == set(range(0, 13, 2))
    assert {a.left for a in found} == set(range(0, 23, 2))


def test_a_patch_as_large_as_the_picture_has_one_place():
    assert {(a.top, a.left) for a in draws(20, size=(8, 8))} == {(0, 0)}


def test_each_turn_comes_half_of_the_time_and_only_where_allowed():
    for name in ("hflip", "vflip", "transpose", "reverse"):
        assert 60 < sum(getattr(a, name) for a in draws(**ALL)) < 140
        assert not any(getattr(a, name) for a in draws())


def test_allowing_a_turn_leaves_the_rest_of_the_draw_as_it_was():
    assert [(a.top, a.left, a.hflip) for a in draws(**ALL)] == [(a.top, a.left, a.hflip) for a in draws(hflip=True)]


@pytest.mark.parametrize("hflip", [False, True])
@pytest.mark.parametrize("vflip", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_turning_before_or_after_channels_are_stacked_is_the_same(hflip, vflip, transpose):
    frames = np.random.default_rng(0).random((2, 3, 4, 4))
    aug = Augment(0, 0, 4, 4, hflip, vflip, transpose)

    turned = aug.flip(frames)
    assert turned.flags.c_contiguous
    assert np.array_equal(turned[1, 2], aug.flip(frames[1, 2]))
    expected = frames[..., ::-1] if hflip else frames
    expected = expected[..., ::-1, :] if vflip else expected
    assert np.array_equal(turned, expected.swapaxes(2, 3) if transpose else expected)


def test_a_larger_picture_is_cut_at_the_same_place():
    small = np.arange(24).reshape(4, 6)
    large = np.kron(small, np.ones((3, 3)))
    aug = Augment(1, 2, 2, 3)
    assert np.array_equal(aug.crop(large, 3)[::3, ::3], aug.crop(small))
