"""Slightly damaged files."""

from __future__ import annotations

import random


def mutated(dice: random.Random, data: bytes) -> bytes:
    """Return `data` with one to twenty changes: bits, bytes or lengths changed, parts removed or inserted, or the end
    cut off.
    """
    left = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5, 20])):
        at = dice.randrange(len(left))
        match dice.randrange(6):
            case 0:
                left[at] ^= 1 << dice.randrange(8)
            case 1:
                left[at] = dice.randrange(256)
            case 2:
                del left[at : at + dice.randrange(1, 30)]
            case 3:
                left[at:at] = dice.randbytes(dice.randrange(1, 30))
            case 4:
                del left[at:]
            case _:
                left[at : at + 4] = b"\xff" * 4
        left = left or bytearray(b"x")
    return bytes(left)
