"""The command observe: a daemon that only looks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from agent.cli.base import CONTEXT, RUNTIME, Failure, load_config
from agent.config.options import click_options

if TYPE_CHECKING:
    from pathlib import Path


@click.command(context_settings=CONTEXT)
@click_options()
@click.option(
    "--every",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=1.0),
    help="Seconds between two looks.",
)
def observe(config: Path | None, every: float, **flags: Any) -> None:
    """Verify this node's rules again and again; change nothing.

    What is found becomes logs and metrics. For a node that kube-proxy runs. It compares with the
    Services of the API server or of manifests, as verify does, and serves /metrics and health.

    \b
    Example: onenth observe --kubeconfig ~/.kube/config --node-name node-1
    """
    from agent import logs
    from agent.commands.observe import Observer, command, look
    from agent.serve.http import BindError

    loaded = load_config(config, flags)
    logs.setup(loaded.config.logging.format, loaded.config.logging.verbosity)
    argv = command(config, flags)
    try:
        sys.exit(Observer(loaded.config, every, lambda: look(argv)).run())
    except BindError as error:
        raise Failure(str(error), RUNTIME) from error
