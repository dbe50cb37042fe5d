"""``onenth``, which ``python -m agent`` is too."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line.

    Importing it takes a moment, in which there is nothing to take down: until then Ctrl-C ends the
    process as it does any program, without a traceback.
    """
    import signal  # noqa: PLC0415  see below

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from agent.cli import main as run  # noqa: PLC0415  see above

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _quietly(kind: type[BaseException], *rest: object) -> None:
    """Print what ended the process, unless it was Ctrl-C."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, *rest)  # type: ignore[arg-type]  # error and traceback


# Ctrl-C is Python's own until main() has imported signal, which takes a moment too.
sys.excepthook = _quietly

if __name__ == "__main__":
    main()
