"""Commands that write rules: to the standard output, or away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent.cli.base import BACKENDS, CONTEXT, HOST, RUNTIME, USAGE, Failure, echo, load_config
from agent.config.options import click_options
from agent.inspect.wrap import counted, indented

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from agent.commands.cleanup import Removed


@click.command(context_settings=CONTEXT)
@click_options()
@click.option("--family", type=click.Choice(["IPv4", "IPv6"]), help="Only this family.")
@click.option("--node-label", multiple=True, metavar="KEY=VALUE", help="A label of the Node.")
@click.option(
    "--node-address",
    multiple=True,
    metavar="CIDR",
    help="An address on the node's interfaces, for node ports on some addresses only.",
)
@click.option("--tcp-be-liberal", is_flag=True, help="As if the sysctl were set.")
@click.option("--nfacct", is_flag=True, help="As if the kernel had the nfacct match.")
@click.option("--no-random-fully", is_flag=True, help="As with an old iptables.")
def render(config: Path | None, **flags: Any) -> None:
    """Print the iptables-restore input for a set of manifests.

    Needs no privileges and changes nothing. Prints what the agent would write. What it would
    leave out, such as a file that cannot be read or a port that is none, is named on standard
    error, and the status is 1 then: do not load such rules.

    \b
    Example: onenth render --manifests ./manifests --node-name n1 --family IPv4
    Example: kubectl get svc,endpointslices -Ao json | onenth render --manifests -
    """
    from agent.cluster.manifests import ManifestError
    from agent.commands.render import Pretended
    from agent.commands.render import render as render_manifests
    from agent.state.node import KernelFacts
    from agent.state.values import Family

    family = flags.pop("family")
    labels = dict(_label(text) for text in flags.pop("node_label"))
    nfacct = flags.pop("nfacct")
    facts = KernelFacts(
        tcp_liberal=flags.pop("tcp_be_liberal"),
        random_fully=not flags.pop("no_random_fully"),
        count_invalid=nfacct,
        count_localhost=nfacct,
        addresses=flags.pop("node_address"),
    )
    families = tuple(Family) if family is None else (Family(family),)
    loaded = load_config(config, flags)
    if not loaded.config.manifests:
        raise Failure("nothing to render: give --manifests FILE, FOLDER or -", USAGE)
    try:
        rendered = render_manifests(loaded.config, Pretended(labels, facts, families))
    except ManifestError as error:
        raise Failure(str(error), USAGE) from error
    for problem in (*rendered.remarks, *rendered.left_out):
        click.echo(problem, err=True)
    for one, text in rendered.texts.items():
        tool = "iptables-restore" if one is Family.V4 else "ip6tables-restore"
        click.echo(f"# {one.value}: for {tool} --noflush")
        click.echo(text, nl=False)
    if rendered.left_out:
        what = counted(len(rendered.left_out), "problem")
        raise Failure(f"{what}, named above: the rules leave something out", RUNTIME)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Failure(f"--node-label {text!r} is not KEY=VALUE", USAGE)
    return key, value


@click.command(context_settings=CONTEXT)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--backend", type=BACKENDS, help="Only this backend. [default: both]")
def cleanup(dry_run: bool, backend: str | None) -> None:
    """Remove onenth's rules, or kube-proxy's, and nothing else.

    Both families and both backends. Running it again does no harm. Established
    connections lose their translation only when conntrack forgets them. KUBE-FIREWALL
    stays, as after kube-proxy's --cleanup: the kubelet has it too, and its rule keeps
    neighbours off 127.0.0.1 for as long as route_localnet is on.

    Ends with status 0, 1 if something could not be removed, 3 if this process may not.

    \b
    Example: onenth cleanup --dry-run
    """
    from agent.commands.cleanup import clean
    from agent.kernel.errors import HostError

    try:
        removed = clean(backend, dry_run=dry_run)
    except HostError as error:
        raise Failure(str(error), HOST) from error
    echo(_told(removed, "would remove" if dry_run else "removed"))
    problems = [f"{p.where}: {text}" for p in removed for text in p.problems]
    denied = [part for part in removed if part.denied]
    if denied:
        where = ", ".join(part.where for part in denied)
        problems.append(f"{where}: not permitted: {denied[0].denied}")
    if problems:
        code = HOST if denied else RUNTIME
        raise Failure("\n".join(["not everything could be removed:", *problems]), code)


def _told(removed: Sequence[Removed], verb: str) -> Iterator[str]:
    gone = [part for part in removed if part.chains or part.jumps]
    for part in gone:
        chains, jumps = counted(part.chains, "chain"), counted(part.jumps, "jump")
        yield f"{part.where}: {verb} {chains} and {jumps}"
    if not gone and not any(part.problems or part.denied for part in removed):
        yield "nothing to remove"
    if guarded := ", ".join(part.where for part in removed if part.guarded):
        yield from indented(
            f"KUBE-FIREWALL stays ({guarded}): it is the kubelet's too, and keeps neighbours off"
            " 127.0.0.1 while route_localnet is on",
            0,
            2,
        )
