"""A live agent for a long time: what it holds must stay what it was (``make soak``)."""
