"""Means with their 95 % intervals, clustered by task, and the t distribution that these need.

Knows numbers only, nothing of episodes. Attempts at one task resemble each other, so the tasks are what is independent:
the standard error is the clustered one, with the correction G/(G-1) for G clusters, and the interval takes Student's t
with G-1 degrees of freedom.

Source: Miller, "Adding Error Bars to Evals", 2024, section 2.2; Cameron and Miller, "A Practitioner's Guide to
Cluster-Robust Inference", 2015, section II.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
_TINY = 1e-300  # in place of a zero that a continued fraction would divide by
_TERMS = 10_000  # of the continued fraction; it needs some sqrt(degrees of freedom) of them


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and how far chance may have moved it.

    Args:
        mean: Over all values.
        tasks: How many clusters the values are from.
        stderr: The standard error; `None` where one task can't tell it.
        interval: That holds the true mean with a confidence of 95 %; `None` likewise.
    """

    mean: float
    tasks: int
    stderr: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def p(self) -> float | None:
        """How likely a mean at least this far from zero is by chance alone; `None` where one task can't tell it."""
        if self.stderr is None:
            return None
        if self.stderr == 0:
            return 1.0 if self.mean == 0 else 0.0
        return two_sided_p(self.mean / self.stderr, self.tasks - 1)


def estimate(clusters: Iterable[Sequence[float]]) -> Estimate | None:
    """Return the mean of all values with its interval, or `None` where there is no value.

    Args:
        clusters: The values of each task; they are finite.
    """
    groups = [list(values) for values in clusters if len(values)]
    if not groups:
        return None
    # A power of two scales without rounding, and then neither a sum nor a square of rewards of 1e308 overflows.
    largest = max(abs(value) for values in groups for value in values)
    scale = 2.0 ** max(math.frexp(largest)[1] - 1, -1000)
    scaled = [[value / scale for value in values] for values in groups]
    count = sum(map(len, scaled))
    middle = math.fsum(value for values in scaled for value in values) / count
    mean = middle * scale
    if len(scaled) == 1:
        return Estimate(mean, 1)
    deviations = (math.fsum(value - middle for value in values) for values in scaled)
    stderr = math.hypot(*deviations) * math.sqrt(len(scaled) / (len(scaled) - 1)) / count
    margin = t_quantile(len(scaled) - 1) * stderr
    low, high = (middle - margin) * scale, (middle + margin) * scale
    if not (math.isfinite(low) and math.isfinite(high)):
        return Estimate(mean, len(scaled))
    return Estimate(mean, len(scaled), stderr * scale, (low, high))


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of finite values, of rewards of 1e308 too; `None` where there is none."""
    found = estimate([values])
    return None if found is None else found.mean


@functools.lru_cache(maxsize=256)
def t_quantile(df: int, confidence: float = CONFIDENCE) -> float:
    """Return the `t` that a value of Student's distribution stays within, on both sides, with that confidence.

    Args:
        df: Degrees of freedom.
        confidence: Above 0, below 1.
    """
    outside = 1.0 - confidence
    low, high = 0.0, 1.0
    while two_sided_p(high, df) > outside:
        low, high = high, 2.0 * high
    while low < (middle := (low + high) / 2) < high:  # until no number lies between
        low, high = (middle, high) if two_sided_p(middle, df) > outside else (low, middle)
    return high


def two_sided_p(t: float, df: int) -> float:
    """Return the probability that a value of Student's distribution is at least as far from zero as `t`.

    Args:
        t: The statistic.
        df: Degrees of freedom.
    """
    if abs(t) > 1e150:  # whose square is no number
        return 0.0
    # Both shares are computed: the smaller of them can't be had as one minus the other.
    return incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))


def incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b).

    Args:
        a: Above 0.
        b: Above 0.
        x: From 0 to 1.
        rest: 1 - x, without the rounding of that difference.

    Source: the NIST Digital Library of Mathematical Functions, 8.17.22, by Lentz's method.
    """
    if x == 0 or rest == 0:
        return float(rest == 0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, the other tail's is fast
        return 1.0 - incomplete_beta(b, a, rest, x)
    beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * _log(x, rest) + b * _log(rest, x) - beta) / a
    value, upper, lower = 1.0, 1.0, 0.0
    for term in range(1, _TERMS):
        m = term // 2
        if term % 2:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1.0 / ((1.0 + step * lower) or _TINY)
        upper = (1.0 + step / upper) or _TINY
        value *= upper * lower
        if abs(upper * lower - 1.0) < 1e-15:
            break
    return front / value


def _log(value: float, rest: float) -> float:
    """Return the logarithm of `value`, which is 1 - `rest`."""
    return math.log1p(-rest) if rest < 0.5 else math.log(value)
