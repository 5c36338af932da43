"""Make the generators of all random numbers. Each purpose, e.g. "camera", has its own generator.

A draw for one purpose does not change the numbers of another purpose. So a new purpose may be added
without a change of the old numbers.

What must stay: every number that these generators draw. The numbers decide the samples of a run and
the spikes of made clips. After a change, a resumed run would read other samples, and the same
command would make other clips (tests/parts/data/test_seeds.py).
"""

import hashlib

import numpy as np


def random_stream(purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of one purpose, e.g. ("camera", seed, epoch, index).

    It gives the same numbers on every machine. NumPy could also take a list of numbers as its seed.
    But NumPy pads a list with zeros, so [0, 5, 7] and [0, 5, 7, 0] would be one stream.
    """
    return np.random.default_rng(mix_seed(purpose, *key))


def published_stream(*key: int) -> np.random.Generator:
    """Return the generator of one of four old purposes.

    They are made scenes, prepared spikes, the order of an epoch, and the noise of a denoising test.
    They are older than `random_stream`. Their numbers are "published" because users already have
    data sets, scores and runs that were made with them. So the numbers stay: data sets and scores
    are made as before, and older runs can be resumed. Do not use this function for a new purpose:
    NumPy ignores zeros at the end of a key, so two keys may have the same numbers.
    """
    return np.random.default_rng(key)


def mix_seed(*parts: int | str) -> int:
    """Return a 63-bit seed from a few values, the same on every machine.

    Python's own hash() differs from process to process.
    """
    text = "/".join(map(str, parts))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()  # 64 bits
    # ">> 1" drops the last bit, so that the seed fits a signed integer of 64 bits.
    return int.from_bytes(digest, "big") >> 1
