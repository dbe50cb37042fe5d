"""``python -m agent`` is ``onenth``."""

from agent.cli import main

if __name__ == "__main__":
    main()
