"""The Services of a run: those that nothing touches, and those that change all the while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.demo.testbed import CLIENT_IPS, NODE_IPS
from tests.faults.traffic import Target
from tests.kernel.shapes import OTHER_NODE, endpoint, endpoint_slice, port, service

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from agent.demo.testbed import Pod
    from tests.kernel.shapes import Object

NODE_PORT, LOCAL_NODE_PORT = 30080, 30090
_PROTOCOL_PORT = {"tcp": 80, "udp": 53}
_LB = ("203.0.113.10", "2001:db8:1::10")
_FAMILIES = ("v4", "v6")
#: Services that come, go and change; what is behind them need not exist.
CHURNED = tuple(f"churn-{number}" for number in range(8))


def _ips(number: int) -> tuple[str, str]:
    return f"10.96.0.{number}", f"fd00:96::{number:x}"


def untouched(pods: Sequence[Pod]) -> list[Object]:
    """Services that must answer whatever happens; ``pods`` are three here and one elsewhere."""
    far = pods[3]
    ranges = [f"{CLIENT_IPS[0]}/32", f"{CLIENT_IPS[1]}/128"]
    sticky = {"clientIP": {"timeoutSeconds": 600}}
    services = [
        service("web", *_ips(1), ports=[port(node_port=NODE_PORT)], type="NodePort"),
        service("sticky", *_ips(2), sessionAffinity="ClientIP", sessionAffinityConfig=sticky),
        service(
            "balanced",
            *_ips(3),
            ports=[port(node_port=LOCAL_NODE_PORT)],
            ingress=_LB,
            externalTrafficPolicy="Local",
            type="LoadBalancer",
            loadBalancerSourceRanges=ranges,
        ),
        service("dns", *_ips(4), ports=[port(53, protocol="UDP")]),
        service("empty", *_ips(5)),
        service("remote", *_ips(6)),
    ]
    behind: dict[str, Sequence[Pod]] = {
        "web": (pods[0], pods[1], far), "sticky": pods[:2], "balanced": pods[:2],
        "dns": pods[:3], "remote": (far,),
    }  # fmt: skip
    slices = [
        endpoint_slice(
            name,
            *(endpoint(pod.ips[n], OTHER_NODE if pod.remote else "node-1") for pod in served),
            suffix=_FAMILIES[n],
            ports=[{"name": "", "port": 8080, "protocol": "UDP" if name == "dns" else "TCP"}],
        )
        for name, served in behind.items()
        for n in (0, 1)
    ]
    return [*services, *slices]


def targets(pods: Sequence[Pod], families: Sequence[int]) -> Iterator[Target]:
    """Who connects to what; ``families`` are 0 for IPv4 and 1 for IPv6."""
    here = tuple(pod.name for pod in pods[:3])
    far = pods[3].name
    for n in families:

        def to(
            name: str, place: str, address: str, number: int, *who: str, n: int = n, held: int = 0,
            protocol: str = "tcp",
        ) -> Target:  # fmt: skip
            label = f"{name} from {place} {_FAMILIES[n]}"
            return Target(label, place, address, number, who, protocol, held)

        yield to("web", "client", _ips(1)[n], 80, *here[:2], far, held=3)
        yield to("web", "pod", _ips(1)[n], 80, *here[:2], far, held=2)
        yield to("web", "node", _ips(1)[n], 80, *here[:2], far)
        yield to("node port", "client", NODE_IPS[n], NODE_PORT, *here[:2], far, held=2)
        yield to("sticky", "client", _ips(2)[n], 80, *here[:2], held=1)
        yield to("balanced", "client", _LB[n], 80, *here[:2], held=2)
        yield to("local node port", "client", NODE_IPS[n], LOCAL_NODE_PORT, *here[:2])
        yield to("dns", "client", _ips(4)[n], 53, *here, protocol="udp")
        yield to("dns", "pod", _ips(4)[n], 53, *here, protocol="udp")
        if n == 0:  # over IPv6 a SYN that is refused takes the kernel a second to tell
            yield to("empty", "client", _ips(5)[n], 80, "refused")
        yield to("remote", "pod", _ips(6)[n], 80, far, held=1)


def churn(rng: random.Random, present: set[str]) -> tuple[list[Object], list[tuple[str, str]]]:
    """Some changes of Services that nobody connects to: objects to put, and to delete.

    One Service of each family changes at least, so every churn asks for a sync of both.
    """
    put: list[Object] = []
    gone: list[tuple[str, str]] = []
    for name in rng.sample(CHURNED, rng.randint(1, 3)):
        number = CHURNED.index(name)
        if name in present and rng.random() < 0.25:
            gone += [("Service", name), *(("EndpointSlice", f"{name}-{f}") for f in _FAMILIES)]
            present.discard(name)
            continue
        present.add(name)
        kind = rng.choice(["ClusterIP", "ClusterIP", "NodePort"])
        ports = [port(node_port=31000 + number if kind == "NodePort" else 0)]
        ips = f"10.96.1.{number + 1}", f"fd00:96:1::{number + 1:x}"
        put.append(service(name, *ips, ports=ports, type=kind))
        put += _random_slices(rng, name)
    mark = rng.randrange(1 << 16)
    pods = f"10.65.{mark >> 8}.{mark & 255}", f"fd00:10:65::{mark:x}"
    put.append(service("always", "10.96.2.1", "fd00:96:2::1"))
    put += [endpoint_slice("always", endpoint(pods[n]), suffix=_FAMILIES[n]) for n in (0, 1)]
    return put, gone


def _random_slices(rng: random.Random, name: str) -> Iterator[Object]:
    numbers = [rng.randint(1, 250) for _ in range(rng.choice([0, 1, 2, 5]))]
    for n in (0, 1):
        ips = [(f"10.66.0.{number}", f"fd00:10:66::{number:x}")[n] for number in set(numbers)]
        ends = [endpoint(ip, "node-1") for ip in ips]
        yield endpoint_slice(name, *ends, suffix=_FAMILIES[n], family=("IPv4", "IPv6")[n])
