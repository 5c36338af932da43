"""Make the generators of all random numbers. Each purpose, e.g. "camera", has its own generator.

A draw for one purpose does not change the numbers of another purpose. So a new purpose may be added
without a change of the old numbers.

What must stay: every number that these generators draw. The numbers decide the samples of a run,
and the spikes of clips that the programs of this project simulate. After a change, a resumed run
would read other samples, and the same command would simulate other clips
(tests/parts/data/test_seeds.py).
"""

import hashlib

import numpy as np


def random_stream(purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of one purpose, e.g. random_stream("camera", seed, epoch, index).

    The generator gives the same numbers on every machine. NumPy could also take the key as its
    seed, as a list of numbers. But NumPy pads a list with zeros, so the keys [0, 5, 7] and
    [0, 5, 7, 0] would give the same numbers.

    purpose: what the numbers are for. Another purpose gives other numbers for the same key.
    key: whole numbers, such as the seed of the run and the index of a sample.
    """
    return np.random.default_rng(mix_seed(purpose, *key))


def published_stream(*key: int) -> np.random.Generator:
    """Return the generator of one of four old purposes, which are older than `random_stream`.

    The four purposes are computed scenes (artificial clips), spikes that are simulated from frames,
    the order of an epoch, and the noise of a denoising test. Their numbers are "published": users
    already have data sets, scores and runs that were made with them. So the numbers must stay.
    With other numbers, data sets and scores could not be made again, and older runs could not be
    resumed.

    Do not use this function for a new purpose. NumPy ignores zeros at the end of a key, so two keys
    may have the same numbers.

    key: whole numbers, such as the seed and the index of a scene.
    """
    return np.random.default_rng(key)


def mix_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is made of a few values.

    The seed is the same on every machine. Python's own hash() is not used, because it differs from
    process to process.
    """
    text = "/".join(map(str, parts))  # e.g. "camera/7/0/12"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()  # 64 bits
    # ">> 1" drops the last bit, so that the seed fits a signed integer of 64 bits.
    return int.from_bytes(digest, "big") >> 1
