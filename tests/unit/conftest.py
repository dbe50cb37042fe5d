"""Settings of the property tests; a slow machine is no reason to fail."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("onenth", deadline=None, max_examples=100)
#: Quick, and the same every time (``make mutants``).
settings.register_profile(
    "mutants", deadline=None, max_examples=10, derandomize=True, database=None
)
settings.load_profile("onenth")
