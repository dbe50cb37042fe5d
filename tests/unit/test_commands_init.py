from __future__ import annotations

from typing import TYPE_CHECKING

from agent.commands.init import prepare
from agent.config.load import load
from agent.kernel.sysctl import ROUTE_LOCALNET, Result, Sysctls

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = {
    "conntrack_max_per_core": "0",
    "conntrack_tcp_timeout_established": "0s",
    "conntrack_tcp_timeout_close_wait": "0s",
    "conntrack_tcp_be_liberal": "true",
}
_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"


def _root(path: Path, **values: int) -> Sysctls:
    for name in (_LIBERAL, ROUTE_LOCALNET):
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{values.get(target.name, 0)}\n")
    return Sysctls(path)


def test_it_writes_what_the_configuration_asks_for(tmp_path: Path) -> None:
    """A setting that is asked for is written; route_localnet, which is there, is kept."""
    root = _root(tmp_path, route_localnet=1)
    outcomes = prepare(load(_FLAGS, {}).config, sysctls=root, modules=root)
    assert [(one.name, one.wanted, one.result) for one in outcomes] == [
        (_LIBERAL, 1, Result.WRITTEN),
        (ROUTE_LOCALNET, 1, Result.KEPT),
    ]
    assert (tmp_path / _LIBERAL).read_text() == "1\n"


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    """What is there already is kept, so a pod that starts again does no harm."""
    root = _root(tmp_path, route_localnet=1, nf_conntrack_tcp_be_liberal=1)
    outcomes = prepare(load(_FLAGS, {}).config, sysctls=root, modules=root)
    assert {one.result for one in outcomes} == {Result.KEPT}


def test_without_node_ports_on_localhost_route_localnet_is_left_alone(tmp_path: Path) -> None:
    """The setting weakens a host, so it is not touched when nothing needs it."""
    flags = {**_FLAGS, "iptables_localhost_nodeports": "false"}
    outcomes = prepare(load(flags, {}).config, sysctls=_root(tmp_path), modules=_root(tmp_path))
    assert ROUTE_LOCALNET not in {one.name for one in outcomes}
    assert (tmp_path / ROUTE_LOCALNET).read_text() == "0\n"


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A setting that cannot be written is an outcome with a reason, not a crash."""
    outcomes = prepare(load(_FLAGS, {}).config, sysctls=Sysctls(tmp_path), modules=None)
    assert {one.result for one in outcomes} == {Result.REFUSED}
    assert all("No such file" in one.reason for one in outcomes)
