from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from agent.cli import cli
from agent.commands.probe import ProbeError, probe
from agent.config.load import load
from agent.serve.http import HttpServer
from agent.serve.wire import Request, Response, text

if TYPE_CHECKING:
    from collections.abc import Iterator


def _well(_: Request) -> Response:
    return text(200, "well")


def _not_yet(_: Request) -> Response:
    return text(503, "not yet")


@pytest.fixture(name="port")
def _port() -> Iterator[int]:
    """A port on every address, on which /livez is well and /readyz is not yet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    server = HttpServer("health", f"0.0.0.0:{number}", {"/livez": _well, "/readyz": _not_yet})
    server.start()
    yield number
    server.stop()


def test_an_agent_on_every_address_is_asked_on_the_loopback(port: int) -> None:
    """Status and body of the answer come back, whatever address the agent was told."""
    config = load({"healthz_bind_address": f"0.0.0.0:{port}"}, {}).config
    assert (probe(config, "livez", 2).status, probe(config, "livez", 2).body) == (200, "well\n")
    assert probe(config, "readyz", 2).status == 503


def test_the_exit_status_is_what_a_health_check_needs(port: int) -> None:
    """0 for 200, 1 for anything else; the address may come from the environment."""
    env = {"ONENTH_HEALTHZ_BIND_ADDRESS": f"127.0.0.1:{port}"}
    well = CliRunner().invoke(cli, ["probe", "livez"], env=env)
    assert well.exit_code == 0
    assert well.output.endswith("well\n\n")
    not_yet = CliRunner().invoke(cli, ["probe", "readyz"], env=env)
    assert not_yet.exit_code == 1
    assert "/readyz says 503" in not_yet.output


def test_nobody_there_says_who_was_asked() -> None:
    """The message names address and port, so that a wrong one is seen."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    config = load({"healthz_bind_address": f"127.0.0.1:{number}"}, {}).config
    with pytest.raises(ProbeError, match=f"127.0.0.1 port {number}"):
        probe(config, "livez", 1)


def test_probes_that_are_switched_off_are_an_error() -> None:
    """An agent without probes is not reported as healthy."""
    config = load({"healthz_bind_address": ""}, {}).config
    config = type(config)(
        **{f: getattr(config, f) for f in config.__struct_fields__} | {"healthz_bind_address": ""}
    )
    with pytest.raises(ProbeError, match="serves no probes"):
        probe(config, "livez", 1)
