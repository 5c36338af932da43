"""Tables that all networks and threads of a process share: no weights file changes them.

Tables of positions are computed once, and all networks of the same size share them. A weights file
has these tables, too. If loading a file wrote its tables over the shared ones, other networks would
change. The networks here are small VRTs with random weights. To change a table, the tests reverse
its rows.
"""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from models.loading import load_weights
from models.network_vrt import VRT
from models.vrt.flow_warp import pixel_grid
from models.vrt.positions import relative_position_index
from models.vrt.windows import window_chunks
from tests.dist.launching import run_ranks
from tests.helpers.clip_files import write_clip
from tests.helpers.weights_files import make_home
from utils.errors import CheckpointError

# The arguments of a small VRT.
SMALL: dict[str, Any] = {
    "upscale": 1,
    "img_size": [3, 32, 32],
    "window_size": [3, 4, 4],
    "depths": [2] + [1] * 8,
    "indep_reconsts": [8],
    "embed_dims": [16] * 9,
    "num_heads": [2] * 9,
    "pa_frames": 2,
    "deformable_groups": 4,
    "spynet_path": None,
}
# The name of one of these tables in a weights file. For each pair of tokens of a window, the table
# says which bias the attention adds.
TABLE = "stage1.residual_group1.blocks.0.attn.relative_position_index"
CLIP = torch.rand(1, 3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def random_vrt(seed: int) -> VRT:
    """Return a network with random weights.

    conv_last of a new VRT has zeros, so a new VRT returns its input. Random values in conv_last
    make the network change its frames.
    """
    torch.manual_seed(seed)
    net = VRT(**SMALL).eval()
    net.conv_last.weight.data.normal_(std=0.1)
    return net


def copy_of_state(net: VRT) -> dict[str, Tensor]:
    """Return a copy of the weights and tables of a network."""
    return {name: value.clone() for name, value in net.state_dict().items()}


def with_another_table(net: VRT) -> dict[str, Tensor]:
    """Return the weights of a network, with the rows of one table reversed."""
    state = copy_of_state(net)
    state[TABLE] = state[TABLE].flip(0)
    return state


# ---- Weights with another table ----


@torch.no_grad()
@pytest.mark.parametrize("strict", [True, False])
def test_weights_with_another_table_are_refused(strict):
    state = with_another_table(random_vrt(1))

    with pytest.raises(CheckpointError) as error:
        load_weights(random_vrt(0), state, "foreign.pth", strict)

    assert TABLE in error.value.what
    assert error.value.where == "foreign.pth"


@torch.no_grad()
@pytest.mark.parametrize("strict", [True, False])
def test_refused_weights_leave_the_network_as_it_was(strict):
    net = random_vrt(0)
    before = copy_of_state(net)

    with pytest.raises(CheckpointError):
        load_weights(net, with_another_table(random_vrt(1)), "foreign.pth", strict)

    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


@torch.no_grad()
@pytest.mark.parametrize("strict", [True, False])
def test_refused_weights_change_no_other_network(strict):
    # All networks of this size share one table. If loading wrote into this table, the results of
    # `other` would change.
    other = random_vrt(1)
    state = with_another_table(other)
    expected = other(CLIP)

    with pytest.raises(CheckpointError):
        load_weights(random_vrt(0), state, "foreign.pth", strict)

    assert torch.equal(other(CLIP), expected)


@torch.no_grad()
def test_torchs_own_loading_does_not_write_the_table_either():
    other = random_vrt(1)
    expected = other(CLIP)

    with pytest.raises(CheckpointError, match=TABLE):
        random_vrt(0).load_state_dict(with_another_table(other))

    assert torch.equal(other(CLIP), expected)
    # A new network has the right table, too.
    assert torch.equal(random_vrt(1)(CLIP), expected)


# ---- Weights with the right table, or without it ----


@torch.no_grad()
def test_weights_load_with_the_table():
    net = random_vrt(0)
    own = random_vrt(1)
    state = own.state_dict()
    assert TABLE in state

    missing, unexpected = net.load_state_dict(state)

    assert not missing
    assert not unexpected
    assert torch.equal(net(CLIP), own(CLIP))


@pytest.fixture
def without_table() -> dict[str, Tensor]:
    """Give weights that lack one table."""
    state = copy_of_state(random_vrt(1))
    del state[TABLE]
    return state


@torch.no_grad()
def test_weights_load_without_the_table(without_table):
    assert load_weights(random_vrt(0), without_table, "w.pth").missing == [TABLE]


@torch.no_grad()
def test_torchs_own_loading_takes_weights_without_the_table(without_table):
    loaded = random_vrt(0).load_state_dict(without_table, strict=False)

    assert loaded.missing_keys == [TABLE]


# ---- Programs and threads ----


def test_a_weights_file_with_another_table_ends_with_code_3(tmp_path):
    home = make_home(tmp_path)
    write_clip(home, "mine", split="test", frames=4, h=16, w=16)
    content = torch.load(home / "rgb.pth", weights_only=True)
    tables = [name for name in content["params"] if name.endswith("relative_position_index")]
    content["params"][tables[0]] += 1  # change one table in any way
    weights = str(tmp_path / "foreign.pth")
    torch.save(content, weights)
    clip = ["--input", str(home / "GOPRO_Large/test/mine/blur"), "--output", str(tmp_path / "out")]

    result = run_ranks(1, "main_test_vrt.py", "--weights", weights, *clip)

    assert result.exit_codes == [3], result.text
    assert tables[0] in result.text
    assert weights in result.text


def two_steps(net: VRT, size: int) -> list[Tensor]:
    """Return outputs and gradients of two training steps without an optimizer.

    The first step fills the caches, and the second step finds them full.

    size: height and width of the frames.
    """
    # CLIP has 32 x 32 pixels. Repeat it to 64 x 64, and cut out `size` rows and columns.
    clip = CLIP.repeat(1, 1, 1, 2, 2)[..., :size, :size]
    found = []
    for _ in range(2):
        net.zero_grad()
        y = net(clip)
        y.square().mean().backward()
        found.append(y.detach())
        for parameter in net.parameters():
            if parameter.grad is not None:
                found.append(parameter.grad.clone())
    return found


# This test is slow, because it takes 5 seconds of a core.
@pytest.mark.slow
def test_two_networks_in_two_threads_give_what_each_gives_alone():
    sizes = (32, 40)
    alone = [two_steps(random_vrt(seed), size) for seed, size in enumerate(sizes)]
    # Empty the caches, so that both threads fill them at the same time.
    for cached in (relative_position_index, window_chunks, pixel_grid):
        cached.cache_clear()
    nets = [random_vrt(seed) for seed in range(len(sizes))]
    together: dict[int, list[Tensor]] = {}

    def run(number: int) -> None:
        together[number] = two_steps(nets[number], sizes[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number, expected in enumerate(alone):
        for found, tensor in zip(together[number], expected, strict=True):
            assert torch.equal(found, tensor)
