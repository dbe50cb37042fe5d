"""The settings as options of a command."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from agent.config import SETTINGS, load
from agent.config.options import click_options


@click.command()
@click_options()
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Print what of the configuration was given."""
    file = given.pop("config")
    loaded = load(given, {}, file)
    config = loaded.config
    given_by_flag = sorted(key for key, source in loaded.sources.items() if source == "flag")
    click.echo(f"{given_by_flag} {config.iptables.masquerade_all} {config.node_port_addresses}")
    context.exit(0)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(
        command, arguments, env={"ONENTH_CONFIG": ""}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_nothing_given_is_nothing_taken() -> None:
    """Without flags, no value counts as given by a flag."""
    assert run() == "[] False ()"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--masquerade-all"], True),
        (["--masquerade-all=true"], True),
        (["--masquerade-all=false"], False),
        (["--masquerade-all", "--dispatch", "flat"], True),
    ],
)
def test_switches_work_as_kube_proxys(arguments: list[str], *, value: bool) -> None:
    """A switch stands alone, or carries its value after an equals sign."""
    assert f"{value} ()" in run(*arguments)


def test_lists_can_be_repeated_and_separated() -> None:
    """A list is built from every use of its flag."""
    output = run(
        "--nodeport-addresses=192.0.2.0/24,fd00::/64", "--nodeport-addresses", "10.0.0.0/8"
    )
    assert output.endswith("('192.0.2.0/24', 'fd00::/64', '10.0.0.0/8')")


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["--node-name", "a"], "hostnameOverride"),
        (["--hostname-override", "a"], "hostnameOverride"),
        (["--master", "https://192.0.2.1"], "apiServer"),
        (["-v", "4"], "logging.verbosity"),
        (["-v4"], "logging.verbosity"),
        (["--v=4"], "logging.verbosity"),
        (["--log-format", "json"], "logging.format"),
    ],
)
def test_aliases(arguments: list[str], path: str) -> None:
    """Other flags for the same setting, kube-proxy's among them, are understood."""
    assert f"['{path}']" in run(*arguments)


def test_help_tells_of_every_setting() -> None:
    """Every flag and variable is in the help, and help does not fail on any of them."""
    output = CliRunner().invoke(command, ["--help"], terminal_width=1000).output
    for setting in SETTINGS:
        assert setting.flag in output
        assert setting.env in output


def test_the_file_can_come_from_a_variable(tmp_path: Any) -> None:
    """ONENTH_CONFIG names the file when --config does not."""
    file = tmp_path / "c.yaml"
    file.write_text("iptables: {masqueradeAll: true}\n")
    result = CliRunner().invoke(command, [], env={"ONENTH_CONFIG": str(file)})
    assert result.output.strip() == "[] True ()"
