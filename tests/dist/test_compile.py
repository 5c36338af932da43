"""torch.compile of the network: on two ranks, with checkpointing, with clips of changing size."""

import json
import os

import pytest

from tests.dist.launching import run_ranks
from tests.train_files import network

# As few kinds of blocks as show all that is compiled.
TWO_KINDS = {"depths": [2] + [0] * 7, "mul_attn_ratio": 0.5}  # a mutual block and a self block
THREE_KINDS = {"depths": [3] + [0] * 7, "mul_attn_ratio": 0.4}  # and a shifted one
# The same graphs, run as they stand: making code of them takes minutes.
WITHOUT_CODE = ("eager",)
needs_patience = pytest.mark.skipif(not os.environ.get("SPIKEVRT_SLOW"), reason="five minutes; set SPIKEVRT_SLOW=1")


@pytest.mark.parametrize(
    ("blocks", "backend", "graphs"),
    [(TWO_KINDS, WITHOUT_CODE, 4), pytest.param(THREE_KINDS, (), 6, marks=needs_patience)],
    ids=["graphs", "code"],
)
def test_a_compiled_network_trains_as_the_plain_one_does(tmp_path, blocks, backend, graphs):
    options = tmp_path / "options.json"
    netG = network(
        **blocks, kernels="plain", fusion="none", drop_path_rate=0.0, use_checkpoint_attn=True, use_checkpoint_ffn=True
    )
    options.write_text(json.dumps({"task": "run", "netG": netG, "train": {"G_lossfn_type": "charbonnier"}}))

    result = run_ranks(2, "tests/dist/compile_worker.py", str(options), *backend, limit_s=900)

    assert result.exit_codes == [0, 0], result.text
    for rank in result.jsons:
        assert rank["compiled"] == pytest.approx(rank["plain"], rel=1e-4)
        assert rank["gradient_error"] < 1e-4
        # One for each kind of block; the second size makes one more, of any size; the third none.
        assert rank["graphs"] == [0, graphs]
