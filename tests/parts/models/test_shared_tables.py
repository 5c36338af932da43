"""Tables that all networks and threads of a process share: no weights file changes them."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from models.network_vrt import VRT
from models.portable import load_weights
from models.vrt.flow import pixel_grid
from models.vrt.windows import relative_position_index, window_chunks
from tests.dist.launching import run_ranks
from tests.helpers.clip_files import write_clip
from tests.helpers.weights_files import make_home
from utils.errors import CheckpointError

SMALL: dict[str, Any] = {
    "upscale": 1, "img_size": [3, 32, 32], "window_size": [3, 4, 4], "depths": [2] * 8 + [1],
    "indep_reconsts": [8], "embed_dims": [16] * 9, "num_heads": [2] * 9, "pa_frames": 2,
    "deformable_groups": 4, "spynet_path": None,
}  # fmt: skip
TABLE = "stage1.residual_group1.blocks.0.attn.relative_position_index"


def made(seed: int) -> VRT:
    torch.manual_seed(seed)
    net = VRT(**SMALL).eval()
    net.conv_last.weight.data.normal_(std=0.1)
    return net


def with_another_table(net: VRT) -> dict[str, Tensor]:
    state = {key: value.clone() for key, value in net.state_dict().items()}
    assert TABLE in state
    state[TABLE] = state[TABLE].flip(0)
    return state


CLIP = torch.rand(1, 3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("strict", [True, False])
def test_weights_with_another_table_are_refused_and_change_no_network(strict):
    net, other = made(0), made(1)
    state = with_another_table(other)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    expected = other(CLIP)

    with pytest.raises(CheckpointError) as error:
        load_weights(net, state, "foreign.pth", strict)

    assert TABLE in error.value.what and error.value.where == "foreign.pth"
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert torch.equal(other(CLIP), expected)


@torch.no_grad()
def test_torchs_own_loading_does_not_write_the_table_either():
    net, other = made(0), made(1)
    expected = other(CLIP)

    with pytest.raises(CheckpointError, match=TABLE):
        net.load_state_dict(with_another_table(other))

    assert torch.equal(other(CLIP), expected)
    assert torch.equal(made(1)(CLIP), expected)


@torch.no_grad()
def test_weights_load_with_the_table_and_without_it():
    net, own = made(0), made(1)
    state = own.state_dict()
    assert TABLE in state and not any(net.load_state_dict(state))
    assert torch.equal(net(CLIP), own(CLIP))

    del state[TABLE]
    assert load_weights(made(0), state, "w.pth").missing == [TABLE]
    assert made(0).load_state_dict(state, strict=False).missing_keys == [TABLE]


def test_a_weights_file_with_another_table_ends_with_code_3_and_the_name_of_the_table(tmp_path):
    home = make_home(tmp_path)
    write_clip(home, "mine", split="test", frames=4, h=16, w=16)
    content = torch.load(home / "rgb.pth", weights_only=True)
    name = next(key for key in content["params"] if key.endswith("relative_position_index"))
    content["params"][name] += 1
    torch.save(content, tmp_path / "foreign.pth")

    clip = ("--input", str(home / "GOPRO_Large/test/mine/blur"), "--output", str(tmp_path / "out"))
    result = run_ranks(1, "main_test_vrt.py", "--weights", str(tmp_path / "foreign.pth"), *clip)

    assert result.exit_codes == [3] and name in result.text, result.text
    assert str(tmp_path / "foreign.pth") in result.text


def steps(net: VRT, size: int) -> list[Tensor]:
    """Outputs and gradients of three training steps without an optimizer."""
    clip = CLIP.repeat(1, 1, 1, 2, 2)[..., :size, :size]
    found = []
    for _ in range(3):
        net.zero_grad()
        y = net(clip)
        y.square().mean().backward()
        found += [y.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
    return found


def test_two_networks_in_two_threads_give_what_each_gives_alone():
    sizes = (32, 40)
    alone = [steps(made(seed), size) for seed, size in enumerate(sizes)]
    for cached in (relative_position_index, window_chunks, pixel_grid):
        cached.cache_clear()  # so that both threads fill them at once
    nets = [made(seed) for seed in range(len(sizes))]
    together: dict[int, list[Tensor]] = {}

    def in_thread(place: int) -> None:
        together[place] = steps(nets[place], sizes[place])

    threads = [threading.Thread(target=in_thread, args=(place,)) for place in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, expected in enumerate(alone):
        assert all(map(torch.equal, together[place], expected))
