"""Objects as no honest client writes them, as strategies for property tests.

Mostly what honest people write, so that what is odd gets far, with anything at all in between.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fakes.cluster import NODE

#: Text that would be a rule, a line, an option or a shell's if it got anywhere.
EVIL = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "\n",
            "\x00",
            '"',
            "\\",
            "a\nCOMMIT\n*nat\n-F",
            'x" -j ACCEPT -m comment --comment "',
            "-j DROP",
            "$(reboot)",
            "../../etc",
            "10.0.0.1 -j ACCEPT",
            "10.96.0.1",
            "010.0.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "127.0.0.1",
            "::",
            "::ffff:10.0.0.1",
            "fe80::1%eth0",
            "0.0.0.0/0",
            "10.0.0.0/33",
            "None",
            "Local",
            "TCP",
            "SCTP",
            "ClientIP",
            "LoadBalancer",
            "NodePort",
            "ExternalName",
            "IPv4",
            "IPv6",
            "FQDN",
            "VIP",
            "http",
            "web",
            "good",
            "\u202eevil",
            "é" * 300,
            "a" * 63,
        ]
    ),
    st.text(max_size=20),
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 80, 30080, 65535, 65536, -1, 2**31, 2**63, 2**64, 10**30]),
    st.integers(),
)
#: Anything that JSON can say.
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(allow_nan=False), EVIL),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(EVIL, inner, max_size=2)),
    max_leaves=4,
)


def spiced(honest: Any, evil: st.SearchStrategy[Any] = EVIL) -> st.SearchStrategy[Any]:
    """What honest people write, more often than not."""
    good = honest if isinstance(honest, st.SearchStrategy) else st.sampled_from(honest)
    return st.one_of(good, good, good, evil)


def mostly(honest: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What the field's type allows, absent, or (rarely) anything at all."""
    return st.integers(0, 99).flatmap(
        lambda dice: JUNK if dice == 0 else st.none() if dice < 10 else honest
    )


def fields(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={name: mostly(strategy) for name, strategy in strategies.items()}
    )


TEXTS = st.lists(EVIL, max_size=3)
META = st.fixed_dictionaries({"name": st.just("evil"), "namespace": st.just("shop")})
PORT_NUMBERS = spiced([80, 443, 8080], NUMBERS)
PORT_NAMES = spiced(["http", "alt", ""])
ADDRESSES = st.lists(spiced(["198.51.100.7", "2001:db8::7", "203.0.113.9"]), max_size=3)
RANGES = st.lists(spiced(["198.51.100.0/24", "2001:db8::/32", "192.0.2.0/25"]), max_size=3)
PROTOCOLS = spiced(["TCP", "UDP", "SCTP"])
POLICIES = spiced(["Local", "Cluster"])
PORTS = st.lists(
    st.fixed_dictionaries(
        {"port": PORT_NUMBERS},
        optional={
            "name": PORT_NAMES,
            "protocol": PROTOCOLS,
            "nodePort": spiced([30080, 30443, 0], NUMBERS),
        },
    ),
    min_size=1,
    max_size=3,
)
SERVICES = st.fixed_dictionaries(
    {
        "metadata": META,
        "spec": st.builds(
            lambda ip, ports, rest: {"clusterIP": ip, "ports": ports, **rest},
            spiced(["10.96.0.66", "fd00:10:96::66"]),
            mostly(PORTS),
            fields(
                type=spiced(["ClusterIP", "NodePort", "LoadBalancer"]),
                clusterIPs=st.lists(spiced(["10.96.0.66", "fd00:10:96::66"]), max_size=2),
                ipFamilies=st.lists(spiced(["IPv4", "IPv6"]), max_size=2),
                externalIPs=ADDRESSES,
                loadBalancerSourceRanges=RANGES,
                externalTrafficPolicy=POLICIES,
                internalTrafficPolicy=POLICIES,
                healthCheckNodePort=spiced([30999], NUMBERS),
                sessionAffinity=spiced(["ClientIP", "None"]),
                sessionAffinityConfig=fields(
                    clientIP=fields(timeoutSeconds=spiced([60, 10800], NUMBERS))
                ),
            ),
        ),
        "status": fields(
            loadBalancer=fields(
                ingress=st.lists(
                    fields(ip=spiced(["203.0.113.1", "2001:db8::1"]), ipMode=spiced(["VIP"])),
                    max_size=3,
                )
            )
        ),
    }
)
BELONGING = st.just({"kubernetes.io/service-name": "evil"})
SLICES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["evil-1", "evil-2"]),
                "namespace": st.just("shop"),
                "labels": spiced(BELONGING, st.dictionaries(EVIL, EVIL, max_size=2)),
            }
        ),
        "addressType": spiced(["IPv4", "IPv6"]),
        "ports": mostly(
            st.lists(
                fields(name=PORT_NAMES, port=PORT_NUMBERS, protocol=PROTOCOLS),
                min_size=1,
                max_size=3,
            )
        ),
        "endpoints": mostly(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "addresses": st.lists(
                            spiced(["10.0.0.7", "10.0.0.8", "fd00::7"]), min_size=1, max_size=2
                        )
                    },
                    optional={
                        "conditions": fields(
                            ready=st.booleans(), serving=st.booleans(), terminating=st.booleans()
                        ),
                        "nodeName": spiced([NODE, "node-b"]),
                        "hints": fields(forZones=st.lists(fields(name=EVIL), max_size=2)),
                    },
                ),
                max_size=3,
            )
        ),
    }
)
NODES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": st.just(NODE)}),
        "spec": fields(podCIDR=EVIL, podCIDRs=TEXTS, taints=st.lists(fields(key=EVIL), max_size=2)),
        "status": fields(addresses=st.lists(fields(type=EVIL, address=EVIL), max_size=3)),
    }
)
