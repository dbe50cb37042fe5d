"""What to send, when, and how much at once. Decides; does no I/O."""
