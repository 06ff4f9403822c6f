"""What `freeze` says of a network that cannot become integers, or not wholly.

Every error has a short title that stays the same while its sentence tells the place and the numbers. The page
docs/troubleshooting.md explains each title.

>>> error = FreezeError("noise is left", "0.quantizer: its forward noise is still Uniform(0.3)")
>>> print(error)
0.quantizer: its forward noise is still Uniform(0.3) [noise is left]
"""

from __future__ import annotations


class FreezeError(ValueError):
    """A network that cannot become integers: the module, why, and what to do.

    Args:
        title: The kind of obstacle, as docs/troubleshooting.md lists it.
        message: The module's path, why it cannot be converted, and what to do.
    """

    def __init__(self, title: str, message: str) -> None:
        super().__init__(title, message)
        self.title = title
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.title}]"


class FloatWarning(UserWarning):
    """A quantized layer that reads floats, and so does not run as integers."""
