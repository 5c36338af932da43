"""Option keys from constructor signatures."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

from utils.errors import OptionError
from utils.options.registry import Registry

INNER = Registry("inner part")
OUTER = Registry("outer part", "kind")


@INNER.register("plain")
class Plain:
    pass


@INNER.register("sized")
class Sized:
    def __init__(self, size: int = 3) -> None:
        self.size = size


@OUTER.register("box", given=("channels",))
class Box:
    def __init__(
        self,
        width: int,
        mode: Literal["a", "b"] = "a",
        inner: Annotated[dict[str, Any] | str, INNER] = "sized",
        channels: int = 1,
    ) -> None:
        self.width, self.mode, self.inner, self.channels = width, mode, inner, channels


def test_a_section_is_completed_with_defaults_also_in_nested_parts():
    resolved = OUTER.resolve({"kind": "box", "width": 2}, "netG")
    assert resolved.plain() == {"kind": "box", "width": 2, "mode": "a", "inner": {"type": "sized", "size": 3}}
    assert OUTER.keys("box") == ["width", "mode", "inner"]
    assert INNER.resolve("plain", "x").plain() == {"type": "plain"}


def test_building_hands_over_what_code_supplies_and_only_what_the_part_takes():
    box = OUTER.build({"kind": "box", "width": 2}, "netG", channels=5, other=7)
    assert (box.width, box.channels) == (2, 5)


@pytest.mark.parametrize(
    ("section", "where", "text"),
    [
        ({"kind": "bux", "width": 1}, "netG.kind", "a registered outer part: box; the nearest is box"),
        ({"width": 1}, "netG.kind", "netG.kind is missing"),
        ({"kind": "box", "widht": 1}, "netG.widht", "the nearest is width"),
        ({"kind": "box", "width": 1, "channels": 2}, "netG.channels", "unknown option netG.channels"),
        ({"kind": "box"}, "netG.width", "netG.width is missing"),
        ({"kind": "box", "width": "2"}, "netG.width", "netG.width is '2'"),
        ({"kind": "box", "width": 2, "mode": "c"}, "netG.mode", '"a" | "b"'),
        ({"kind": "box", "width": 2, "inner": {"type": "sized", "sise": 1}}, "netG.inner.sise", "nearest is size"),
    ],
)
def test_a_wrong_section_is_refused_with_the_dotted_key(section, where, text):
    with pytest.raises(OptionError) as error:
        OUTER.resolve(section, "netG")
    assert error.value.where == where
    assert text in str(error.value)


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="twice"):
        INNER.register("plain")(Plain)
