"""The network against reference vectors: outputs, inner activations, flows, gradients.

The vectors were made with the published network (tests/helpers/golden.py, tests/data/golden). A
vector has weights and an input, and what the published network makes of them. Our network gets the
same weights and the same input, in float64, and must give the same.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.network_vrt import VRT
from models.vrt.block import Block
from models.vrt.flow import Flows
from tests.helpers import golden
from tests.helpers.checked import module_of, present
from tests.helpers.naive_vrt import NaiveVRT


def load_net(name: str, **more) -> tuple[golden.NetVector, VRT]:
    """Return a vector, and our network with its weights in float64. more: further arguments."""
    vector = golden.load_net(name)
    net = VRT(**vector.config["network"], **more).eval()
    missing = net.load_state_dict(vector.weights, strict=False).missing_keys
    # The vectors leave out the tables that are computed and not learned.
    computed = ("relative_position_index", "position_bias", "spynet.mean", "spynet.std")
    assert all(any(name in key for name in computed) for key in missing)
    return vector, net.double()


def watch(net: VRT) -> dict[str, Any]:
    """Return a dict which a forward pass fills with activations, under the names of the vectors.

    The vectors have activations as (B, C, N, H, W): batch, channels, frames, height, width. Most
    parts of our network have (B, N, H, W, C). "flows" are the flows of all levels.
    """
    seen: dict[str, Any] = {}
    estimate = net.estimate_flows

    def watched(frames: Tensor) -> Flows:
        return seen.setdefault("flows", estimate(frames))

    net.estimate_flows = watched
    names = ["stage1.reshape", "stage1.residual_group1", *(f"stage{i}" for i in range(1, 8))]
    tokens = {name: net.get_submodule(name) for name in names} | {"features": net.norm}
    for name, module in tokens.items():
        module.register_forward_hook(
            lambda _, __, out, name=name: seen.update({name: out.permute(0, 4, 1, 2, 3)})
        )
    net.conv_first.register_forward_hook(
        lambda _, ins, out: seen.update({"conv_first_in": ins[0], "conv_first": out})
    )
    return seen


def activation(seen: dict[str, Any], name: str, batch: int) -> Tensor:
    """Return an activation by its name in the vectors.

    To keep the files small, some activations are parts, as the end of the name says: pixels 8 to 23
    ("_crop8_24"), or each second pixel ("_stride2"). A flow is e.g. "flow_backward/dist2/level3":
    between frames at a distance of 2, at 1 / 2^3 of the resolution. batch: number of clips.
    """
    if name.startswith("flow_"):
        kind, distance, level = name.removeprefix("flow_").split("/")
        return seen["flows"][int(level[-1])][kind == "forward"][int(distance[-1]) - 1].detach()
    x = seen[name.removesuffix("_stride2").removesuffix("_crop8_24")]
    if x.dim() == 4:  # frames (B * N, C, H, W)
        x = x.unflatten(0, (batch, -1)).transpose(1, 2)
    if name.endswith("_crop8_24"):
        return x[..., 8:24, 8:24]
    return x[..., ::2, ::2] if name.endswith("_stride2") else x


# Networks that `make slow` compares: each takes 7 to 30 seconds of a core. What they have, smaller
# vectors have too: `net_sr4_pa6_5f` enlarges by 4, and three vectors align pairs of frames (pa2).
LARGE = ("net_deblur_pa2_5f_b2", "net_deblur_pa2_6f", "net_sr4_pa2_6f")


def networks():
    """Return the names of all vectors of whole networks. The large ones are marked `slow`."""
    found = []
    for path in sorted(golden.FOLDER.glob("net_*.npz")):
        marks = pytest.mark.slow if path.stem in LARGE else ()
        found.append(pytest.param(path.stem, marks=marks))
    return found


@pytest.mark.parametrize("name", networks())
def test_outputs_activations_flows_and_gradients_are_those_of_the_reference(name):
    vector, net = load_net(name)
    seen = watch(net)
    x = vector.input.clone().requires_grad_()
    y = net(x)
    (y * golden.cotangent(y)).sum().backward()
    assert list(y.shape) == vector.config["output_shape"]
    stride = vector.config["output_stride"]
    parameters = dict(net.named_parameters()) | {"input": x}
    for key, expected in vector.samples.items():
        if key == "output":
            got = y[..., ::stride, ::stride]
        elif key.startswith("grad/"):
            got = present(parameters[key.removeprefix("grad/")].grad)
        else:
            got = activation(seen, key.removeprefix("act/"), len(x))
        assert golden.difference(vector.sampled(key, got), expected) < golden.TOLERANCE, key
    for key, norm in vector.config["grad_norms"].items():
        assert present(parameters[key].grad).norm().item() == pytest.approx(norm, rel=1e-8), key


@pytest.mark.parametrize("name", sorted(golden.manifests()))
def test_state_dict_of_a_released_model_has_its_keys_in_order(name):
    manifest = golden.manifests()[name]
    with torch.device("meta"):
        net = VRT(**manifest["config"])
    parameters = dict(net.named_parameters())
    state = [
        [
            key,
            list(value.shape),
            str(value.dtype)[6:],
            "parameter" if key in parameters else "buffer",
        ]
        for key, value in net.state_dict().items()
    ]
    rates = {
        f"{key}.drop_path": m.drop_path
        for key, m in net.named_modules()
        if getattr(m, "drop_path", 0)
    }

    assert state == manifest["keys"]
    assert sum(p.numel() for p in parameters.values()) == manifest["n_params"]
    assert rates == pytest.approx(manifest["drop_path_prob"])


def test_checkpointing_changes_memory_and_nothing_else():
    vector, plain = load_net("net_fi_4f")
    _, saving = load_net(
        "net_fi_4f", use_checkpoint_attn=True, use_checkpoint_ffn=True, no_checkpoint_ffn_blocks=[1]
    )
    for net in (plain.float(), saving.float()):  # bits are compared, so that any precision will do
        y = net(vector.input.float())
        (y * golden.cotangent(y)).sum().backward()
    first = module_of(saving, "stage2.residual_group1.blocks.0", Block)
    assert first.checkpoint_attn
    assert not first.checkpoint_ffn
    for (key, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert torch.equal(present(a.grad), present(b.grad)), key


@pytest.mark.parametrize("name", ["net_deblur_pa2_2f_w8", "net_deblur_pa4_4f", "net_gray_1ch"])
def test_the_plain_transcription_gives_the_reference_output(name):
    vector = golden.load_net(name)
    net = NaiveVRT(**vector.config["network"]).eval()
    net.load_state_dict(vector.weights, strict=False)
    stride = vector.config["output_stride"]
    with torch.no_grad():
        y = net.double()(vector.input)[..., ::stride, ::stride]

    assert (
        golden.difference(vector.sampled("output", y), vector.samples["output"]) < golden.TOLERANCE
    )
