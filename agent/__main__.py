"""``onenth``, which ``python -m agent`` is too."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line.

    Importing it takes a moment, in which there is nothing to take down: until then Ctrl-C ends the
    process as it does any program, without a traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from agent.cli import main as run  # noqa: PLC0415  see above

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
