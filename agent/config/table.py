"""The one table of settings: flags, variables, keys of the file, defaults and documentation.

A key is the path of the value in the file, with dots. kube-proxy's names and flags are used
where kube-proxy has them (``kube_proxy``).
"""

from __future__ import annotations

import msgspec

from agent.config.model import NONE, PRIMARY
from agent.config.values import (
    Address,
    Addresses,
    Choice,
    Duration,
    Families,
    HostPort,
    Interface,
    NodeName,
    Number,
    Paths,
    Plain,
    Ranges,
    Switch,
    Text,
    Url,
    ValueType,
)

ENV_PREFIX = "ONENTH_"
_MAX_INT32 = 2**31 - 1


class Setting(msgspec.Struct, frozen=True):
    """One setting.

    Attributes:
        path: key in the file.
        flag: long flag on the command line.
        type: how it is read and printed.
        default: plain value.
        help: one sentence or two.
        kube_proxy: key and flag are kube-proxy's.
        aliases: more flags for the same.
        env_aliases: variables that are read after its own.
        zero_is_default: an empty or zero value in a KubeProxyConfiguration means "not set", as
            in kube-proxy, where such a field cannot be told from an absent one.
    """

    path: str
    flag: str
    type: ValueType
    default: Plain
    help: str
    kube_proxy: bool = True
    aliases: tuple[str, ...] = ()
    env_aliases: tuple[str, ...] = ()
    zero_is_default: bool = False

    @property
    def param(self) -> str:
        """Name of the flag's value in Python."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def env(self) -> str:
        """Name of the variable."""
        return ENV_PREFIX + self.param.upper()


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "clientConnection.kubeconfig",
        "--kubeconfig",
        Text(),
        "",
        "Kubeconfig file for the API server. Without it and without manifests, the credentials "
        "that a pod finds in its container are used.",
    ),
    Setting(
        "apiServer",
        "--api-server",
        Url(),
        "",
        "URL of the API server instead of the one that comes with the credentials. Needed in a "
        "pod where nothing serves the API server's ClusterIP yet.",
        kube_proxy=False,
        aliases=("--master",),
    ),
    Setting(
        "tlsServerName",
        "--tls-server-name",
        Text(),
        "",
        "Name that the API server's certificate must carry, if it is not the host of the URL.",
        kube_proxy=False,
    ),
    Setting(
        "apiReadTimeout",
        "--api-read-timeout",
        Duration(zero=False),
        90.0,
        "How long the API server may send nothing before a list or a watch is given up and begun "
        "again. It sends a bookmark every minute at the latest.",
        kube_proxy=False,
    ),
    Setting(
        "manifests",
        "--manifests",
        Paths(),
        (),
        "Files or folders of Services, EndpointSlices and Nodes (YAML or JSON), watched for "
        "changes, instead of an API server.",
        kube_proxy=False,
    ),
    Setting(
        "hostnameOverride",
        "--hostname-override",
        NodeName(),
        "",
        "Name of this Node in the API. The agent never guesses it from the host's name.",
        aliases=("--node-name",),
        env_aliases=("NODE_NAME",),
    ),
    Setting(
        "nodeIP",
        "--node-ip",
        Addresses(),
        (),
        "Addresses of this node, one of each family, instead of those of the Node object.",
        kube_proxy=False,
    ),
    Setting(
        "bindAddress",
        "--bind-address",
        Address(),
        "0.0.0.0",  # noqa: S104  kube-proxy's default; nothing listens on it
        "Another way to give one address of this node, as in kube-proxy. Nothing listens on it; "
        "an IPv6 address makes the servers' default addresses IPv6.",
        zero_is_default=True,
    ),
    Setting(
        "healthzBindAddress",
        "--healthz-bind-address",
        HostPort(10256),
        "0.0.0.0:10256",
        "Address of /healthz, /livez and /readyz; empty switches them off.",
        zero_is_default=True,
    ),
    Setting(
        "metricsBindAddress",
        "--metrics-bind-address",
        HostPort(10249),
        "127.0.0.1:10249",
        "Address of /metrics; empty switches it off. A scraper on another machine needs an "
        "address that it can reach, such as `0.0.0.0:10249`.",
        zero_is_default=True,
    ),
    Setting(
        "bindAddressHardFail",
        "--bind-address-hard-fail",
        Switch(),
        default=False,
        help="End when a server's address cannot be had, instead of trying again.",
    ),
    Setting(
        "clusterCIDR",
        "--cluster-cidr",
        Ranges(pair=True),
        (),
        "Range of the cluster's pods, one of each family, with a comma between them.",
    ),
    Setting(
        "detectLocalMode",
        "--detect-local-mode",
        Choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
        "ClusterCIDR",
        "How traffic of pods is told from other traffic. ClusterCIDR without a range tells none.",
        zero_is_default=True,
    ),
    Setting(
        "detectLocal.bridgeInterface",
        "--pod-bridge-interface",
        Interface(),
        "",
        "Bridge of the pods, for mode BridgeInterface.",
    ),
    Setting(
        "detectLocal.interfaceNamePrefix",
        "--pod-interface-name-prefix",
        Interface(),
        "",
        "Beginning of the names of the pods' interfaces, for mode InterfaceNamePrefix.",
    ),
    Setting(
        "nodePortAddresses",
        "--nodeport-addresses",
        Ranges(word=PRIMARY),
        (),
        "Ranges of the node's addresses on which node ports answer, or `primary` for the Node's "
        "own addresses; every address if empty.",
    ),
    Setting(
        "allowedExternalIPs",
        "--allowed-external-ips",
        Ranges(word=NONE),
        (),
        "Ranges that a Service's `externalIPs` must lie in, or `none` to ignore them all; those "
        "outside are left out and named in the log. Every address is allowed if empty.",
        kube_proxy=False,
    ),
    Setting(
        "allowedLoadBalancerIPs",
        "--allowed-load-balancer-ips",
        Ranges(word=NONE),
        (),
        "The same for the addresses in a Service's `status.loadBalancer`.",
        kube_proxy=False,
    ),
    Setting(
        "iptables.backend",
        "--iptables-backend",
        Choice("auto", "legacy", "nft"),
        "auto",
        "Which iptables holds the rules. `auto` follows the kubelet's hint chains.",
        kube_proxy=False,
    ),
    Setting(
        "iptables.masqueradeBit",
        "--iptables-masquerade-bit",
        Number(0, 31),
        14,
        "Bit of the packet mark for traffic that must be masqueraded.",
    ),
    Setting(
        "iptables.masqueradeAll",
        "--masquerade-all",
        Switch(),
        default=False,
        help="Masquerade all traffic to cluster IPs.",
    ),
    Setting(
        "iptables.localhostNodePorts",
        "--iptables-localhost-nodeports",
        Switch(),
        default=True,
        help="Let node ports answer on 127.0.0.1 (never on ::1).",
    ),
    Setting(
        "iptables.syncPeriod",
        "--iptables-sync-period",
        Duration(zero=False),
        30.0,
        "Longest time between two checks of the kernel's rules. A change that waits for more "
        "than twice this long makes /healthz answer 503.",
        zero_is_default=True,
    ),
    Setting(
        "iptables.minSyncPeriod",
        "--iptables-min-sync-period",
        Duration(zero=True),
        1.0,
        "Shortest time between two changes of the rules; 0 holds nothing back.",
        zero_is_default=True,
    ),
    Setting(
        "dispatch",
        "--dispatch",
        Choice("auto", "flat", "tree"),
        "auto",
        "How a packet finds its Service: `flat` is kube-proxy's list of rules, `tree` hangs them "
        "by destination prefix, `auto` chooses by their number.",
        kube_proxy=False,
    ),
    Setting(
        "dropCapabilities",
        "--drop-capabilities",
        Switch(),
        default=True,
        help="After the start, give up every capability but those that writing rules needs.",
        kube_proxy=False,
    ),
    Setting(
        "ipFamilies",
        "--ip-families",
        Families(),
        (),
        "IPv4, IPv6 or both; `auto` means every family that the node can serve.",
        kube_proxy=False,
    ),
    Setting(
        "metrics.connections",
        "--metrics-connections",
        Choice("off", "service", "endpoint"),
        "off",
        "Metrics of new and established connections, by Service or also by endpoint; the latter "
        "are as many series as there are endpoints.",
        kube_proxy=False,
    ),
    Setting(
        "conntrack.maxPerCore",
        "--conntrack-max-per-core",
        Number(0, _MAX_INT32),
        32768,
        "Tracked connections per processor core; 0 leaves the kernel's limit as it is.",
    ),
    Setting(
        "conntrack.min",
        "--conntrack-min",
        Number(0, _MAX_INT32),
        131072,
        "Fewest tracked connections to allow, whatever the number of cores.",
    ),
    Setting(
        "conntrack.tcpEstablishedTimeout",
        "--conntrack-tcp-timeout-established",
        Duration(zero=True),
        86400.0,
        "How long an idle TCP connection is remembered; 0 leaves the kernel's value.",
    ),
    Setting(
        "conntrack.tcpCloseWaitTimeout",
        "--conntrack-tcp-timeout-close-wait",
        Duration(zero=True),
        3600.0,
        "How long a half-closed TCP connection is remembered; 0 leaves the kernel's value.",
    ),
    Setting(
        "conntrack.tcpBeLiberal",
        "--conntrack-tcp-be-liberal",
        Switch(),
        default=False,
        help="Do not take packets outside of the TCP window for invalid.",
    ),
    Setting(
        "conntrack.udpTimeout",
        "--conntrack-udp-timeout",
        Duration(zero=True),
        0.0,
        "How long an unanswered UDP flow is remembered; 0 leaves the kernel's value.",
    ),
    Setting(
        "conntrack.udpStreamTimeout",
        "--conntrack-udp-timeout-stream",
        Duration(zero=True),
        0.0,
        "How long an answered UDP flow is remembered; 0 leaves the kernel's value.",
    ),
    Setting(
        "logging.format",
        "--logging-format",
        Choice("auto", "console", "json", read_as={"text": "console"}),
        "auto",
        "`console` for people, `json` for machines, `auto` by whether the output is a terminal. "
        "kube-proxy's `text` is read as `console`.",
        aliases=("--log-format",),
        zero_is_default=True,
    ),
    Setting(
        "logging.verbosity",
        "--verbosity",
        Number(0, 10),
        0,
        "4 and more also logs details for debugging, as kube-proxy's levels do.",
        aliases=("--v", "-v"),
    ),
)

BY_PATH: dict[str, Setting] = {setting.path: setting for setting in SETTINGS}
