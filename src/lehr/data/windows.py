"""Windows of a recording, as a device cuts them while the samples arrive.

`windows` is what the ring buffer of the exported C (stream.c) holds at each decision, and `z_normalized` what it makes
of a window; both give the same numbers in Python and in C, bit by bit.

>>> recording = torch.arange(10.0)[:, None]  # ten samples of one channel
>>> windows(recording, 4, hop=3)
tensor([[[0., 1., 2., 3.]],
<BLANKLINE>
        [[3., 4., 5., 6.]],
<BLANKLINE>
        [[6., 7., 8., 9.]]])
"""

import torch
from torch import Tensor


def windows(
    recording: Tensor,  # (time, channel)
    length: int,
    *,
    hop: int,
) -> Tensor:
    """Return the windows that end at the samples length, length + hop, ..., (window, channel, time).

    Args:
        recording: the samples in the order of time.
        length: samples in a window.
        hop: samples from one window to the next.
    """
    if length < 1 or hop < 1:
        raise ValueError(f"length and hop must be at least 1 sample, got {length} and {hop}")
    if recording.ndim != 2:
        raise ValueError(f"a recording has shape (time, channel), got {tuple(recording.shape)}")
    if len(recording) < length:
        return recording.new_empty(0, recording.shape[1], length)
    return recording.unfold(0, length, hop).contiguous()


def z_normalized(
    samples: Tensor,  # (window, channel, time), int16
) -> Tensor:
    """Return each channel of each window with mean 0 and standard deviation 1, float32; a constant one becomes 0.

    With n samples, S their sum and Q the sum of their squares, all integers and so the same in any order:
    z = (n x - S) / sqrt(n Q - S^2), with one rounding to float32 for each of the two numbers, the root and the ratio.
    """
    if samples.dtype != torch.int16 or samples.ndim != 3:
        raise TypeError(f"samples must be int16 (window, channel, time), got {samples.dtype} {tuple(samples.shape)}")
    n, wide = samples.shape[2], samples.long()
    total = wide.sum(2, keepdim=True)
    spread = n * wide.square().sum(2, keepdim=True) - total.square()
    root = spread.float().double().sqrt().float()  # torch does not round the root of floats correctly everywhere
    ratio = (n * wide - total).float() / root
    return torch.where(spread > 0, ratio, 0.0)
