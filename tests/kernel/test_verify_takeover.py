"""``onenth plan`` and ``verify`` on a node that kube-proxy runs: the proof for a takeover.

Needs kube-proxy itself, as ``test_takeover`` does; ``tests/unit/test_inspect_verify.py`` has the
same for written-down states, everywhere.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from agent.demo.testbed import CLUSTER_CIDRS, Testbed
from tests.fakes.apiserver import write_kubeconfig
from tests.kernel import test_takeover
from tests.kernel.running import BACKENDS, ROOT, serve_api, until
from tests.kernel.shapes import NODE
from tests.kernel.test_takeover import KubeProxy, put_services

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = test_takeover.pytestmark


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plan_for_kube_proxys_node_has_no_changes(backend: str, tmp_path: Path) -> None:
    """In both families, with its own API server and configuration; and all is sound."""
    with Testbed(pods=3, remote_pods=1) as bed, serve_api(bed.node) as api:
        put_services(api, bed)
        proxy = KubeProxy(bed, api, backend, tmp_path)
        proxy.start()
        flags = ["--kubeconfig", str(write_kubeconfig(tmp_path / "kubeconfig", api))]
        flags += ["--node-name", NODE, "--cluster-cidr", ",".join(CLUSTER_CIDRS), "-o", "json"]

        def onenth(*argv: str) -> tuple[int, dict[str, object]]:
            command = [
                "env",
                "-u",
                "ONENTH_KUBE_PROXY",
                f"PYTHONPATH={ROOT}",
                sys.executable,
                "-m",
                "agent",
                *argv,
                *flags,
            ]
            done = bed.node.run(command, check=False, timeout=60)
            assert done.returncode in {0, 1}, done.stderr
            return done.returncode, json.loads(done.stdout)

        # kube-proxy says that it has synced before its canaries are all there.
        until(lambda: onenth("verify")[0] == 0, 20, lambda: onenth("verify")[1])
        status, plan = onenth("plan")
        proxy.stop()

    assert status == 0, plan
    assert not plan["changes"]
    assert {one["family"] for one in plan["families"]} == {"IPv4", "IPv6"}  # type: ignore[attr-defined]  # a list of objects
