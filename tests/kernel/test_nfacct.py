from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.kernel import nfacct
from agent.kernel.detect import Backend
from agent.kernel.errors import NetlinkError
from agent.kernel.nfacct import Counter

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.demo.namespaces import Namespace

NAME = "ct_state_invalid_dropped_pkts"
READ = """
from agent.kernel import nfacct
from agent.kernel.errors import PrivilegeError
try:
    nfacct.ensure("made")
except PrivilegeError as error:
    print(error)
"""


def test_a_counter_is_made_read_and_removed(namespace: Namespace) -> None:
    """A new counter is 0, is listed, and can be deleted once; an unknown one is None."""
    namespace.call(nfacct.ensure, NAME)
    namespace.call(nfacct.ensure, "b" * nfacct.NAME_MAX)

    assert namespace.call(nfacct.read, NAME) == Counter(0, 0)
    assert namespace.call(nfacct.read, "unknown") is None
    assert set(namespace.call(nfacct.read_all)) == {NAME, "b" * nfacct.NAME_MAX}
    assert namespace.call(nfacct.delete, NAME) is True
    assert namespace.call(nfacct.delete, NAME) is False
    assert set(namespace.call(nfacct.read_all)) == {"b" * nfacct.NAME_MAX}


@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize("command", ["iptables", "ip6tables"])
def test_packets_are_counted_as_the_nfacct_program_says(
    namespace: Namespace, backend: Backend, command: str
) -> None:
    """Three datagrams that a rule matches count as 3; making the counter again keeps that."""
    namespace.call(nfacct.ensure, NAME)
    rule = ["-p", "udp", "--dport", "9", "-m", "nfacct", "--nfacct-name", NAME, "-j", "DROP"]
    namespace.run([backend.program, command, "-A", "OUTPUT", *rule])
    target = "127.0.0.1" if command == "iptables" else "::1"
    send = (
        "import contextlib, ipaddress, socket, sys\n"
        "a = ipaddress.ip_address(sys.argv[1])\n"
        "s = socket.socket(socket.AF_INET if a.version == 4 else socket.AF_INET6, 2)\n"
        "for _ in range(3):\n"
        "    with contextlib.suppress(OSError):\n"
        "        s.sendto(b'1234', (sys.argv[1], 9))\n"
    )
    namespace.run([sys.executable, "-c", send, target])
    namespace.call(nfacct.ensure, NAME)
    listed = namespace.run(["nfacct", "get", NAME]).stdout
    packets, size = map(int, re.findall(r"= (\d+)", listed))

    header = 28 if command == "iptables" else 48
    assert namespace.call(nfacct.read, NAME) == Counter(3, 3 * (header + 4))
    assert (packets, size) == (3, 3 * (header + 4))
    assert namespace.call(nfacct.read_all) == {NAME: Counter(packets, size)}


def test_a_counter_in_use_cannot_be_deleted(namespace: Namespace) -> None:
    """As long as a rule names it, deleting is refused with the name of the counter."""
    namespace.call(nfacct.ensure, NAME)
    match = ["-m", "nfacct", "--nfacct-name", NAME]
    namespace.run([Backend.NFT.program, "iptables", "-A", "OUTPUT", *match])

    with pytest.raises(NetlinkError, match=f"deleting nfacct counter {NAME}.*busy"):
        namespace.call(nfacct.delete, NAME)


def test_counters_belong_to_their_namespace(make_namespace: Callable[[], Namespace]) -> None:
    """What one namespace counts with, another does not have."""
    one, other = make_namespace(), make_namespace()
    one.call(nfacct.ensure, NAME)

    assert other.call(nfacct.read_all) == {}


def test_missing_privilege_is_told(namespace: Namespace) -> None:
    """Without CAP_NET_ADMIN the error names the capability, and no counter is made."""
    root = str(Path(nfacct.__file__).parents[2])
    said = namespace.popen(
        ["setpriv", "--bounding-set", "-all", sys.executable, "-c", READ],
        stdout=-1,
        env=os.environ | {"PYTHONPATH": root},
    ).communicate(timeout=20)[0]

    assert "capability NET_ADMIN" in said
    assert namespace.call(nfacct.read_all) == {}
