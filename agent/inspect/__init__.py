"""Looking at rules that exist: walking a packet, verifying, explaining. Pure."""
