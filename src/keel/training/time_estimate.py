"""The remaining time of a run: a robust, smoothed estimate of the seconds per example."""

from collections import deque
from statistics import median_low

WINDOW = 9
"""Intervals between log entries whose median is one measurement: compilation or a pause in a few does not count."""
SMOOTHING = 0.1
"""Weight of a new measurement in the exponential moving average."""


class TimeEstimate:
    """Seconds per unit of work (a step, or an example where batch sizes change) from measured intervals."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.average = 0.0
        self.count = 0

    def add(self, seconds: float, work: float) -> None:
        """Measure an interval; the first one, which includes compilation and warm-up, counts until there is another."""
        if self.count == 1:
            self.recent.clear()
        self.recent.append(seconds / work)
        typical = median_low(self.recent)
        share = SMOOTHING if self.count > WINDOW else 1.0  # of few measurements the median is the best there is
        self.average += share * (typical - self.average)
        self.count += 1

    def seconds_for(self, work: float) -> float:
        """The time that this much work will take."""
        return self.average * work
