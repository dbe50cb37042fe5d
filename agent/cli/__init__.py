"""The command line. Each command imports what it needs when it runs: the daemon stays small.

Exit codes: 0 ok, 1 something failed at runtime, 2 usage or configuration, 3 a privilege or a
tool is missing, 4 the API server refused, 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from agent import __version__
from agent.cli import about, daemon, live, look, observe, rules
from agent.cli.base import CONTEXT, INTERRUPTED, USAGE, Failure, nobody_reads, unread_is_well


class Commands(click.Group):
    """The commands; Ctrl-C ends any of them with a message and the status that shells expect.

    One whose output nobody reads any more, as in front of ``head``, ends quietly, and well.
    """

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the arguments, and print help if they ask for it."""
        with unread_is_well():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run one."""
        try:
            with unread_is_well():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Failure("interrupted", INTERRUPTED) from None


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="onenth")
def cli() -> None:
    """Give every endpoint of a Service exactly one n-th of its connections.

    A node agent that programs Kubernetes Services as netfilter rules, as kube-proxy's
    iptables mode does.
    """


for _command in (
    *(daemon.run, daemon.init, daemon.probe, daemon.show_config),
    *(look.verify, look.explain, look.plan, live.top, live.status, observe.observe),
    *(rules.render, rules.cleanup),
    *(about.demo, about.version, about.completion),
):
    cli.add_command(_command)


def main() -> None:
    """Run the command line and exit."""
    try:
        cli(prog_name="onenth")
    except BrokenPipeError:  # nobody reads what was wrong with the arguments
        if not nobody_reads():
            raise
        sys.exit(USAGE)
