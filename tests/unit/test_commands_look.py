"""The command line of what looks inside: verify, explain, plan, on saved dumps."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from agent.cli import cli
from tests.fakes.cluster import service
from tests.fakes.dumps import Broken, rules_for, sample_store, saved

if TYPE_CHECKING:
    from collections.abc import Sequence

SOUND = saved(rules_for(sample_store()))
LOOKING = ("verify", "explain", "plan", "top", "status")


def onenth(*argv: str, stdin: str | None = None) -> Result:
    """Run a command."""
    return CliRunner().invoke(cli, list(argv), input=stdin)


def narrow(text: str) -> bool:
    """Whether all lines fit a terminal."""
    return all(len(line) <= 80 for line in text.splitlines())


@pytest.fixture(name="dump")
def _dump(tmp_path: Path) -> str:
    path = tmp_path / "saved.txt"
    path.write_text(SOUND, "utf-8")
    return str(path)


def manifests(folder: Path, *, ready: Sequence[bool] = (True, True, True), **spec: Any) -> str:
    """A folder with the Service shop/web of the sample, and nothing else."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "type": "NodePort",
            "clusterIP": "10.96.0.1",
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
            **spec,
        },
    }
    endpoints = [
        {"addresses": [ip], "conditions": {"ready": is_ready}, "nodeName": "node-b"}
        for ip, is_ready in zip(("10.64.0.1", "10.64.0.2", "10.64.1.3"), ready, strict=True)
    ]
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "shop",
            "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints,
    }
    folder.mkdir(exist_ok=True)
    text = yaml.safe_dump_all([service, endpoint_slice])
    (folder / "web.yaml").write_text(text, "utf-8")
    return str(folder)


def agent_flags(folder: str) -> tuple[str, ...]:
    """What the sample's agent was configured with."""
    cidr = ("--cluster-cidr", "10.64.0.0/16")
    return ("--manifests", folder, "--node-name", "node-a", *cidr, "--node-ip", "192.0.2.10")


# verify --------------------------------------------------------------------------------------


def test_a_sound_dump_ends_with_status_0(dump: str) -> None:
    """And says what was looked at."""
    result = onenth("verify", "--from-file", dump)

    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "sound"
    assert "IPv4" in result.output
    assert "5 service ports" in result.output


def test_a_dump_with_faults_ends_with_status_1(tmp_path: Path) -> None:
    """The finding is named as Service, chain and rule, with what it should be, in 80 columns."""
    broken = Broken(SOUND)
    broken.replace("0.33333333349", "0.25000000000", within="-A KUBE-SVC-67NZL.*0.33")
    path = tmp_path / "broken.txt"
    path.write_text(str(broken), "utf-8")
    result = onenth("verify", "--from-file", str(path))

    assert result.exit_code == 1
    assert (
        "shop/web:http\n  IPv4 nat KUBE-SVC-67NZLRHBNDSAWJRO rule 2 [probability]" in result.output
    )
    assert "it matches with 1/4 instead of 1/3" in result.output
    assert "should be: probability 1/3" in result.output
    assert result.output.splitlines()[-1] == "1 finding"
    assert narrow(result.output.replace(str(path), "saved.txt"))
    assert "\x1b" not in result.output


def test_findings_are_cut_with_their_number() -> None:
    """--limit 0 shows all."""
    broken = Broken(SOUND)
    broken.drop_all("-j KUBE-MARK-MASQ")
    few = onenth("verify", "--from-file", "-", "--limit", "2", stdin=str(broken))
    all_of_them = onenth("verify", "--from-file", "-", "--limit", "0", stdin=str(broken))

    assert few.output.count("  IPv4 ") == 2
    assert "more (--limit 0 shows all)" in few.output
    assert all_of_them.output.count("  IPv4 ") > 10


def test_json_holds_everything() -> None:
    """For programs; the same exit status."""
    broken = Broken(SOUND)
    broken.drop("-A PREROUTING .*KUBE-SERVICES")
    result = onenth("verify", "--from-file", "-", "-o", "json", stdin=str(broken))
    found = json.loads(result.stdout)

    assert result.exit_code == 1
    assert (found["sound"], found["compared"]) == (False, "")
    assert [one["kind"] for one in found["findings"]] == ["jump-missing"]
    assert found["looked"][0]["services"] == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello\n", "line 1: 'hello' is nothing that iptables-save prints"),
        (SOUND[:-20], "it has been cut short"),
        ("*nat\n:A - [0:0]\n-A A -j\nCOMMIT\n", "line 3: the rule ends behind '-j'"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "plan", "explain"])
def test_what_is_no_dump_ends_with_status_2(
    command: str, text: str, why: str, tmp_path: Path
) -> None:
    """Every command says that it could not look, and at which line."""
    target = ["shop/web"] if command == "explain" else []
    flags = agent_flags(manifests(tmp_path / "m"))
    result = onenth(command, *target, "--from-file", "-", *flags, stdin=text)

    assert result.exit_code == 2
    assert "could not look: the standard input: " in result.output
    assert why in result.output


def test_a_file_that_is_not_there_ends_with_status_2() -> None:
    """With its name; so does one that is no text."""
    result = onenth("verify", "--from-file", "/nowhere/at/all")

    assert result.exit_code == 2
    assert "/nowhere/at/all cannot be read: No such file" in result.output


def test_a_binary_file_ends_with_status_2(tmp_path: Path) -> None:
    """It is not text."""
    path = tmp_path / "binary"
    path.write_bytes(b"*nat\n\xff\xfe")
    result = onenth("verify", "--from-file", str(path))

    assert result.exit_code == 2
    assert "is not text: byte 5 is not UTF-8" in result.output


def test_manifests_are_compared_with(tmp_path: Path, dump: str) -> None:
    """What is in the kernel and in no manifest is found, with exit status 1."""
    flags = agent_flags(manifests(tmp_path / "m"))
    result = onenth("verify", "--from-file", dump, *flags, "-o", "json")
    found = json.loads(result.stdout)

    assert result.exit_code == 1
    assert found["compared"] == "the manifests"
    services = {one["service"] for one in found["findings"] if one["kind"] == "service-unexpected"}
    assert services == {"shop/api:http", "shop/dns:dns", "shop/empty:http", "shop/sticky:http"}


def test_manifests_that_are_not_there_end_with_status_2(dump: str) -> None:
    """They are part of what could not be looked at."""
    result = onenth("verify", "--from-file", dump, "--manifests", "/nowhere")

    assert result.exit_code == 2
    assert "/nowhere does not exist" in result.output


def test_an_api_server_that_does_not_answer_ends_with_status_2(dump: str, tmp_path: Path) -> None:
    """A kubeconfig that is not there is said to be that."""
    result = onenth("verify", "--from-file", dump, "--kubeconfig", str(tmp_path / "none"))

    assert result.exit_code == 2
    assert "could not look: kubeconfig" in result.output


# explain -------------------------------------------------------------------------------------


def test_a_service_is_explained_as_a_tree(dump: str) -> None:
    """Each rule that decided, exact fractions, and what becomes of the connection."""
    result = onenth("explain", "shop/web", "--from-file", dump, "--from", "outside")
    text = result.output.replace(dump, "saved.txt")

    assert result.exit_code == 0
    assert narrow(text)
    assert "shop/web:http = 10.96.0.1:80/tcp, from outside (203.0.113.7)" in text
    assert "also reached by node port 30080/tcp" in text
    assert text.count("├─ 1/3\n") == 3
    assert "nat KUBE-MARK-MASQ rule 1: the packet's mark becomes 0x4000" in text
    assert "--probability 1/2" in text
    assert "0.5" not in text
    assert text.count("1/3  passes to 10.64.") == 3
    assert "masqueraded" in text.splitlines()[-1]


def test_affinity_is_one_line(dump: str) -> None:
    """What it would do, and for how long."""
    result = onenth("explain", "shop/sticky", "--from-file", dump)

    assert "├─ if the client is remembered for 10800 s: the endpoint that it had" in result.output


def test_a_drop_names_the_rule(dump: str) -> None:
    """By which rule, and with which words."""
    result = onenth("explain", "198.51.100.2:80", "--from-file", dump)

    assert "= is dropped by filter KUBE-PROXY-FIREWALL rule 1" in result.output
    assert "shop/api:http traffic not accepted by" in result.output


def test_node_ports_are_numbers(dump: str) -> None:
    """From outside, unless told otherwise; the protocol comes from the rules."""
    result = onenth("explain", "30080", "--from-file", dump)

    assert "shop/web:http = node port 30080/tcp, from outside" in result.output
    assert "1/3  passes to" in result.output


@pytest.mark.parametrize("sender", ["pod", "node", "outside", "10.64.0.1", "192.0.2.10"])
def test_every_sender_is_walked(dump: str, sender: str) -> None:
    """The chances add up to one, whoever sends."""
    result = onenth(
        *("explain", "shop/web:http", "--from-file", dump, "--from", sender, "-o", "json"),
        *("--node-address", "192.0.2.10"),
    )
    (found,) = json.loads(result.stdout)

    assert [one["chance"] for one in found["outcomes"]] == ["1/3"] * 3
    masqueraded = {one["masqueraded"] for one in found["outcomes"]}
    assert (
        masqueraded
        == {
            "pod": {False},
            "node": {True},
            "outside": {True},
            "10.64.0.1": {True, False},
            "192.0.2.10": {True},
        }[sender]
    )


def test_a_file_does_not_tell_the_nodes_source(dump: str) -> None:
    """It is assumed, which is said with how to give it; an address that was given is not."""
    target = ("explain", "shop/web:http", "--from", "node")
    assumed = onenth(*target, "--from-file", "-", stdin=SOUND)
    given = onenth(
        *("explain", "shop/web:http", "--from-file", dump, "--from", "192.0.2.10"),
        *("--node-address", "192.0.2.10"),
    )

    assert "The node's source address is assumed" in assumed.output
    assert "--node-address ADDR --from ADDR" in " ".join(assumed.output.split())
    assert "from this node (192.0.2.10)" in given.output
    assert "assumed" not in given.output
    assert narrow(assumed.output)


def test_a_service_without_endpoints_says_why(tmp_path: Path) -> None:
    """From the slices: here, nobody is ready."""
    flags = agent_flags(manifests(tmp_path / "m", ready=(False, False, False)))
    rendered = onenth("render", *flags, "--family", "IPv4").output
    result = onenth("explain", "shop/web", "--from-file", "-", *flags, stdin=rendered)

    assert "= is rejected by filter KUBE-SERVICES rule 1" in result.output
    assert "No endpoint, because: 3 endpoints are not ready" in result.output


def test_a_local_policy_without_a_local_endpoint_says_why(tmp_path: Path) -> None:
    """All endpoints are on another node."""
    flags = agent_flags(manifests(tmp_path / "m", internalTrafficPolicy="Local"))
    rendered = onenth("render", *flags, "--family", "IPv4").output
    result = onenth("explain", "shop/web", "--from-file", "-", *flags, stdin=rendered)

    assert "= is dropped by" in result.output
    assert "internalTrafficPolicy is Local, and none of its 3 endpoints is on node-a" in " ".join(
        result.output.split()
    )


def test_a_target_that_nobody_knows_ends_with_status_1(dump: str) -> None:
    """With what may have been meant."""
    result = onenth("explain", "shop/wab", "--from-file", dump)

    assert result.exit_code == 1
    assert "no rule names shop/wab; did you mean" in result.output


def test_a_target_that_only_the_manifests_know_says_so(tmp_path: Path) -> None:
    """It should have rules, and has none."""
    flags = agent_flags(manifests(tmp_path / "m"))
    without = saved(rules_for(sample_store("web")))
    result = onenth("explain", "shop/web", "--from-file", "-", *flags, stdin=without)

    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "According to the manifests, shop/web:http should have rules for it in IPv4" in said
    assert "IPv6" not in said


@pytest.mark.parametrize("target", ["shop/web", "30080", "10.96.0.1:80"])
def test_a_kernel_without_rules_of_services_is_told(target: str) -> None:
    """That is what is wrong, and not the target."""
    result = onenth("explain", target, "--from-file", "-", stdin="*nat\n:INPUT ACCEPT\nCOMMIT\n")

    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "there are no rules of a Service proxy in IPv4, the standard input" in said
    assert narrow(result.output)


def test_the_address_of_an_endpoint_is_told(dump: str) -> None:
    """No rule is for it, but it is no stranger: the Services are named that it serves."""
    result = onenth("explain", "10.64.0.1:8080", "--from-file", dump)

    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "It is an endpoint of shop/api:http, shop/sticky:http, shop/web:http" in said
    assert "It is an endpoint" not in onenth("explain", "10.64.0.1:1", "--from-file", dump).output


@pytest.mark.parametrize("target", ["10.96.0.99:80", "[fd00::1]:80", "30099", "10.96.0.1:81"])
def test_an_address_that_no_rule_knows_ends_with_status_1(dump: str, target: str) -> None:
    """Its packets are walked all the same."""
    result = onenth("explain", target, "--from-file", dump)

    assert result.exit_code == 1
    assert "1  passes to where it is addressed" in result.output
    assert "No rule of a Service is for" in result.output


def test_an_address_that_only_the_manifests_know_says_so(tmp_path: Path) -> None:
    """By its cluster IP and by its node port; one that nobody has is told apart."""
    flags = agent_flags(manifests(tmp_path / "m"))
    without = saved(rules_for(sample_store("web")))

    for target in ("10.96.0.1:80", "30080"):
        result = onenth("explain", target, "--from-file", "-", *flags, stdin=without)
        said = " ".join(result.output.split())
        assert result.exit_code == 1
        assert "According to the manifests, shop/web:http should have rules" in said
    result = onenth("explain", "10.96.0.1:81", "--from-file", "-", *flags, stdin=without)
    assert "According to the manifests, no Service has it" in result.output


def test_a_node_port_on_an_address_of_the_node(dump: str) -> None:
    """A file does not tell which addresses are the node's; said, the Service is found."""
    target = ("explain", "192.0.2.10:30080", "--from-file", dump)
    unsaid, told = onenth(*target), onenth(*target, "--node-address", "192.0.2.10")

    assert unsaid.exit_code == 1
    assert "say --node-address 192.0.2.10" in " ".join(unsaid.output.split())
    assert told.exit_code == 0
    assert "shop/web:http = 192.0.2.10:30080/tcp" in told.output


def test_a_sender_that_source_ranges_keep_out_is_told_which_they_are(dump: str) -> None:
    """Of the load balancer; nothing is said to one that they let in."""
    kept_out, let_in = (
        onenth("explain", "198.51.100.2:80", "--from", sender, "--from-file", dump)
        for sender in ("203.0.113.9", "192.0.2.9")
    )

    assert "203.0.113.9 is in none of the source ranges: 192.0.2.0/24" in kept_out.output
    assert "source ranges" not in let_in.output


def test_a_port_that_a_service_does_not_have_is_told(tmp_path: Path, dump: str) -> None:
    """With those that it has."""
    flags = agent_flags(manifests(tmp_path / "m"))
    result = onenth("explain", "shop/web:https", "--from-file", dump, *flags)

    assert result.exit_code == 1
    assert "it has no port https; its ports: http (80)" in result.output


@pytest.fixture(name="dns")
def _dns(tmp_path: Path) -> str:
    """Rules of a Service with one number in two protocols, and ports named like numbers."""
    store = sample_store()
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53},
        {"name": "9153", "port": 80},
        {"name": "metrics", "port": 9153},
    ]
    store.replace_services([service("dns", "10.96.0.5", ports=ports)])
    path = tmp_path / "dns.txt"
    path.write_text(saved(rules_for(store)), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("argv", "heading"),
    [
        (("shop/dns:9153",), "shop/dns:9153 = 10.96.0.5:80/tcp"),
        (("shop/dns:80",), "shop/dns:9153 = 10.96.0.5:80/tcp"),
        (("shop/dns:metrics",), "shop/dns:metrics = 10.96.0.5:9153/tcp"),
        (("shop/dns:53", "--proto", "udp"), "shop/dns:dns = 10.96.0.5:53/udp"),
        (("shop/dns:53", "--proto", "tcp"), "shop/dns:dns-tcp = 10.96.0.5:53/tcp"),
        (("shop/dns:dns",), "shop/dns:dns = 10.96.0.5:53/udp"),
    ],
)
def test_a_port_is_named_or_numbered(dns: str, argv: Sequence[str], heading: str) -> None:
    """A name wins over a number, and --proto decides where a number is not enough."""
    result = onenth("explain", *argv, "--from-file", dns)

    assert result.exit_code == 0, result.output
    assert result.output.startswith(heading)
    assert result.output.count(" = 10.96.0.5") == 1


def test_a_number_in_two_protocols_is_asked_back(dns: str) -> None:
    """With what there is to choose from; a protocol that has no such port is unknown."""
    result = onenth("explain", "shop/dns:53", "--from-file", dns)

    assert result.exit_code == 2
    assert "shop/dns:53 is more than one port" in result.output
    assert "udp (shop/dns:dns), tcp (shop/dns:dns-tcp); --proto says which" in result.output
    assert onenth("explain", "shop/dns:53", "--proto", "sctp", "--from-file", dns).exit_code == 1


def test_a_number_of_a_port_without_a_name(tmp_path: Path) -> None:
    """Such a port can be told from others by its number alone."""
    store = sample_store()
    store.replace_services([service("web", "10.96.0.1", ports=[{"port": 80}])])
    path = tmp_path / "saved.txt"
    path.write_text(saved(rules_for(store)), "utf-8")
    result = onenth("explain", "shop/web:80", "--from-file", str(path))

    assert result.exit_code == 0
    assert result.output.startswith("shop/web = 10.96.0.1:80/tcp")
    assert onenth("explain", "shop/web:81", "--from-file", str(path)).exit_code == 1


def test_a_number_that_only_the_manifests_know_says_so(tmp_path: Path) -> None:
    """As it is for a name."""
    path = tmp_path / "saved.txt"
    path.write_text(saved(rules_for(sample_store("web"))), "utf-8")
    flags = agent_flags(manifests(tmp_path / "m"))
    result = onenth("explain", "shop/web:80", "--from-file", str(path), *flags)

    assert result.exit_code == 1
    assert "shop/web:http should have rules for it" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "target", ["web", "1.2.3.4", "1.2.3.4:0", "[::1]", "70000", "1.2.3.4:80/icmp", ""]
)
def test_what_is_no_target_ends_with_status_2(dump: str, target: str) -> None:
    """A mistake in the command."""
    assert onenth("explain", target, "--from-file", dump).exit_code == 2


def test_a_sender_of_the_other_family_is_refused(dump: str) -> None:
    """IPv6 does not send to an IPv4 address."""
    result = onenth("explain", "shop/web", "--from", "2001:db8::1", "--from-file", dump)

    assert result.exit_code == 2
    assert "2001:db8::1 is not an IPv4 address" in result.output


# plan ----------------------------------------------------------------------------------------


def test_no_changes_ends_with_status_0(tmp_path: Path) -> None:
    """What was rendered is what would be written."""
    flags = agent_flags(manifests(tmp_path / "m"))
    rendered = onenth("render", *flags, "--family", "IPv4").output
    result = onenth("plan", "--from-file", "-", *flags, stdin=rendered)

    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "Plan: no changes."
    assert "  no changes: the rules are those that the agent would write\n" in result.output
    assert "kernel" not in result.output


def test_changes_are_grouped_by_service(tmp_path: Path, dump: str) -> None:
    """What comes, what goes, what changes; in words, within 80 columns."""
    flags = agent_flags(manifests(tmp_path / "m", ready=(True, True, False)))
    result = onenth("plan", "--from-file", dump, *flags)
    text = result.output.replace(dump, "saved.txt")

    assert result.exit_code == 1
    assert narrow(text)
    assert "  ~ shop/web\n" in text
    assert "      - endpoint 10.64.1.3:8080" in text
    assert "      ~ share of each endpoint: 1/3 -> 1/2" in text
    assert "  - shop/dns\n" in text
    assert "      - cluster IP 10.96.0.5:53/udp" in text
    assert text.splitlines()[-1] == "Plan: Services: 0 to add, 1 to change, 4 to remove."


def test_diff_shows_the_rules(tmp_path: Path, dump: str) -> None:
    """As the kernel has them, and as they would be."""
    flags = agent_flags(manifests(tmp_path / "m", ready=(True, True, False)))
    result = onenth("plan", "--from-file", dump, *flags, "--diff")

    assert "- nat KUBE-SEP-43AHXAV7RWTHCVFD" in result.output
    assert "        - -s 10.64.1.3/32 -m comment" in result.output
    assert '        + -m comment --comment "shop/web:http -> 10.64.0.2:8080"' in result.output


def test_an_empty_kernel_gets_everything(tmp_path: Path) -> None:
    """A plan for a fresh node."""
    flags = agent_flags(manifests(tmp_path / "m"))
    empty = "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"
    result = onenth("plan", "--from-file", "-", "-o", "json", *flags, stdin=empty)
    (family,) = json.loads(result.stdout)["families"]
    groups = {group["service"]: group for group in family["plan"]["groups"]}

    assert groups["shop/web"]["act"] == "+"
    texts = {item["text"] for item in groups["shop/web"]["items"]}
    assert {"cluster IP 10.96.0.1:80/tcp", "node port 30080/tcp"} <= texts
    assert any("KUBE-MARK-MASQ" in item["text"] for item in groups[""]["items"])


# the node ------------------------------------------------------------------------------------


def node(folder: str, name: str) -> None:
    """Put a Node among manifests."""
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    Path(folder, "node.yaml").write_text(text, "utf-8")


@pytest.mark.parametrize("command", [("verify",), ("plan",), ("explain", "shop/web")])
def test_a_guessed_node_that_is_not_there_is_a_warning(
    tmp_path: Path, dump: str, command: tuple[str, ...]
) -> None:
    """With what follows and the flag that helps; standard output stays what it was."""
    folder = manifests(tmp_path / "m")
    node(folder, "node-a")
    look = (*command, "--from-file", dump, "--manifests", folder)

    guessed = onenth(*look)
    wrong = onenth(*look, "--node-name", "node-b")
    right = onenth(*look, "--node-name", "node-a")

    said = " ".join(guessed.stderr.split())
    assert said.startswith("warning: no --node-name is given, and there is no Node ")
    assert "which endpoints are local" in said
    assert said.endswith("give --node-name; there is node-a")
    said = " ".join(wrong.stderr.split())
    assert said.startswith("warning: there is no Node node-b in the manifests: its zone")
    assert narrow(guessed.stderr + wrong.stderr)
    assert right.stderr == ""
    assert "warning" not in guessed.stdout


def test_a_guess_that_is_right_is_no_warning(
    tmp_path: Path, dump: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many nodes are called as their machine."""
    folder = manifests(tmp_path / "m")
    node(folder, "my-machine")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "My-Machine", "", "", "")))

    assert onenth("verify", "--from-file", dump, "--manifests", folder).stderr == ""


def test_without_services_no_node_is_needed(dump: str) -> None:
    """The rules are checked by themselves."""
    assert onenth("verify", "--from-file", dump).stderr == ""


# help and completion -------------------------------------------------------------------------


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_help_has_an_example_and_fits(command: str) -> None:
    """Eighty columns, and at least one line to copy."""
    result = onenth(command, "--help")

    assert result.exit_code == 0
    assert f"Example: onenth {command}" in result.output or "| onenth" in result.output
    assert narrow(result.output)


def _examples() -> list[str]:
    """The words behind ``onenth`` of each example of each command."""
    lines = [
        line.partition("Example: ")[2]
        for command in cli.commands.values()
        for line in (command.help or "").splitlines()
        if "Example: " in line
    ]
    return sorted(line.partition("onenth ")[2].partition(" > ")[0] for line in lines)


@pytest.mark.parametrize("example", _examples())
def test_every_example_is_a_command(example: str) -> None:
    """Its options exist and take these values."""
    name, *words = shlex.split(example)
    command = cli.commands[name]

    with command.make_context(name, words):
        pass


_OF_FILES = ("saved.txt", "render --manifests ./")


@pytest.mark.parametrize(
    "example", [one for one in _examples() if any(word in one for word in _OF_FILES)]
)
def test_examples_that_need_no_node_run(
    example: str, dump: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with the files that they name."""
    manifests(tmp_path / "manifests")
    (tmp_path / "saved.txt").write_text(Path(dump).read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)

    result = onenth(*shlex.split(example))

    assert result.exit_code == 0, result.output
    assert result.output


@pytest.mark.parametrize("command", LOOKING)
def test_the_group_lists_every_command(command: str) -> None:
    """With the beginning of its help."""
    assert f"\n  {command} " in onenth("--help").output


@pytest.mark.parametrize(
    "argv",
    [
        ("top", "--once", "--interval", "-1"),
        ("verify", "--limit", "-1"),
        ("status", "--timeout", "0"),
        ("probe", "readyz", "--timeout", "-1"),
        ("demo", "--connections", "0"),
    ],
)
def test_numbers_that_make_no_sense_are_usage_errors(argv: tuple[str, ...]) -> None:
    """With the range that does, and before anything is done."""
    result = onenth(*argv)

    assert result.exit_code == 2
    assert f"Invalid value for '{argv[-2]}': {argv[-1]}" in result.stderr
    assert " is not in the range x>" in result.stderr


def test_every_summary_is_whole() -> None:
    """The list of commands cuts off none."""
    listed = onenth("--help").output.partition("Commands:\n")[2]

    assert len(listed.splitlines()) == len(cli.commands)
    assert all(line.endswith(".") and not line.endswith("..") for line in listed.splitlines())


def test_every_option_says_what_it_does() -> None:
    """Of every command."""
    silent = [
        (name, option.opts)
        for name, command in cli.commands.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]

    assert silent == []
