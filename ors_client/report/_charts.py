"""Charts as inline SVG: numbers in, markup out. Colours are the page's, by class."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from ._intervals import mean
from ._text import escape

_WIDTH, _HEIGHT = 520, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 10, 12, 26
_CHARACTER = 7  # the width of one at an axis
_DOTS = 40  # up to so many points, each gets a dot

Point = tuple[float, float | None]


def line_chart(
    points: Sequence[Point],
    *,
    label: str,
    bounds: tuple[float, float],
    format_value: Callable[[float], str],
    filled: bool = False,
) -> str:
    """Return a line over the number of episodes; where there is no value, it has a gap.

    Args:
        points: Number of episodes and value.
        label: What is drawn, for those who can't see it.
        bounds: Of the values.
        format_value: Writes a value at the axis.
        filled: Whether the area below is filled.
    """
    low, high = bounds
    last = max((x for x, _ in points), default=1.0)
    first = min((x for x, _ in points), default=0.0)
    steps = [low * (1 - step / 4) + high * (step / 4) for step in range(5)]
    left = max(_LEFT, 10 + _CHARACTER * max(len(format_value(value)) for value in steps))

    def to_x(x: float) -> float:
        share = (x - first) / (last - first) if last > first else 0.5
        return left + share * (_WIDTH - left - _RIGHT)

    def to_y(y: float) -> float:
        share = (y / 2 - low / 2) / (high / 2 - low / 2)  # halves: the whole of -1e308 to 1e308 is no number
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    drawn: list[str] = []
    for value in steps:
        at = to_y(value)
        drawn.append(f'<line class="grid" x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        drawn.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(format_value(value))}</text>')
    for segment in _segments(points):
        path = " ".join(f"{'M' if i == 0 else 'L'}{to_x(x):.1f} {to_y(y):.1f}" for i, (x, y) in enumerate(segment))
        if filled:
            base = to_y(low)
            area = f"{path} L{to_x(segment[-1][0]):.1f} {base:.1f} L{to_x(segment[0][0]):.1f} {base:.1f} Z"
            drawn.append(f'<path class="area" d="{area}"/>')
        drawn.append(f'<path class="line" d="{path}"/>')
        if len(points) <= _DOTS or len(segment) == 1:
            drawn += [f'<circle class="dot" cx="{to_x(x):.1f}" cy="{to_y(y):.1f}" r="2.6"/>' for x, y in segment]
    below = _HEIGHT - 8
    if last > first:
        drawn.append(f'<text x="{left}" y="{below}">{first:,.0f}</text>')
    drawn.append(f'<text x="{_WIDTH - _RIGHT}" y="{below}" text-anchor="end">{last:,.0f} episodes</text>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(drawn)}</svg>"
    )


def bins(rewards: Iterable[float], most: int) -> list[tuple[int, float | None, float]]:
    """Fold rewards in order into at most `most` bins: the number of episodes so far, mean, and share that has one.

    The bins differ in size by one at most: a small last one would be the noisiest, where the eye looks first.
    """
    values = list(rewards)
    count = math.ceil(len(values) / math.ceil(len(values) / most)) if values else 0
    ends = [number * len(values) // count for number in range(count + 1)]
    folded: list[tuple[int, float | None, float]] = []
    for start, end in itertools.pairwise(ends):
        given = [reward for reward in values[start:end] if not math.isnan(reward)]
        folded.append((end, mean(given), len(given) / (end - start)))
    return folded


def bar(share: float) -> str:
    """Return a bar of that share of a cell's width."""
    inside = f'<span style="width:{100 * min(share, 1.0):.1f}%"></span>' if share > 0 else ""
    return f'<span class="bar">{inside}</span>'


def axis_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds that hold the values, from zero where they do not go below, and never of no height."""
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    if low == high:
        return 0.0, 1.0
    # The usual case is a reward from 0 to 1: a curve that has come to 0.4 should look like 0.4.
    return (0.0, 1.0) if low == 0.0 and 0.2 < high <= 1.0 else (low, high)


def _segments(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    segments: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None:
            segments[-1].append((x, y))
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if segment]
