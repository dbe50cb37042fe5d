"""What a KubeProxyConfiguration may hold that has no meaning here.

An existing file of kube-proxy's is read as it is. What it says that onenth does not do is
reported once at start, each with its line; fields that kubeadm writes out empty are not worth
a word. Names: kube-proxy's v1alpha1 types.
"""

from __future__ import annotations

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"

#: Keys, or sections with all that they hold.
WITHOUT_MEANING = frozenset(
    {
        "clientConnection.acceptContentTypes",
        "clientConnection.burst",
        "clientConnection.contentType",
        "clientConnection.qps",
        "configSyncPeriod",
        "enableProfiling",
        "featureGates",
        "ipvs",
        "logging.flushFrequency",
        "logging.options",
        "logging.vmodule",
        "mode",
        "nftables",
        "oomScoreAdj",
        "portRange",
        "showHiddenMetricsForVersion",
        "windowsRunAsService",
        "winkernel",
    }
)

_ZEROS = ("", "0", "0s")


def is_zero(value: object) -> bool:
    """Whether a value is what Go's types hold when nothing was set."""
    return value is None or value is False or value in (0, [], {}) or value in _ZEROS


def remarks(path: str, value: object) -> list[str]:
    """What to report about a key without meaning; one remark for each value that is set."""
    if isinstance(value, dict):
        return [line for key, one in value.items() for line in remarks(f"{path}.{key}", one)]
    if is_zero(value) or (path == "mode" and value == "iptables"):
        return []
    if path == "mode":
        return [f"mode {value}: onenth writes iptables rules, whatever the mode"]
    return [f"{path} has no meaning here"]
