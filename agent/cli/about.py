"""Commands around the product: demo, version, completion."""

from __future__ import annotations

import json
import os
import platform

import click

from agent import __version__
from agent.cli.base import BACKENDS, CONTEXT, HOST, INTERRUPTED, RUNTIME, Failure, output_option


@click.command(context_settings=CONTEXT)
@click.option(
    "--backend", type=BACKENDS, default="nft", show_default=True, help="Of iptables, to show it on."
)
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    default=3000,
    show_default=True,
    help="Of each of the four rounds.",
)
def demo(backend: str, connections: int) -> None:
    """Show it: a node, pods and a client in network namespaces.

    As many connections as --connections says go to the cluster IP, as many to the node port, as
    many while a pod leaves, and as many after that; their split is drawn beside the expected 1/n.

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
        raise Failure("interrupted; everything has been taken down again", INTERRUPTED) from None
    if failed:
        raise Failure("did not hold: " + "; ".join(failed), RUNTIME)


@click.command(context_settings=CONTEXT)
@output_option
def version(output: str) -> None:
    """Print versions: of onenth, Python, iptables and libraries.

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


#: bash ends words at colons, which stand in names of service ports: give the program whole words,
#: and take away from its answers what is before the last colon, since readline keeps that.
_BASH_WHOLE_WORDS = r"""
_onenth_whole_words() {
    local line="${COMP_LINE:0:COMP_POINT}" words word part i
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    COMP_WORDS=("${words[@]}")
    COMP_CWORD=$((${#words[@]} - 1))
    word="${words[COMP_CWORD]}"
    _onenth_completion "$@"
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        part="${word%"${word##*:}"}"
        for i in "${!COMPREPLY[@]}"; do
            COMPREPLY[i]="${COMPREPLY[i]#"$part"}"
        done
    fi
    return 0
}
complete -o nosort -F _onenth_whole_words onenth
"""


@click.command(context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for a shell.

    The target of explain is completed too, from the rules. zsh reads the file _onenth in a folder
    of its fpath, before compinit; fish reads onenth.fish in ~/.config/fish/completions.

    \b
    Example: onenth completion bash > /etc/bash_completion.d/onenth
    Example: onenth completion zsh > /usr/local/share/zsh/site-functions/_onenth
    Example: onenth completion fish > ~/.config/fish/completions/onenth.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise Failure(f"this click knows no completion for {shell}", RUNTIME)
    program = click.get_current_context().find_root().command
    click.echo(found(program, {}, "onenth", "_ONENTH_COMPLETE").source())
    if shell == "bash":
        click.echo(_BASH_WHOLE_WORDS)
