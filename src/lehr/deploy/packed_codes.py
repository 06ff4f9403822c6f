"""Codes of weights as bytes of a packed file: three levels five to a byte, others in the fewest whole bits a code."""

from __future__ import annotations

import numpy as np


def pack_codes(codes: np.ndarray, levels: int) -> np.ndarray:
    """Codes below `levels`, packed: five to a byte if there are three levels, else in the fewest whole bits.

    >>> pack_codes(np.array([2, 0, 1, 0, 0, 1]), levels=3).tolist()
    [11, 1]
    """
    flat = codes.reshape(-1).astype(np.uint8)
    if levels == 3:
        digits = np.zeros((-(-flat.size // 5), 5), np.uint8)
        digits.reshape(-1)[: flat.size] = flat
        return digits @ np.array([1, 3, 9, 27, 81], np.uint8)
    bits = np.unpackbits(flat[:, None], axis=1, count=_bits(levels), bitorder="little")
    return np.packbits(bits, bitorder="little")


def unpack_codes(packed: np.ndarray, count: int, levels: int) -> np.ndarray:
    """The `count` codes below `levels` in `packed`; ValueError unless it holds exactly those."""
    expected = -(-count // 5) if levels == 3 else -(-count * _bits(levels) // 8)
    if packed.dtype != np.uint8 or packed.shape != (expected,):
        raise ValueError(
            f"{count} codes of {levels} levels take {expected} bytes, found {packed.dtype} of shape {packed.shape}"
        )
    if levels == 3:
        if packed.size and packed.max() >= 3**5:
            raise ValueError(f"a byte of five trits is below 243, found {packed.max()}")
        digits = (np.arange(3**5)[:, None] // 3 ** np.arange(5) % 3).astype(np.uint8)
        codes = digits[packed].reshape(-1)
        rest = codes[count:]
    else:
        bits = np.unpackbits(packed, bitorder="little")
        rest = bits[count * _bits(levels) :]
        rows = bits[: count * _bits(levels)].reshape(count, _bits(levels))
        codes = np.packbits(rows, axis=1, bitorder="little")[:, 0]
    codes = codes[:count]
    if rest.any() or (codes.size and codes.max() >= levels):
        raise ValueError(f"codes lie in 0..{levels - 1} and zeros fill the last byte, found others")
    return codes


def _bits(levels: int) -> int:
    return max(1, (levels - 1).bit_length())
