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
        self.average: float | None = None
        self.count = 0

    def add(self, seconds: float, work: float) -> None:
        """Measure an interval; the first one, which includes compilation and warm-up, counts until there is another."""
        if self.count == 1:
            self.recent.clear()
        self.recent.append(seconds / work)
        typical = median_low(self.recent)
        started = self.average is not None and self.count > WINDOW  # before, the median is the best there is
        self.average = self.average + SMOOTHING * (typical - self.average) if started else typical
        self.count += 1

    def seconds_for(self, work: float) -> float:
        """The time that this much work will take."""
        assert self.average is not None
        return self.average * work
