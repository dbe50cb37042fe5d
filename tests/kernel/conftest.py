"""Fixtures of the tests that talk to a real kernel, always in network namespaces of their own."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.demo import namespaces
from agent.demo.namespaces import Namespace, NamespaceError
from agent.demo.testbed import Testbed
from agent.kernel import nfacct
from agent.kernel.errors import NetlinkError
from tests.kernel.running import BACKENDS, Host
from tests.kernel.smallcluster import SmallCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent


@functools.cache
def why_not() -> str:
    """Why these tests cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root: network namespaces and netfilter (run the tests with sudo)"
    try:
        Namespace.create(namespaces.owned_name("probe")).close()
    except NamespaceError as error:
        return f"needs to make network namespaces: {error}"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder as ``root``, and skip it with the reason without root."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.root)
            if why_not():
                item.add_marker(pytest.mark.skip(reason=why_not()))


@functools.cache
def why_not_backend(backend: str) -> str:
    """Why a backend cannot be tried here; empty if it can."""
    program = f"xtables-{backend}-multi"
    if shutil.which(program, path="/usr/sbin:/sbin") is None:
        return f"{program} is not installed"
    namespace = Namespace.create(namespaces.owned_name("probe"))
    try:
        namespace.run([program, "iptables", "-w", "-t", "nat", "-S"])
    except NamespaceError as error:
        return f"this kernel lacks what iptables-{backend} needs: {error}"
    finally:
        namespace.close()
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is for a backend that cannot be tried here, with the reason."""
    params = getattr(item, "callspec", None)
    for value in params.params.values() if params is not None else ():
        if value in BACKENDS and (reason := why_not_backend(value)):
            pytest.skip(reason)


@functools.cache
def why_not_counters() -> str:
    """Why rules cannot count with nfacct here; empty if they can."""
    namespace = Namespace.create(namespaces.owned_name("probe"))
    try:
        namespace.call(nfacct.ensure, "probe")
        rule = ["-A", "INPUT", "-m", "nfacct", "--nfacct-name", "probe"]
        namespace.run(["xtables-nft-multi", "iptables", *rule])
    except (NamespaceError, NetlinkError) as error:
        return f"this kernel has no nfacct counters, or no match for them: {error}"
    finally:
        namespace.close()
    return ""


@pytest.fixture
def counters() -> None:
    """Skips a test that needs packet counters where there are none."""
    if reason := why_not_counters():
        pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def own_xtables_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The xtables lock is one per machine; tests beside each other take one each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XTABLES_LOCKFILE", str(tmp_path_factory.mktemp("xtables") / "lock"))
        yield


@pytest.fixture
def make_namespace() -> Iterator[Callable[[], Namespace]]:
    """Makes empty namespaces (loopback up) that are removed after the test."""
    made: list[Namespace] = []

    def make() -> Namespace:
        namespace = Namespace.create(namespaces.owned_name("test"))
        made.append(namespace)
        namespace.run(["ip", "link", "set", "lo", "up"])
        return namespace

    yield make
    for namespace in made:
        namespace.close(grace=0.2)


@pytest.fixture
def namespace(make_namespace: Callable[[], Namespace]) -> Namespace:
    """An empty namespace (loopback up)."""
    return make_namespace()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Callable[[str, str], SmallCluster]]:
    """Makes the cluster of a backend and a layout when it is first asked for; tests share it."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def get(backend: str, layout: str) -> SmallCluster:
            return stack.enter_context(SmallCluster(backend, "--dispatch", layout))

        yield get


@pytest.fixture(params=BACKENDS)
def cluster(
    request: pytest.FixtureRequest, clusters: Callable[[str, str], SmallCluster]
) -> SmallCluster:
    """A cluster with an agent and servers, which a test must leave as it found it."""
    return clusters(request.param, "flat")


@pytest.fixture
def host(namespace: Namespace, tmp_path: Path) -> Iterator[Host]:
    """A node without pods, and an API server on it; its agents end with the test."""
    with Host(namespace, tmp_path) as made:
        yield made
        assert made.api.crashes == []


@pytest.fixture
def bed() -> Iterator[Testbed]:
    """The small cluster network with three pods, without servers and without rules."""
    with Testbed() as made:
        yield made
