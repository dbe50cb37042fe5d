from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kernel import detect
from agent.kernel.detect import Backend
from agent.kernel.errors import OtherBackendError
from agent.state.values import Family
from tests.kernel.inside import NamespaceRunner, legacy_tables

if TYPE_CHECKING:
    from agent.demo.namespaces import Namespace

COMMANDS = pytest.mark.parametrize("command", ["iptables", "ip6tables"])


def new_chain(namespace: Namespace, backend: Backend, command: str, table: str, chain: str) -> None:
    namespace.run([backend.program, command, "-t", table, "-N", chain])


def chosen(namespace: Namespace, wanted: str = "auto") -> Backend:
    return detect.choose(wanted, NamespaceRunner(namespace)).backend


def test_an_empty_node_means_nft_and_stays_empty(namespace: Namespace) -> None:
    """Without any hint nft is chosen, and looking has made no table in either backend."""
    runner = NamespaceRunner(namespace)
    choice = detect.choose("auto", runner)
    detect.refuse_conflict(choice, runner)

    assert choice.backend is Backend.NFT
    assert choice.reason == "no hint chain of a kubelet in either backend"
    assert legacy_tables(namespace) == []
    assert legacy_tables(namespace, "ip6") == []
    assert namespace.run(["nft", "list", "tables"]).stdout == ""


@COMMANDS
@pytest.mark.parametrize("chain", ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"])
@pytest.mark.parametrize("backend", Backend)
def test_the_kubelets_hint_is_followed(
    namespace: Namespace, backend: Backend, chain: str, command: str
) -> None:
    """Either hint chain, in the mangle table of either family, decides for its backend."""
    new_chain(namespace, backend, command, "mangle", chain)

    assert chosen(namespace) is backend


def test_nft_is_asked_first(namespace: Namespace) -> None:
    """An IPv6 hint in nft wins over an IPv4 hint in legacy."""
    new_chain(namespace, Backend.LEGACY, "iptables", "mangle", "KUBE-IPTABLES-HINT")
    new_chain(namespace, Backend.NFT, "ip6tables", "mangle", "KUBE-KUBELET-CANARY")

    assert chosen(namespace) is Backend.NFT


def test_a_legacy_hint_counts_in_any_table(namespace: Namespace) -> None:
    """Legacy is asked for all tables, so a hint in the nat table decides too."""
    new_chain(namespace, Backend.LEGACY, "iptables", "nat", "KUBE-KUBELET-CANARY")

    assert chosen(namespace) is Backend.LEGACY
    assert legacy_tables(namespace) == ["nat"]


def test_an_nft_hint_counts_in_mangle_alone(namespace: Namespace) -> None:
    """Chains of that name in the nat table of nft, and other chains, are no hint."""
    new_chain(namespace, Backend.NFT, "iptables", "nat", "KUBE-KUBELET-CANARY")
    new_chain(namespace, Backend.NFT, "iptables", "mangle", "KUBE-PROXY-CANARY")
    new_chain(namespace, Backend.LEGACY, "iptables", "mangle", "KUBE-IPTABLES-HINT")

    assert chosen(namespace) is Backend.LEGACY


def test_stale_rules_in_legacy_do_not_decide(namespace: Namespace) -> None:
    """Service chains left in legacy lose against a hint in nft, and are then in the way."""
    new_chain(namespace, Backend.LEGACY, "iptables", "nat", "KUBE-SERVICES")
    new_chain(namespace, Backend.NFT, "iptables", "mangle", "KUBE-IPTABLES-HINT")
    runner = NamespaceRunner(namespace)
    choice = detect.choose("auto", runner)

    assert choice.backend is Backend.NFT
    with pytest.raises(OtherBackendError, match="onenth cleanup --backend legacy"):
        detect.refuse_conflict(choice, runner)


@COMMANDS
@pytest.mark.parametrize("backend", Backend)
def test_services_in_the_other_backend_refuse_the_start(
    namespace: Namespace, backend: Backend, command: str
) -> None:
    """KUBE-SERVICES in the nat table of the other backend is refused in either family."""
    new_chain(namespace, backend.other, command, "nat", "KUBE-SERVICES")
    runner = NamespaceRunner(namespace)
    choice = detect.choose(backend.value, runner)

    with pytest.raises(OtherBackendError, match=f"set iptables.backend to {backend.other.value}"):
        detect.refuse_conflict(choice, runner)


@pytest.mark.parametrize("backend", Backend)
def test_other_chains_in_the_other_backend_are_no_conflict(
    namespace: Namespace, backend: Backend
) -> None:
    """KUBE-SERVICES in the filter table alone, or our own backend's, does not stop the start."""
    new_chain(namespace, backend.other, "iptables", "filter", "KUBE-SERVICES")
    new_chain(namespace, backend.other, "iptables", "nat", "KUBE-SERVICES-OF-ANOTHER")
    new_chain(namespace, backend, "iptables", "nat", "KUBE-SERVICES")
    runner = NamespaceRunner(namespace)

    detect.refuse_conflict(detect.choose(backend.value, runner), runner)
    assert detect.holds_services(detect.installed(runner)[backend], Family.V4, runner)


def test_a_configured_backend_is_taken_without_looking(namespace: Namespace) -> None:
    """An explicit choice wins over every hint."""
    new_chain(namespace, Backend.NFT, "iptables", "mangle", "KUBE-IPTABLES-HINT")

    assert chosen(namespace, "legacy") is Backend.LEGACY
