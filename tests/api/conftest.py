from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

from agent.cluster.client import make_client
from agent.cluster.kube import KubeSource
from tests.api.helpers import FAST, Latest, Notes, Sink
from tests.fakes.apiserver import FakeAPIServer, write_kubeconfig
from tests.fakes.objects import node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(name="logs", autouse=True)
def _logs() -> Iterator[list[Any]]:
    """What is logged meanwhile."""
    with structlog.testing.capture_logs() as logs:
        yield logs


@pytest.fixture(name="server")
def _server() -> Iterator[FakeAPIServer]:
    """A fake API server that holds this node and another one."""
    with FakeAPIServer(bookmark_seconds=0.1) as server:
        server.put(node("here"), node("elsewhere"))
        yield server
    assert server.crashes == []


@pytest.fixture(name="notes")
def _notes() -> Notes:
    return Notes()


@pytest.fixture(name="source")
def _source(
    server: FakeAPIServer, notes: Notes, tmp_path: Path
) -> Iterator[Callable[..., tuple[KubeSource, Sink]]]:
    """Starts a source with the real official client; settings may be given by name."""
    sources = []

    def start(*, listed: bool = True, **settings: Any) -> tuple[KubeSource, Sink]:
        client = make_client(str(write_kubeconfig(tmp_path / "kubeconfig", server)))
        values = {field: getattr(FAST, field) for field in FAST.__struct_fields__}
        source = KubeSource(
            client,
            node_name="here",
            settings=type(FAST)(**(values | settings)),
            observer=notes,
            rng=Latest(),
        )
        sources.append(source)
        sink = Sink()
        source.start(sink.put)
        if listed:
            sink.wait_listed()
        return source, sink

    yield start
    for source in sources:
        source.stop()
