"""Settings of the property tests; a slow machine is no reason to fail."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("onenth", deadline=None, max_examples=100)
settings.load_profile("onenth")
