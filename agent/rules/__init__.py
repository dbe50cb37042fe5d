"""What the kernel should hold: pure functions from state to rules, and their text."""
