"""Commands of the agent itself: run, init, probe, config."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from agent.cli.base import CONTEXT, HOST, RUNTIME, Failure, load_config, timeout_option
from agent.config.options import click_options

if TYPE_CHECKING:
    from pathlib import Path

    from agent.config.load import Loaded


@click.command(context_settings=CONTEXT)
@click_options()
def run(config: Path | None, **flags: Any) -> None:
    """Run the agent.

    SIGTERM and SIGINT end it; the rules stay. When the file of --config changes, or at once at
    SIGHUP, it ends with status 1, to be started again with what the file says now; a file that
    cannot be used is told and ends nothing. SIGUSR1 logs its status.

    \b
    Example: onenth run --kubeconfig /etc/kubernetes/admin.conf --node-name node-1
    Example: onenth run --manifests ./manifests --node-name node-1
    """
    from agent import daemon
    from agent.config.load import load
    from agent.kernel.errors import HostError, KernelError

    start = daemon.Start()
    loaded = load_config(config, flags, start.problems)

    def reread() -> Loaded:
        return load(flags, os.environ, config, daemon.Start(again=True).problems)

    try:
        code = daemon.run(loaded, start, reread)
    except HostError as error:
        raise Failure(str(error), HOST) from error
    except KernelError as error:
        raise Failure(str(error), RUNTIME) from error
    sys.exit(code)


@click.command(context_settings=CONTEXT)
@click_options()
@click.option("--strict", is_flag=True, help="End with status 1 if a setting is refused.")
def init(config: Path | None, strict: bool, **flags: Any) -> None:
    """Set the kernel settings that need privilege, and end.

    For a privileged init container, so that the agent's own container needs no privilege:
    conntrack limits and timeouts, and route_localnet for node ports on 127.0.0.1. It reads
    the agent's configuration. A setting that is refused is told and passed over, for the agent
    does without; with --strict the status is 1 then.

    \b
    Example: onenth init --config /etc/onenth/config.yaml
    """
    from agent.commands.init import prepare
    from agent.inspect.wrap import indented
    from agent.kernel.sysctl import Result

    outcomes = prepare(load_config(config, flags).config)
    for one in outcomes:
        note = f": {one.reason}" if one.reason else ""
        before = "unknown" if one.before is None else one.before
        told = f"{one.name}: wanted {one.wanted}, was {before}, {one.result.value}{note}"
        click.echo("\n".join(indented(told, 0, 2)))
    refused = [one.name for one in outcomes if one.result is Result.REFUSED]
    if refused and strict:
        raise Failure(f"refused: {', '.join(refused)}; this needs a privileged container", RUNTIME)


@click.command(context_settings=CONTEXT)
@click_options()
@click.argument("which", type=click.Choice(["healthz", "livez", "readyz"]))
@timeout_option
def probe(config: Path | None, which: str, timeout: float, **flags: Any) -> None:
    """Ask the agent on this machine how it is.

    Prints its answer, and ends with status 0 only if that is 200. For health checks of
    containers without curl.

    \b
    Example: onenth probe readyz
    """
    from agent.commands.probe import ProbeError
    from agent.commands.probe import probe as ask

    try:
        answer = ask(load_config(config, flags).config, which, timeout)
    except ProbeError as error:
        raise Failure(str(error), RUNTIME) from error
    click.echo(answer.body)
    if answer.status != 200:
        raise Failure(f"/{which} says {answer.status}", RUNTIME)


@click.command(name="config", context_settings=CONTEXT)
@click_options()
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "yaml"]),
    default="table",
    show_default=True,
    help="For people, or as a file for --config.",
)
def show_config(config: Path | None, output: str, **flags: Any) -> None:
    """Print the configuration, and where each value came from.

    \b
    Example: onenth config --config kube-proxy.yaml -o yaml
    """
    import yaml

    from agent.config.load import as_document, describe

    loaded = load_config(config, flags)
    if output == "yaml":
        click.echo(yaml.safe_dump(as_document(loaded.config), sort_keys=False), nl=False)
        return
    rows = describe(loaded)
    width = max(len(key) for key, _, _ in rows)
    for key, value, source in rows:
        click.echo(f"{key:<{width}}  {source:<7}  {value}")
    for remark in loaded.ignored:
        click.echo(f"ignored: {remark}", err=True)
