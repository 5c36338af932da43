"""The generators of all random numbers. Each purpose has a stream of its own.

A draw for one purpose takes no number from another stream. So a new purpose changes no old numbers.

What must stay: every number that these functions give. They decide the samples of a run and the
spikes of a data set, so a change would make resumed runs and made data differ
(tests/parts/data/test_seeds.py).
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
    """Return the generator for made scenes, for prepared spikes, or for the order of an epoch.

    These three purposes are older than `random_stream` and keep their numbers. So data sets are
    made as before, and older runs resume. Use this function for nothing new, because zeros at the
    end of a key change nothing.
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
