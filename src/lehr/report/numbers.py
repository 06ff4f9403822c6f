"""Numbers as they are read: shares, times, sizes, levels."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """A share as it is read.

    >>> percent(0.98352), percent(None)
    ('98.35 %', 'not yet')
    """
    return "not yet" if share is None else f"{100 * share:.2f} %"


def duration(seconds: float | None) -> str:
    """A time in its two largest units.

    >>> duration(10.72), duration(59.97), duration(723.2), duration(12000)
    ('10.7 s', '1 min 0 s', '12 min 3 s', '3 h 20 min')
    """
    if seconds is None:
        return "not yet"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def epoch_count(twin: int, own: int) -> str:
    """How many epochs, those of a full-precision twin first.

    >>> epoch_count(0, 40), epoch_count(20, 28)
    ('40', '20 + 28')
    """
    return f"{twin} + {own}" if twin else f"{own}"


def size(count: float) -> str:
    """A number of bytes to three digits.

    >>> size(812), size(16560), size(999_700), size(3_520_000)
    ('812 B', '16.6 kB', '1 MB', '3.52 MB')
    """
    power = 0
    while power < 3 and float(f"{count / 1000**power:.3g}") >= 1000:
        power += 1
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB')[power]}"


def level_name(level: float) -> str:
    """A level, with a minus sign rather than a hyphen.

    >>> level_name(-1.0), level_name(0.25)
    ('−1', '0.25')
    """
    return f"{level:g}".replace("-", "−")
