from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What would be paid for on every node, and is of no use there.
HEAVY = (
    "oauthlib",
    "pyroute2",
    "requests",
    "rich",
    "sqlite3",
    "unittest",
    "websocket",
)
SCRIPT = """
import sys
from pathlib import Path
import agent.cli, agent.daemon
import agent.cluster.events, agent.cluster.kube, agent.cluster.manifests
from agent.cluster.client import make_client
folder = Path(sys.argv[1])
(folder / "token").write_text("secret")
(folder / "ca.crt").write_text("")
import os
os.environ |= {"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBERNETES_SERVICE_PORT": "443"}
try:
    make_client(None, service_account=folder)
except OSError as error:  # the authority is empty
    print(type(error).__name__)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_pod_imports_nothing_heavy(tmp_path: Path) -> None:
    """What the daemon needs in a pod leaves out what costs megabytes, and has the client."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = done.stdout.split()

    assert {"agent", "kubernetes", "urllib3"} <= set(imported)
    assert [name for name in HEAVY if name in imported] == []
