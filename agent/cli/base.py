"""What all commands share: exit codes, errors for people, the configuration."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.config.load import Further, Loaded

OK, RUNTIME, USAGE, HOST, REFUSED = range(5)
#: What a shell says of a command that Ctrl-C ended.
INTERRUPTED = 130
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80}
BACKENDS = click.Choice(["legacy", "nft"])
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or for programs.",
)
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Seconds that the agent gets to answer.",
)
#: Where to look: see ``commands.sources``.
backend_option = click.option(
    "--backend",
    type=click.Choice(["auto", "legacy", "nft"]),
    default="auto",
    show_default=True,
    help="Of iptables; auto is the one that holds rules of Services.",
)


class Failure(click.ClickException):
    """An error for people, with the exit code that it means."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click says ClassVar and reads the instance

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it; the exit code is the same if nobody reads it."""
        try:
            super().show(file)
        except BrokenPipeError:
            if not nobody_reads():
                raise


def echo(lines: Iterable[str]) -> None:
    """Print lines; a reader that has seen enough changes nothing about how the command ends."""
    try:
        for line in lines:
            click.echo(line)
    except BrokenPipeError:
        if not nobody_reads():
            raise


@contextlib.contextmanager
def unread_is_well() -> Iterator[None]:
    """End well and quietly when whoever read what we print has gone."""
    try:
        yield
    except BrokenPipeError:
        if not nobody_reads():
            raise
        raise click.exceptions.Exit(OK) from None


def nobody_reads() -> bool:
    """Whether whoever read what we print has gone; then the rest goes nowhere, quietly."""
    gone = [stream for stream in (sys.stdout, sys.stderr) if _is_unread(stream)]
    for stream in gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return bool(gone)


def _is_unread(stream: IO[str]) -> bool:
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def load_config(
    config: Path | None, flags: Mapping[str, Any], further: Further | None = None
) -> Loaded:
    """The configuration from flags, the environment and a file; ``config.load`` knows ``further``.

    Raises:
        Failure: it cannot be used.
    """
    from agent.config.load import ConfigError, load

    try:
        return load(flags, os.environ, config, further)
    except ConfigError as error:
        raise Failure(str(error), error.exit_code) from error
