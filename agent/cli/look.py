"""Commands that look inside, on any node: they read, and write nothing to the kernel."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agent.cli.base import (
    CONTEXT,
    USAGE,
    Failure,
    backend_option,
    echo,
    load_config,
    output_option,
)
from agent.config.options import click_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from agent.commands.sources import Options

Command = TypeVar("Command", bound="Callable[..., object]")
#: Exit statuses of these commands: sound, findings (or changes), could not look.
SOUND, FINDINGS, BLIND = range(3)


def look_options(command: Command) -> Command:
    """Options that say where to look."""
    for option in (
        click.option(
            "--node-address",
            multiple=True,
            metavar="ADDR",
            help="An address of the node, with --from-file.",
        ),
        backend_option,
        click.option("--family", type=click.Choice(["IPv4", "IPv6"]), help="Only this family."),
        click.option(
            "--from-file",
            metavar="FILE",
            type=click.Path(allow_dash=True),
            help="What iptables-save printed, instead of this node's kernel; - is the"
            " standard input.",
        ),
    ):
        command = option(command)
    return command


def take_options(flags: dict[str, Any]) -> Options:
    """Take the options of ``look_options`` out of a command's flags."""
    from agent.commands.sources import Options
    from agent.state.values import Family

    family = flags.pop("family")
    return Options(
        file=flags.pop("from_file") or "",
        family=Family(family) if family else None,
        backend=flags.pop("backend"),
        addresses=flags.pop("node_address"),
        tell=lambda text: _say([text]),
    )


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Do not look for garbage: there is none among hundreds of thousands of rules."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def warn(warnings: Iterable[str]) -> None:
    """Say on standard error what makes an answer say less than it could."""
    _say(f"warning: {warning}" for warning in warnings)


def _say(texts: Iterable[str]) -> None:
    from agent.inspect.wrap import indented

    for text in texts:
        for line in indented(text, 0, 2):
            click.echo(line, err=True)


@click.command(context_settings=CONTEXT)
@look_options
@output_option
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Findings to show; 0 for all.",
)
@click_options()
def verify(config: Path | None, output: str, limit: int, **flags: Any) -> None:
    """Check the rules in the kernel, onenth's or kube-proxy's.

    By themselves, and against the Services of an API server or of manifests if --kubeconfig,
    --api-server or --manifests is given. Ends with status 0 if all is sound, 1 if not, 2 if it
    could not look.

    \b
    Example: onenth verify
    Example: onenth verify --from-file saved.txt -o json
    Example: onenth verify --config /var/lib/kube-proxy/config.conf
    """
    from agent.commands.sources import LookError
    from agent.commands.verify import as_text, run
    from agent.kernel.errors import KernelError

    options = take_options(flags)
    loaded = load_config(config, flags)
    try:
        with without_collector():
            report = run(options, loaded.config)
    except (LookError, KernelError) as error:
        raise Failure(f"could not look: {error}", BLIND) from error
    warn(report.warnings)
    if output == "json":
        echo([json.dumps(report.as_json(), indent=2)])
    else:
        echo(as_text(report, limit=limit))
    sys.exit(SOUND if report.sound else FINDINGS)


@click.command(context_settings=CONTEXT)
@look_options
@output_option
@click.option("--diff", is_flag=True, help="Show the rules themselves.")
@click_options()
def plan(config: Path | None, output: str, diff: bool, **flags: Any) -> None:
    """Show what the agent would change in the kernel right now.

    Grouped by Service; nothing is changed. On a node that kube-proxy runs, "no changes" says
    that the agent can take over. Services come from manifests, or from the API server. Ends
    with status 0 if nothing would change, 1 if something would, 2 if it could not look.

    \b
    Example: onenth plan --kubeconfig /etc/kubernetes/admin.conf
    Example: onenth plan --config /var/lib/kube-proxy/config.conf --diff
    """
    from agent.commands.plan import as_text, run
    from agent.commands.sources import LookError
    from agent.kernel.errors import KernelError

    options = take_options(flags)
    loaded = load_config(config, flags)
    try:
        with without_collector():
            plans = run(options, loaded.config)
    except (LookError, KernelError) as error:
        raise Failure(f"could not look: {error}", BLIND) from error
    warn(plans.warnings)
    if output == "json":
        echo([json.dumps(plans.as_json(), indent=2)])
    else:
        echo(as_text(plans, diff=diff))
    sys.exit(SOUND if plans.empty else FINDINGS)


def complete_target(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of Services in the rules that would be looked at; none if they cannot be."""
    from agent.commands.sources import LookError, Options, read_held
    from agent.inspect.aim import known_services
    from agent.kernel.errors import KernelError

    options = Options(file=ctx.params.get("from_file") or "")
    try:
        known = {name for held in read_held(options) for name in known_services(held.survey)}
    except (LookError, KernelError):
        return []
    return sorted(name for name in known if name.startswith(incomplete))


@click.command(context_settings=CONTEXT)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--from",
    "sender",
    metavar="ADDR|pod|node|outside",
    default="",
    help="Who sends. By default a pod, and outside to what is meant for clients outside.",
)
@click.option(
    "--proto",
    type=click.Choice(["tcp", "udp", "sctp"]),
    help="By default what the rules have for the target.",
)
@click.option("--interface", default="", help="By which the packet comes in.")
@look_options
@output_option
@click_options()
def explain(config: Path | None, target: str, output: str, **flags: Any) -> None:
    """Show where a packet goes, by which rules and chances.

    TARGET is namespace/name or namespace/name:port (the port's name or its number), ADDR:PORT,
    or the number of a node port.
    The packet is walked through the rules as they are, of onenth, of kube-proxy and of all
    others; what the rules alone do not tell is said to match perhaps. With an API server or
    manifests, also why a Service has no endpoint. Ends with status 0; 1 if no rule knows the
    target, which is walked all the same if it is an address or a node port; 2 if it could not
    look.

    \b
    Example: onenth explain shop/web:http --from pod
    Example: onenth explain 30080 --from 203.0.113.7 --from-file saved.txt
    """
    from agent.commands.explain import Question, as_json, as_text, run
    from agent.commands.sources import LookError
    from agent.inspect.aim import AimError, read_aim
    from agent.inspect.origins import OriginError
    from agent.kernel.errors import KernelError

    sender, proto, interface = (flags.pop(name) for name in ("sender", "proto", "interface"))
    options = take_options(flags)
    loaded = load_config(config, flags)
    try:
        question = Question(read_aim(target, proto or ""), sender, interface)
        with without_collector():
            answer = run(question, options, loaded.config)
    except (AimError, OriginError) as error:
        raise Failure(str(error), USAGE) from error
    except (LookError, KernelError) as error:
        raise Failure(f"could not look: {error}", BLIND) from error
    warn(answer.warnings)
    if answer.unknown is not None:
        raise Failure("\n".join(answer.unknown.lines()), FINDINGS)
    if output == "json":
        echo([json.dumps(as_json(answer.ways), indent=2)])
    else:
        echo(as_text(answer.ways))
    sys.exit(SOUND if any(one.known for one in answer.ways) else FINDINGS)
