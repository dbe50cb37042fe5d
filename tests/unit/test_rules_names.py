from __future__ import annotations

import pytest

from agent.rules import names
from agent.rules.names import is_service_chain, service_hash
from agent.state.values import ServicePort
from tests.fakes.cluster import key


@pytest.mark.parametrize(
    ("port", "protocol", "endpoint", "expected"),
    [
        # Seen in public issues of Kubernetes (numbers of kubernetes/kubernetes).
        ("default/kubernetes:https", "tcp", "", "NPX46M4PTMTKRN6Y"),  # 36652
        ("kube-system/kube-dns:dns", "udp", "", "TCOU7JCQXEZGVUNU"),  # 48719
        ("kube-system/kube-dns:dns-tcp", "tcp", "", "ERIFXISQEP7F7OF4"),  # 48719
        ("ns1/svc1", "tcp", "", "AQI2S6QIMU7PVVRP"),  # 106497
        ("default/kubernetes:https", "tcp", "192.168.122.150:6443", "SGYQAO2MFIR4HIEV"),  # 82587
        ("default/nginx", "tcp", "", "2CMXP7HKUVJN7L6M"),
        # Made with sha256sum and base32.
        ("shop/web:http", "tcp", "", "67NZLRHBNDSAWJRO"),
        ("shop/web:http", "tcp", "10.0.0.1:8080", "CABXVTEVWWXCT3SI"),
        ("shop/web:http", "tcp", "[fd00::1]:8080", "PRTWWW33BNMHRNLL"),
    ],
)
def test_names_are_kube_proxys(port: str, protocol: str, endpoint: str, expected: str) -> None:
    """The suffix of a chain is the one that tools and other proxies know."""
    assert service_hash(port, protocol, endpoint) == expected


def test_a_port_without_a_name_is_hashed_without_a_colon() -> None:
    """Kube-proxies from before 1.12 hashed a trailing colon; today's do not."""
    port = ServicePort(
        service=key("nginx", "default"), port_name="", protocol="tcp", cluster_ip="", port=80
    )

    assert service_hash(port.name, "tcp") == "2CMXP7HKUVJN7L6M"
    assert service_hash("default/nginx:", "tcp") == "4N57TFCL4MD7ZTDA"


@pytest.mark.parametrize("prefix", [names.SVC, names.SVL, names.EXT, names.FW, names.SEP])
def test_every_name_fits_a_chain(prefix: str) -> None:
    """The kernel's tools take 28 characters."""
    chain = prefix + service_hash("n" * 63 + "/" + "s" * 63 + ":" + "p" * 63, "sctp", "[::1]:65535")

    assert len(chain) <= 28
    assert is_service_chain(chain)


@pytest.mark.parametrize(
    "chain",
    [
        "KUBE-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-SEP-",
        "KUBE-SVC",
        "KUBE-KUBELET-CANARY",
        "PREROUTING",
        "KUBE-MARK-MASQ",
        "KUBE-FIREWALL",
        "KUBE-FORWARD",
        "KUBE-PROXY-FIREWALL",
        "XKUBE-SVC-A",
        "kube-svc-a",
        "CNI-KUBE-SVC-A",
    ],
)
def test_shared_and_foreign_chains_are_no_services(chain: str) -> None:
    """What is not one Service's is never deleted with it."""
    assert not is_service_chain(chain)


def test_branches_of_a_tree_are_named_as_kube_proxy_deletes_them() -> None:
    """Their prefix is kube-proxy's, no Service's chain is named like them, and they fit."""
    branch = names.tree_chain("nat KUBE-SERVICES", "10.96.0.0/16")

    assert branch.startswith(("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"))
    assert len(branch) <= 28
    assert names.is_tree_chain(branch)
    assert not names.is_service_chain(branch)
    service = names.SVC + names.service_hash("default/web", "tcp")
    assert names.is_service_chain(service)
    assert not names.is_tree_chain(service)
