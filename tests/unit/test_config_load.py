"""Where values come from, which wins, and what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from agent.config import (
    SETTINGS,
    ConfigError,
    Setting,
    as_document,
    defaults,
    describe,
    load,
)
from agent.config.model import Config
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[[str], Path]

OURS = "apiVersion: onenth.dev/v1alpha1\nkind: OnenthConfiguration\n"

#: What kubeadm 1.36 writes into the ConfigMap ``kube-proxy``, with one CIDR.
KUBEADM = (Path(__file__).parents[1] / "data/kubeadm-1.36.yaml").read_text(encoding="utf-8")


@pytest.fixture(name="write")
def _write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        file = tmp_path / "config.yaml"
        file.write_text(text)
        return file

    return write


def test_defaults_are_kube_proxys() -> None:
    """With nothing given, every value that kube-proxy has is kube-proxy's default."""
    config = defaults()
    assert config.healthz_bind_address == "0.0.0.0:10256"
    assert config.metrics_bind_address == "127.0.0.1:10249"
    assert config.detect_local_mode == "ClusterCIDR"
    assert (config.iptables.sync_period, config.iptables.min_sync_period) == (30.0, 1.0)
    assert config.iptables.masquerade_bit == 14
    assert config.iptables.localhost_node_ports is True
    assert (config.conntrack.max_per_core, config.conntrack.min) == (32768, 131072)
    assert config.conntrack.tcp_established_timeout == 86400.0
    assert config.conntrack.tcp_close_wait_timeout == 3600.0
    assert config.conntrack.tcp_be_liberal is False
    assert config.hostname_override == ""
    assert config.ip_families == ()
    assert config.node_ips == ()


def test_flag_over_variable_over_file_over_default(write: Write) -> None:
    """The flag wins over the variable, that over the file, that over the default."""
    file = write("iptables: {syncPeriod: 41s, minSyncPeriod: 4s, masqueradeBit: 4}\n")
    loaded = load(
        {"iptables_sync_period": "43s"},
        {"ONENTH_IPTABLES_SYNC_PERIOD": "42s", "ONENTH_IPTABLES_MIN_SYNC_PERIOD": "5s"},
        file,
    )
    assert loaded.config.iptables.sync_period == 43.0
    assert loaded.config.iptables.min_sync_period == 5.0
    assert loaded.config.iptables.masquerade_bit == 4
    assert loaded.sources["iptables.syncPeriod"] == "flag"
    assert loaded.sources["iptables.minSyncPeriod"] == "env"
    assert loaded.sources["iptables.masqueradeBit"] == "file"
    assert loaded.sources["dispatch"] == "default"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.path)
def test_every_setting_has_three_ways_in(setting: Setting, write: Write) -> None:
    """Each setting can be given by its flag, its variable and its key in the file."""
    given = {
        "clientConnection.kubeconfig": "/tmp/kubeconfig",  # noqa: S108  not opened
        "apiServer": "https://192.0.2.1:6443",
        "tlsServerName": "api.example",
        "manifests": "/srv",
        "hostnameOverride": "node-a",
        "nodeIP": "192.0.2.7",
        "bindAddress": "192.0.2.8",
        "healthzBindAddress": "127.0.0.1:1",
        "metricsBindAddress": "127.0.0.1:2",
        "clusterCIDR": "10.0.0.0/8",
        "detectLocalMode": "NodeCIDR",
        "detectLocal.bridgeInterface": "br0",
        "detectLocal.interfaceNamePrefix": "veth",
        "nodePortAddresses": "primary",
        "iptables.backend": "legacy",
        "iptables.localhostNodePorts": "false",
        "dispatch": "tree",
        "dropCapabilities": "false",
        "allowedExternalIPs": "none",
        "allowedLoadBalancerIPs": "203.0.113.0/24",
        "metrics.connections": "service",
        "ipFamilies": "IPv6",
        "logging.format": "json",
    }
    fallback = {"true or false": "true", "number": "3", "duration": "7s"}.get(setting.type.name, "")
    text = given.get(setting.path, fallback)
    section, _, name = setting.path.rpartition(".")
    line = f"{section}: {{{name}: {text!r}}}" if section else f"{name}: {text!r}"
    for loaded, source in (
        (load({setting.param: text}, {}), "flag"),
        (load({}, {setting.env: text}), "env"),
        (load({}, {}, write(line)), "file"),
    ):
        shown = {key: (value, origin) for key, value, origin in describe(loaded)}
        assert shown[setting.path] == (text, source)
        assert setting.type.show(setting.default) != text


def test_reads_what_kubeadm_writes(write: Write) -> None:
    """kubeadm's file is read as it is; its empty fields mean defaults and are not reported."""
    loaded = load({}, {}, write(KUBEADM))
    assert loaded.ignored == ()
    config = loaded.config
    assert config.client_connection.kubeconfig == "/var/lib/kube-proxy/kubeconfig.conf"
    assert config.cluster_cidr == ("10.244.0.0/16",)
    assert config.conntrack.max_per_core == 0
    assert config.conntrack.min == 131072
    assert config.conntrack.udp_timeout == 0.0
    assert config.healthz_bind_address == "0.0.0.0:10256"
    assert config.metrics_bind_address == "127.0.0.1:10249"
    assert (config.iptables.sync_period, config.iptables.min_sync_period) == (30.0, 1.0)
    assert config.iptables.localhost_node_ports is True


def test_reports_what_has_no_meaning_here(write: Write) -> None:
    """What another proxy mode needs, and names unknown here, are listed and are no error."""
    file = write(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"
        "kind: KubeProxyConfiguration\n"
        "mode: ipvs\n"
        "ipvs:\n"
        "  scheduler: rr\n"
        "configSyncPeriod: 15m0s\n"
        "logging: {format: text}\n"
        "iptables:\n"
        "  syncPeriods: 3s\n"
    )
    loaded = load({}, {}, file)
    assert loaded.ignored == (
        "mode ipvs: onenth writes iptables rules, whatever the mode (line 3)",
        "ipvs.scheduler has no meaning here (line 5)",
        "configSyncPeriod has no meaning here (line 6)",
        "iptables.syncPeriods (line 9) is not a key; did you mean iptables.syncPeriod?",
    )
    assert loaded.config.logging.format == "console"


def test_in_our_file_zero_means_zero(write: Write) -> None:
    """A minSyncPeriod of 0 and an empty address say what they say in a file of ours."""
    config = load({}, {}, write(OURS + "iptables: {minSyncPeriod: 0s}\nmetricsBindAddress: ''\n"))
    assert config.config.iptables.min_sync_period == 0.0
    assert config.config.metrics_bind_address == ""


def test_all_problems_are_listed_at_once(write: Write) -> None:
    """One error names every problem of file, variables and flags, with place and suggestion."""
    file = write(
        OURS + "iptables:\n"
        "  masqueradeBit: 32\n"
        "  minSyncPerod: 1s\n"
        "syncPeriod: 30s\n"
        "clusterCidr: 10.0.0.0/8\n"
        "frobnicate: 1\n"
        "conntrack: 5\n"
        "detectLocalMode: BridgeInterface\n"
        "loggng: {format: json}\n"
    )
    with pytest.raises(ConfigError) as refused:
        load(
            {"cluster_cidr": "10.0.0.0", "iptables_min_sync_period": "2m"},
            {"ONENTH_DISPACH": "tree", "ONENTH_NODE_IP": "host"},
            file,
        )
    assert set(refused.value.problems) == {
        "iptables.masqueradeBit (line 4): 32 is not from 0 to 31",
        "iptables.minSyncPerod (line 5) is not a key; did you mean iptables.minSyncPeriod?",
        "syncPeriod (line 6) is not a key; did you mean iptables.syncPeriod?",
        "clusterCidr (line 7) is not a key; did you mean clusterCIDR?",
        "frobnicate (line 8) is not a key",
        "loggng (line 11) is not a key; did you mean logging?",
        "conntrack (line 9) must hold keys and values, not 5",
        "ONENTH_DISPACH is not a variable that onenth reads; did you mean ONENTH_DISPATCH?",
        "ONENTH_NODE_IP: 'host' is not an IP address",
        "--cluster-cidr: '10.0.0.0' is not a range such as \"10.244.0.0/16\"",
        "iptables.minSyncPeriod 2m0s is longer than iptables.syncPeriod 30s",
        "detectLocalMode BridgeInterface needs detectLocal.bridgeInterface",
    }
    assert refused.value.exit_code == 2
    assert str(refused.value).count("\n  - ") == 12


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "is not YAML"),
        ("- a\n- b\n", "does not hold keys and values"),
        ("a: 1\n---\nb: 2\n", "is not YAML"),
        ("apiVersion: v1\nkind: ConfigMap\n", "is not a configuration that onenth reads"),
        ("apiVersion: onenth.dev/v1\n", "apiVersion onenth.dev/v1, kind None is not"),
        (OURS + "dispatch: flat\ndispatch: tree\n", "dispatch is set twice, in lines 3 and 4"),
        (OURS + "manifests: &a [*a]\n", "is not a list of words"),
        (OURS + "iptables: &a {ipvs: *a}\n", "iptables.ipvs (line 3) is not a key"),
        (OURS + "yes: 1\n", "True is not a key"),
    ],
)
def test_odd_files_are_refused_in_words(text: str, complaint: str, write: Write) -> None:
    """A file that is no configuration is refused with the reason, whatever it holds."""
    with pytest.raises(ConfigError) as refused:
        load({}, {}, write(text))
    assert any(complaint in problem for problem in refused.value.problems)


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    """A configuration file that was asked for must be there."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load({}, {}, tmp_path / "absent.yaml")


def test_a_binary_file_is_a_problem(tmp_path: Path) -> None:
    """A file that is no text is refused, not a traceback."""
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load({}, {}, file)


def test_an_empty_file_changes_nothing(write: Write) -> None:
    """A file with nothing but comments is legal."""
    assert load({}, {}, write("# nothing\n")).config == defaults()


def test_the_kubelets_service_variables_are_no_mistakes() -> None:
    """Variables that the kubelet makes for a Service called onenth or onenth-metrics pass."""
    loaded = load(
        {},
        {
            "ONENTH_SERVICE_HOST": "10.0.0.1",
            "ONENTH_SERVICE_PORT": "80",
            "ONENTH_PORT": "tcp://10.0.0.1:80",
            "ONENTH_METRICS_SERVICE_PORT_HTTP": "10249",
            "ONENTH_METRICS_PORT_10249_TCP_ADDR": "10.0.0.1",
        },
    )
    assert loaded.config == defaults()


def test_no_variable_of_ours_looks_like_the_kubelets() -> None:
    """No Service, however it is called, can set one of our variables by being there."""
    endings = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT", "_PROTO", "_ADDR")
    assert not [one.env for one in SETTINGS if one.env.endswith(endings)]
    assert len({one.env for one in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"NODE_NAME": "node-a"}, "node-a"),
        ({"NODE_NAME": "node-a", "ONENTH_HOSTNAME_OVERRIDE": "node-b"}, "node-b"),
        ({"NODE_NAME": ""}, ""),
        ({"HOSTNAME": "node-c"}, ""),
    ],
)
def test_the_node_name_is_given_or_absent(env: dict[str, str], name: str) -> None:
    """The name comes from our variable, then NODE_NAME, and never from the host's name."""
    assert load({}, env).config.hostname_override == name


def test_one_origin_of_objects_the_more_important_word_wins(write: Write) -> None:
    """A flag for manifests sets the file's kubeconfig aside, which is reported."""
    loaded = load({"manifests": ("a",)}, {}, write("clientConnection: {kubeconfig: k}\n"))
    assert loaded.config.manifests == ("a",)
    assert loaded.config.client_connection.kubeconfig == ""
    assert len(loaded.ignored) == 1
    assert "clientConnection.kubeconfig (file) gives way to manifests (flag)" in loaded.ignored[0]


def test_two_origins_of_the_same_rank_are_a_problem() -> None:
    """Nobody can tell which of two flags was meant."""
    with pytest.raises(ConfigError, match="are both set; give one of them"):
        load({"manifests": ("a",), "kubeconfig": "k"}, {})


@pytest.mark.parametrize(
    ("healthz", "metrics", "clash"),
    [
        ("127.0.0.1:80", "127.0.0.1:80", True),
        ("0.0.0.0:80", "127.0.0.1:80", True),
        ("127.0.0.1:80", "[::]:80", True),
        ("127.0.0.1:80", "127.0.0.2:80", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("", "127.0.0.1:80", False),
    ],
)
def test_two_servers_need_two_addresses(healthz: str, metrics: str, *, clash: bool) -> None:
    """A port that both servers want on one address is found before either fails to bind."""
    flags = {"healthz_bind_address": healthz, "metrics_bind_address": metrics}
    if clash:
        with pytest.raises(ConfigError, match="are both on port 80"):
            load(flags, {})
    else:
        assert load(flags, {}).config.healthz_bind_address == healthz


def test_an_ipv6_bind_address_makes_the_servers_ipv6() -> None:
    """As in kube-proxy, the servers' defaults follow bindAddress; a given address does not."""
    config = load({"bind_address": "2001:db8::7", "metrics_bind_address": ":1"}, {}).config
    assert config.healthz_bind_address == "[::]:10256"
    assert config.metrics_bind_address == "[::]:1"
    assert config.node_ips == ("2001:db8::7",)


def test_node_ip_comes_before_bind_address() -> None:
    """nodeIP is the clearer word for the node's addresses."""
    config = load({"bind_address": "192.0.2.1", "node_ip": ("192.0.2.2", "fd00::2")}, {}).config
    assert config.node_ips == ("192.0.2.2", "fd00::2")


def test_what_is_printed_can_be_read_again(write: Write) -> None:
    """A configuration written as a file of ours is the same configuration."""
    flags = {
        "ip_families": ("IPv6", "IPv4"),
        "iptables_sync_period": "1m0.5s",
        "nodeport_addresses": ("192.0.2.0/24", "fd00::/64"),
        "metrics_bind_address": "",
        "masquerade_all": "true",
        "hostname_override": "node-a",
    }
    config = load(flags, {}).config
    again = load({}, {}, write(yaml.safe_dump(as_document(config)))).config
    assert isinstance(again, Config)
    assert again == config
    assert again.ip_families == (Family.V6, Family.V4)
