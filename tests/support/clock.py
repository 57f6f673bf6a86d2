"""The clock of the tests: it moves when a test moves it, and not by itself."""


class FakeClock:
    """Seconds since whenever the test says. A test sets ``now_s`` or calls ``advance``; with
    ``tick_s`` every look at the clock takes that long as well."""

    def __init__(self, now_s: float = 0.0, *, tick_s: float = 0.0) -> None:
        self.now_s = now_s
        self.tick_s = tick_s

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
