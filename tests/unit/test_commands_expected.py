"""Where the looking commands get Services from, when it is an API server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
import structlog.testing
from click.testing import CliRunner

from agent.cli import cli
from agent.commands import expected
from agent.commands.expected import expect, has_source, node_name, read_objects
from agent.commands.sources import Held, LookError, Options, this_node
from agent.config.load import defaults, load
from agent.inspect.survey import Survey
from agent.inspect.tables import read_tables
from agent.state.values import Family
from tests.fakes.apiserver import FakeAPIServer, Fault, write_kubeconfig
from tests.fakes.objects import node, service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.config.model import Config


@pytest.fixture(name="server")
def _server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as server:
        server.put(node("here"), node("elsewhere"), service("one"), service("two"))
        yield server


@pytest.fixture(name="config")
def _config(server: FakeAPIServer, tmp_path: Path) -> Config:
    """A configuration that leads to the server."""
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", server)
    return load({"kubeconfig": str(kubeconfig), "hostname_override": "here"}, {}).config


def test_lists_are_read_once_and_quietly(config: Config) -> None:
    """Services, slices and this node; nothing is logged on the way, and logs work afterwards."""
    with structlog.testing.capture_logs() as logged:
        found = read_objects(config)

    assert sorted(one.metadata.name for one in found.services) == ["one", "two"]
    assert [one.metadata.name for one in found.nodes] == ["here"]
    assert found.source == "the API server"
    assert logged == []


def test_a_refusal_is_told_as_it_is(server: FakeAPIServer, config: Config) -> None:
    """With what to do about it."""
    server.fail(Fault(status=403), times=None)

    with pytest.raises(LookError, match="does not let the agent list"):
        read_objects(config)


def test_a_server_that_fails_is_given_up(
    server: FakeAPIServer, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, with the last error; before that it is told once what is waited for."""
    monkeypatch.setattr(expected, "PATIENCE", 0.6)
    monkeypatch.setattr(expected, "SILENCE", 0.3)
    server.fail(Fault(status=500), times=None)
    told: list[str] = []

    with pytest.raises(LookError, match=r"did not list .* within 0\.6 s: .*500") as failed:
        read_objects(config, told.append)
    (waiting,) = told
    lists = "to list EndpointSlices, Nodes, Services; so far: "
    assert f"waiting up to 0.6 s for the API server at {server.url} {lists}" in waiting
    assert "500" in waiting
    assert f"the API server at {server.url}" in str(failed.value)
    assert "--api-server" in str(failed.value)


def test_a_server_that_answers_is_not_waited_for(
    server: FakeAPIServer, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is told of a first failure that is soon over."""
    monkeypatch.setattr(expected, "PATIENCE", 60.0)
    monkeypatch.setattr(expected, "SILENCE", 60.0)
    told: list[str] = []
    server.fail(Fault(status=500), times=1)

    assert read_objects(config, told.append).services
    assert told == []


def test_verify_compares_with_the_api_server(server: FakeAPIServer, tmp_path: Path) -> None:
    """A kernel without the Services that it has is unsound."""
    kubeconfig = str(write_kubeconfig(tmp_path / "kubeconfig", server))
    flags = ["--kubeconfig", kubeconfig, "--node-name", "here"]
    empty = "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"
    argv = ["verify", "--from-file", "-", "--family", "IPv4", "-o", "json", *flags]
    result = CliRunner().invoke(cli, argv, input=empty)
    found = json.loads(result.output)

    assert result.exit_code == 1
    assert found["compared"] == "the API server"
    missing = [one["service"] for one in found["findings"] if one["kind"] == "service-missing"]
    assert len(missing) == 2


def test_where_services_come_from_is_in_the_configuration() -> None:
    """Nowhere, unless a kubeconfig, an address or manifests are given; the name is the host's."""
    config = defaults()

    assert not has_source(config)
    assert has_source(msgspec.structs.replace(config, manifests=("a",)))
    assert has_source(msgspec.structs.replace(config, api_server="https://a"))
    assert node_name(config) == node_name(config).lower() != ""


def test_what_was_compiled_ahead_counts_if_the_guess_was_right(config: Config) -> None:
    """Rules that name a counter tell of the kernel what could not be guessed."""
    counted = (
        "*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct"
        " --nfacct-name ct_state_invalid_dropped_pkts -j DROP\nCOMMIT\n"
    )
    plain = counted.replace("-m nfacct --nfacct-name ct_state_invalid_dropped_pkts ", "")
    unknown = this_node(Options(file="saved.txt"))
    objects = read_objects(config)
    guess = expect(config, objects, _held(plain), unknown).rules
    objects.compiled[Family.V4] = guess
    other = expect(config, objects, _held(counted), unknown).rules

    assert expect(config, objects, _held(plain), unknown).rules is guess
    assert other is not guess
    assert (guess.node.count_invalid, other.node.count_invalid) == (False, True)
    assert other.services.keys() == guess.services.keys() != set()


def _held(text: str) -> Held:
    return Held(Survey(read_tables(text, Family.V4)), path="saved.txt")
