"""All random numbers: each purpose has a stream of its own, so that no draw says anything about another."""

from __future__ import annotations

import hashlib

import numpy as np


def random_stream(purpose: str, *key: int) -> np.random.Generator:
    """The generator of one purpose, for instance ("camera", seed, epoch, index); the same on every machine.

    A list of numbers as the seed would not do: NumPy pads it with zeros, so [0, 5, 7] and [0, 5, 7, 0] are one stream.
    """
    return np.random.default_rng(mix_seed(purpose, *key))


def published_stream(*key: int) -> np.random.Generator:
    """A generator that began before purposes had names: of made scenes, prepared spikes, the order of an epoch.

    They keep their numbers, so that data sets are made as before and older runs resume within an epoch. For nothing
    new: two keys that differ by zeros at the end give the same numbers.
    """
    return np.random.default_rng(key)


def mix_seed(*parts: int | str) -> int:
    """A 63-bit seed from a few values, the same on every machine (Python's hash() is salted per process)."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
