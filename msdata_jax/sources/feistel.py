"""A permutation of [0, n) that needs no memory: a Feistel network with cycle walking, vectorised.

A network over the smallest power of two that holds n permutes [0, 2**bits); an index that lands outside
[0, n) is sent through again until it lands inside, which keeps the map one-to-one. On average fewer than two
passes are needed, since 2**bits < 2 n.
"""

import hashlib

import numpy as np

MAX_RECORDS = 2**62
NUM_ROUNDS = 6  # even: the halves are back in their places, so that unequal halves need no special case

_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = tuple(np.uint64(bits) for bits in (30, 27, 31))


def derive_key(purpose: str, seed: int, source_name: str, epoch: int) -> int:
    """A 64-bit key that is the same in every process and differs between purposes, sources and epochs.

    The source enters by its name, not its place: a source that is added reshuffles no other.
    """
    text = f"{purpose}\n{seed}\n{epoch}\n{source_name}"  # the name last: it may hold anything
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def order_key(seed: int, source_name: str, epoch: int) -> int:
    """The key of the order in which one epoch of a source is visited."""
    return derive_key("order", seed, source_name, epoch)


def sub_key(key: int, number: int) -> int:
    """The `number`-th of the keys that follow from `key`, for parts that are permuted on their own."""
    return (key + (number + 1) * _GOLDEN) % _WORD


def permute(index: np.ndarray, n: int, key: int) -> np.ndarray:
    """Where a permutation of [0, n) sends each index.

    Args:
        index: int64 array, each entry in [0, n).
        n: at least 1 and at most 2**62.
        key: any integer from 0 to 2**64 - 1; each gives a permutation of its own.

    Returns:
        int64 array of the same shape.

    Raises:
        ValueError: n or an index is out of range.
    """
    if not 1 <= n <= MAX_RECORDS:
        raise ValueError(f"a permutation is of 1 to 2**62 numbers, got n={n}")
    index = np.asarray(index, np.int64)
    if index.size and not (index.min() >= 0 and index.max() < n):
        raise ValueError(f"indices lie in [0, {n}), got {index.min()} to {index.max()}")
    bits = max(2, (n - 1).bit_length())
    keys = [np.uint64(sub_key(key, number)) for number in range(NUM_ROUNDS)]
    value = index.ravel().astype(np.uint64)
    outside = np.arange(value.size)
    while outside.size:
        moved = _network(value[outside], bits, keys)
        value[outside] = moved
        outside = outside[moved >= np.uint64(n)]
    return value.astype(np.int64).reshape(index.shape)


def _network(value: np.ndarray, bits: int, keys: list[np.uint64]) -> np.ndarray:
    """One pass over [0, 2**bits). The halves may differ by one bit; they swap widths every round."""
    left_bits, right_bits = bits // 2, bits - bits // 2
    left = value >> np.uint64(right_bits)
    right = value & np.uint64(2**right_bits - 1)
    for key in keys:
        left, right = right, left ^ (_splitmix(right + key) & np.uint64(2**left_bits - 1))
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _splitmix(value: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every bit of the result depends on every bit of `value`."""
    value = (value ^ (value >> _SHIFTS[0])) * _MIX_1
    value = (value ^ (value >> _SHIFTS[1])) * _MIX_2
    return value ^ (value >> _SHIFTS[2])
