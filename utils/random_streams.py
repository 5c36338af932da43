"""All random numbers: each purpose has a stream of its own, so that no draw says anything about
another.
"""

import hashlib

import numpy as np


def random_stream(purpose: str, *key: int) -> np.random.Generator:
    """The generator of one purpose, for instance ("camera", seed, epoch, index); the same on every
    machine.

    A list of numbers as the seed would not do: NumPy pads it with zeros, so [0, 5, 7] and [0, 5, 7,
    0] are one stream.
    """
    return np.random.default_rng(mix_seed(purpose, *key))


def published_stream(*key: int) -> np.random.Generator:
    """Of made scenes, prepared spikes and the order of an epoch, which keep the numbers they had
    before names.

    So data sets are made as before, and older runs resume. For nothing new: zeros at the end of a
    key change nothing.
    """
    return np.random.default_rng(key)


def mix_seed(*parts: int | str) -> int:
    """A 63-bit seed from a few values, the same on every machine (Python's hash() is salted per
    process).
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
