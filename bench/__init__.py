"""Measures how fast the agent is, against the bare tools and in ratios (``make bench``)."""
