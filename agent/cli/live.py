"""Commands that look at what is going on: the split of connections, and a running agent."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import click

from agent.cli.base import (
    CONTEXT,
    RUNTIME,
    Failure,
    backend_option,
    echo,
    load_config,
    output_option,
    timeout_option,
)
from agent.cli.look import BLIND
from agent.config.options import click_options

if TYPE_CHECKING:
    from pathlib import Path

    from agent.commands.top import Watcher


@click.command(context_settings=CONTEXT)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between looks.",
)
@click.option(
    "--sort",
    "order",
    type=click.Choice(["rate", "established", "total", "p", "name"]),
    default="rate",
    show_default=True,
    help="What comes first.",
)
@click.option("--filter", "pattern", default="", help="Part of a Service's name; * and ? work.")
@click.option("--endpoints/--no-endpoints", default=True, help="Endpoints one by one.")
@click.option("--connections/--no-connections", default=True, help="Count established ones.")
@click.option("--since-start", is_flag=True, help="Count from now, not since rules were written.")
@click.option("--once", is_flag=True, help="Look once (for an interval), and end.")
@output_option
@click.option("--family", type=click.Choice(["IPv4", "IPv6"]), help="Only this family.")
@backend_option
def top(output: str, once: bool, endpoints: bool, **flags: Any) -> None:
    """Watch how connections are shared out over endpoints.

    New connections per second and in all, from the counters of the rules, onenth's or
    kube-proxy's; established ones from connection tracking. p is the probability that fair dice
    split at least so unevenly; NOT chance is said when that is too small to believe, with the
    number of lotteries taken into account. Needs root. Ends with Ctrl-C.

    \b
    Example: onenth top --filter shop/ --sort established
    Example: onenth top --once -o json
    """
    from agent.commands.sources import LookError, Options
    from agent.commands.top import View as TopView
    from agent.commands.top import Watcher, as_json, lines
    from agent.commands.top import once as look_once
    from agent.kernel.errors import KernelError
    from agent.state.values import Family

    family = flags.pop("family")
    options = Options(family=Family(family) if family else None, backend=flags.pop("backend"))
    view = TopView(**flags)
    try:
        watcher = Watcher(options, view)
        if not once:
            _watch(watcher, view.interval, endpoints=endpoints)
            return
        screen = look_once(watcher, view)
    except (LookError, KernelError) as error:
        raise Failure(f"could not look: {error}", BLIND) from error
    if output == "json":
        echo([json.dumps(as_json(screen), indent=2)])
    else:
        echo(line for line, _ in lines(screen, endpoints=endpoints))


def _watch(watcher: Watcher, interval: float, *, endpoints: bool) -> None:
    """A screen that is drawn anew until Ctrl-C; one after the other where there is no terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from agent.commands.top import lines

    console = Console(highlight=False)
    with contextlib.suppress(KeyboardInterrupt):
        while not console.is_terminal:
            for line, _ in lines(watcher.look(), endpoints=endpoints):
                click.echo(line)  # where nobody reads any more, this ends
            click.echo()
            time.sleep(interval)
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                screen = watcher.look()
                text = Text()
                for line, style in lines(screen, endpoints=endpoints, limit=console.size.height):
                    text.append(f"{line}\n", style=style)
                live.update(text, refresh=True)
                time.sleep(interval)


@click.command(context_settings=CONTEXT)
@click.option("--url", default="", help="Of the agent; by default its metricsBindAddress here.")
@timeout_option
@output_option
@click_options()
def status(config: Path | None, url: str, timeout: float, output: str, **flags: Any) -> None:
    """Show what a running agent does, and why.

    Backend, versions, the last syncs and why they ran, what waits, Services that were set aside
    and why, counters. The same is on /statusz, as a page for a browser.

    \b
    Example: onenth status
    Example: onenth status --url http://127.0.0.1:10249 -o json
    """
    from agent.commands.status import StatusError, as_text, decode, default_url, fetch

    loaded = load_config(config, flags)
    try:
        body = fetch(url or default_url(loaded.config), timeout)
        found = decode(body)
    except StatusError as error:
        raise Failure(str(error), RUNTIME) from error
    if output == "json":
        click.echo(body.decode())
    else:
        echo(as_text(found))
