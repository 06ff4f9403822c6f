"""Writes pickles as Python 2 wrote CIFAR-10's: protocol 2, byte strings, numpy's old module names."""

import struct


def python2_string(value: bytes) -> bytes:
    if len(value) < 256:
        return b"U" + bytes([len(value)]) + value
    return b"T" + struct.pack("<i", len(value)) + value


def integer(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def array(content: bytes, shape: tuple[int, int], *, code: bytes = b"u1") -> bytes:
    """Return the program that makes numpy build an array: reconstruct an empty one, then set its state."""
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\n" + python2_string(code) + b"K\x00K\x01\x87R"
    dtype_state = b"(K\x03U\x01|NNN" + integer(-1) + integer(-1) + b"K\x00tb"
    dimensions = integer(shape[0]) + integer(shape[1]) + b"\x86"
    state = b"(K\x01" + dimensions + dtype + dtype_state + b"\x89" + python2_string(content) + b"tb"
    return empty + state


def dictionary(items: dict[bytes, bytes]) -> bytes:
    """Return a pickle of a dictionary, from the pickle programs of its values."""
    body = b"".join(python2_string(key) + program for key, program in items.items())
    return b"\x80\x02}(" + body + b"u."


def integers(values: list[int]) -> bytes:
    return b"](" + b"".join(integer(value) for value in values) + b"e"
