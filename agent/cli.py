"""The command line. Each command imports what it needs when it runs: the daemon stays small.

Exit codes: 0 ok, 1 something failed at runtime, 2 usage or configuration, 3 a privilege or a
tool is missing, 4 the API server refused.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

import click

from agent import __version__
from agent.config.options import click_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.config.load import Loaded

OK, RUNTIME, USAGE, HOST, REFUSED = range(5)
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80}
_BACKENDS = click.Choice(["legacy", "nft"])


class Failure(click.ClickException):
    """An error for people, with the exit code that it means."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click says ClassVar and reads the instance


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="onenth")
def cli() -> None:
    """Give every endpoint of a Service exactly one n-th of its connections.

    A node agent that programs Kubernetes Services as netfilter rules, as kube-proxy's
    iptables mode does.
    """


def main() -> None:
    """Run the command line and exit."""
    cli()


def _load(config: Path | None, flags: Mapping[str, Any]) -> Loaded:
    from agent.config.load import ConfigError, load

    try:
        return load(flags, os.environ, config)
    except ConfigError as error:
        raise Failure(str(error), error.exit_code) from error


@cli.command(context_settings=_CONTEXT)
@click_options()
def run(config: Path | None, **flags: Any) -> None:
    """Run the agent.

    \b
    Example: onenth run --kubeconfig /etc/kubernetes/admin.conf --node-name node-1
    Example: onenth run --manifests ./manifests --node-name node-1
    """
    from agent import daemon
    from agent.kernel.errors import HostError, KernelError

    loaded = _load(config, flags)
    if not loaded.config.hostname_override:
        raise Failure(
            "the name of this Node is not known: give --node-name, set ONENTH_HOSTNAME_OVERRIDE"
            " or NODE_NAME, or hostnameOverride in the configuration",
            USAGE,
        )
    try:
        code = daemon.run(loaded)
    except HostError as error:
        raise Failure(str(error), HOST) from error
    except daemon.StartError as error:
        raise Failure(str(error), USAGE) from error
    except KernelError as error:
        raise Failure(str(error), RUNTIME) from error
    sys.exit(code)


@cli.command(context_settings=_CONTEXT)
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

    Needs no privileges and changes nothing. Problems of the manifests are printed on
    standard error.

    \b
    Example: onenth render --manifests ./manifests --node-name node-1 --family IPv4
    Example: kubectl get svc,endpointslices -A -o json | onenth render --manifests -
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
    loaded = _load(config, flags)
    if not loaded.config.manifests:
        raise Failure("nothing to render: give --manifests FILE, FOLDER or -", USAGE)
    try:
        rendered = render_manifests(loaded.config, Pretended(labels, facts, families))
    except ManifestError as error:
        raise Failure(str(error), USAGE) from error
    for problem in rendered.problems:
        click.echo(problem, err=True)
    for one, text in rendered.texts.items():
        tool = "iptables-restore" if one is Family.V4 else "ip6tables-restore"
        click.echo(f"# {one.value}: for {tool} --noflush")
        click.echo(text, nl=False)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Failure(f"--node-label {text!r} is not KEY=VALUE", USAGE)
    return key, value


@cli.command(context_settings=_CONTEXT)
@click.option("--backend", type=_BACKENDS, default="nft", show_default=True)
@click.option("--connections", default=3000, show_default=True, help="To each address.")
def demo(backend: str, connections: int) -> None:
    """Show it: a node, three pods and a client in network namespaces.

    Needs root. Ends with status 0 only if everything that it shows held. Nothing outside
    of its namespaces is touched, and they are removed at the end, also after Ctrl-C.

    \b
    Example: onenth demo --backend legacy
    """
    from rich.console import Console

    from agent.demo.demo import DemoError, run
    from agent.demo.namespaces import NamespaceError

    if os.geteuid() != 0:
        raise Failure("the demo makes network namespaces, which takes root; try sudo", HOST)
    try:
        failed = run(backend, Console(highlight=False, soft_wrap=True), connections=connections)
    except (DemoError, NamespaceError) as error:
        raise Failure(str(error), RUNTIME) from error
    except KeyboardInterrupt:
        raise Failure("interrupted; everything has been taken down again", 130) from None
    if failed:
        raise Failure("did not hold: " + "; ".join(failed), RUNTIME)


@cli.command(context_settings=_CONTEXT)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--backend", type=_BACKENDS, help="Only this backend. [default: both]")
def cleanup(dry_run: bool, backend: str | None) -> None:
    """Remove the rules of this agent, or of kube-proxy, and nothing else.

    Both families and both backends. Running it again does no harm. Established
    connections lose their translation only when conntrack forgets them.

    \b
    Example: onenth cleanup --dry-run
    """
    from agent.commands.cleanup import clean
    from agent.kernel.errors import HostError
    from agent.sync.port import ReadError, RestoreError

    try:
        removed = clean(backend, dry_run=dry_run)
    except HostError as error:
        raise Failure(str(error), HOST) from error
    except (ReadError, RestoreError) as error:
        raise Failure(f"not everything could be removed: {error}", RUNTIME) from error
    verb = "would remove" if dry_run else "removed"
    for part in removed:
        click.echo(
            f"{part.backend} {part.family}: {verb} {part.chains} chains and {part.jumps} jumps"
        )
    if not removed:
        click.echo("nothing to remove")


@cli.command(context_settings=_CONTEXT)
@click_options()
def init(config: Path | None, **flags: Any) -> None:
    """Set the kernel settings that need privilege, and end.

    For a privileged init container, so that the agent's own container needs no privilege:
    conntrack limits and timeouts, and route_localnet for node ports on 127.0.0.1. It reads
    the agent's configuration. Ends with status 1 if a setting was refused.

    \b
    Example: onenth init --config /etc/onenth/config.yaml
    """
    from agent.commands.init import prepare
    from agent.kernel.sysctl import Result

    outcomes = prepare(_load(config, flags).config)
    for one in outcomes:
        note = f": {one.reason}" if one.reason else ""
        before = "unknown" if one.before is None else one.before
        click.echo(f"{one.name}: wanted {one.wanted}, was {before}, {one.result.value}{note}")
    refused = [one.name for one in outcomes if one.result is Result.REFUSED]
    if refused:
        raise Failure(f"refused: {', '.join(refused)}; this needs a privileged container", RUNTIME)


@cli.command(context_settings=_CONTEXT)
@click_options()
@click.argument("which", type=click.Choice(["healthz", "livez", "readyz"]))
@click.option("--timeout", default=3.0, show_default=True, help="Seconds.")
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
        answer = ask(_load(config, flags).config, which, timeout)
    except ProbeError as error:
        raise Failure(str(error), RUNTIME) from error
    click.echo(answer.body)
    if answer.status != 200:
        raise Failure(f"/{which} says {answer.status}", RUNTIME)


@cli.command(name="config", context_settings=_CONTEXT)
@click_options()
@click.option("-o", "--output", type=click.Choice(["table", "yaml"]), default="table")
def show_config(config: Path | None, output: str, **flags: Any) -> None:
    """Print the configuration in effect, and where each value came from.

    \b
    Example: onenth config --config kube-proxy.yaml -o yaml
    """
    import yaml

    from agent.config.load import as_document, describe

    loaded = _load(config, flags)
    if output == "yaml":
        click.echo(yaml.safe_dump(as_document(loaded.config), sort_keys=False), nl=False)
        return
    rows = describe(loaded)
    width = max(len(key) for key, _, _ in rows)
    for key, value, source in rows:
        click.echo(f"{key:<{width}}  {source:<7}  {value}")
    for remark in loaded.ignored:
        click.echo(f"ignored: {remark}", err=True)


@cli.command(context_settings=_CONTEXT)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def version(output: str) -> None:
    """Print versions: of this program, Python, the kernel, iptables and libraries.

    \b
    Example: onenth version -o json
    """
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    from agent.kernel.detect import installed as installed_tools
    from agent.kernel.errors import ToolMissingError
    from agent.kernel.tools import SubprocessRunner

    facts = {
        "onenth": __version__,
        "python": platform.python_version(),
        "kernel": os.uname().release,
    }
    try:
        tools = installed_tools(SubprocessRunner())
    except ToolMissingError:
        tools = {}
    for backend, tool in tools.items():
        facts[f"iptables-{backend.value}"] = ".".join(map(str, tool.version)) if tool else "absent"
    for name in ("kubernetes", "msgspec", "prometheus-client", "pyroute2", "structlog"):
        try:
            facts[name] = installed(name)
        except PackageNotFoundError:
            facts[name] = "absent"
    if output == "json":
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        click.echo(f"{name} {value}")


@cli.command(context_settings=_CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for a shell.

    \b
    Example: onenth completion bash > /etc/bash_completion.d/onenth
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise Failure(f"this click knows no completion for {shell}", RUNTIME)
    click.echo(found(cli, {}, "onenth", "_ONENTH_COMPLETE").source())
