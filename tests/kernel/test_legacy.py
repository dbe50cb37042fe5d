from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kernel.detect import Backend
from agent.kernel.legacy import read_chain_names
from agent.state.values import Family
from tests.kernel.inside import legacy_tables

if TYPE_CHECKING:
    from agent.demo.namespaces import Namespace

COMMANDS = {Family.V4: "iptables", Family.V6: "ip6tables"}


@pytest.mark.parametrize("family", Family)
def test_chains_are_read_as_the_program_lists_them(namespace: Namespace, family: Family) -> None:
    """Names of a table's chains; a table that does not exist is empty and is not made."""
    pytest.importorskip("iptc", reason="python-iptables (extra legacy) is not installed")
    argv = [Backend.LEGACY.program, COMMANDS[family], "-t", "nat"]
    namespace.run([*argv, "-N", "KUBE-SERVICES"])
    built_in = {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}
    other = Family.V6 if family is Family.V4 else Family.V4

    assert namespace.call(read_chain_names, family, "nat") == built_in | {"KUBE-SERVICES"}
    assert namespace.call(read_chain_names, family, "filter") == set()
    assert namespace.call(read_chain_names, other, "nat") == set()
    assert legacy_tables(namespace, "ip" if family is Family.V4 else "ip6") == ["nat"]
