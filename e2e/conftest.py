"""Options and fixtures of the end-to-end tests: one cluster for all of them, and what a failure
leaves behind."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.artifacts import collect
from e2e.cluster import UnsupportedError
from e2e.docker import IMAGE, Docker, NoDockerError, docker_running

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from e2e.cluster import Cluster

HERE = Path(__file__).parent
#: Modules in the order in which they run: what disturbs the cluster comes last.
ORDER = (
    "test_image", "test_services", "test_policies", "test_rollout", "test_agent", "test_outage",
    "test_takeover", "test_node", "test_monitoring",
)  # fmt: skip
PROVIDERS = ("local", "kind", "minikube", "external")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("e2e")
    group.addoption("--provider", choices=PROVIDERS, default="local", help="where the cluster is")
    group.addoption("--kubeconfig", help="of the cluster of --provider external")
    group.addoption("--api-server", help="its API server's URL without a proxy")
    group.addoption("--cluster-cidr", help="its pods' range, if not kind's")
    group.addoption("--image", default=IMAGE, help="the agent's there; IMAGE-next is the next")
    group.addoption(
        "--ip-family", choices=("ipv4", "ipv6", "dual"), default="dual", help="of a kind cluster"
    )
    group.addoption("--keep-cluster", action="store_true", help="leave it there at the end")
    group.addoption("--outage-seconds", type=float, default=60.0, help="without an API server")
    group.addoption(
        "--artifacts", type=Path, default=HERE.parent / "e2e-artifacts",
        help="folder for what failures leave",
    )  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order modules, not tests; a module that is not in the order is a mistake."""
    mine = [item for item in items if HERE in item.path.parents]
    others = [item for item in items if item not in mine]
    items[:] = others + sorted(mine, key=lambda item: ORDER.index(item.path.stem))
    for item in mine:
        if item.get_closest_marker("timeout") is None:
            # With the image and the cluster, which the first tests wait for.
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", name="docker")
def _docker(request: pytest.FixtureRequest) -> Iterator[Docker]:
    """Docker with the project's image."""
    try:
        with docker_running() as docker:
            docker.build()
            yield docker
            if request.config.getoption("--keep-cluster"):
                docker.forget()
    except NoDockerError as error:
        pytest.skip(f"needs Docker: {error}")


@pytest.fixture(scope="session", name="cluster")
def _cluster(request: pytest.FixtureRequest, docker: Docker) -> Iterator[Cluster]:
    """The cluster."""
    made = _make(request.config, docker)
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"\ncluster: {made.description}")
    request.config.stash[_CLUSTER] = made
    yield made
    if not request.config.getoption("--keep-cluster"):
        made.close()


def _make(config: pytest.Config, docker: Docker) -> Cluster:
    provider = config.getoption("--provider")
    folder = Path(tempfile.mkdtemp(prefix="onenth-e2e-"))
    if provider == "local":
        from e2e.local.provider import LocalCluster  # noqa: PLC0415  others need none of it

        return LocalCluster(docker, folder)
    from e2e.kubernetes.providers import make_cluster  # noqa: PLC0415  likewise

    return make_cluster(provider, config, docker, folder)


_CLUSTER: pytest.StashKey[Cluster] = pytest.StashKey()
_FOLDERS: pytest.StashKey[list[str]] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what a provider cannot do, and keep what helps to understand a failure."""
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(UnsupportedError):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: {call.excinfo.value}")
    if report.failed:
        cluster = item.config.stash.get(_CLUSTER, None)
        if cluster is not None:
            name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{item.path.stem}-{item.name}")
            folder = Path(item.config.getoption("--artifacts")) / name
            collect(cluster, folder)
            item.config.stash.setdefault(_FOLDERS, []).append(str(folder))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name the folders that failures left."""
    for folder in config.stash.get(_FOLDERS, []):
        terminalreporter.write_line(f"artefacts: {folder}")


@pytest.fixture(name="families")
def _families(cluster: Cluster) -> list[str]:
    return list(cluster.families)
