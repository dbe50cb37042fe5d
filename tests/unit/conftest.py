"""Settings of the property tests; a slow machine is no reason to fail."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

SLOW = [HealthCheck.too_slow]
settings.register_profile("onenth", deadline=None, max_examples=100, suppress_health_check=SLOW)
#: Quick, and the same every time (``make mutants``); nobody looks at the example that fails.
settings.register_profile(
    "mutants",
    deadline=None,
    max_examples=10,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=SLOW,
)
settings.load_profile("onenth")
