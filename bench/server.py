"""The fake API server with a made-up cluster, as a process of its own.

``python -m bench.server SERVICES ENDPOINTS KUBECONFIG`` prints its address when it serves, and ends
with its input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench import objects
from tests.fakes.apiserver import FakeAPIServer, write_kubeconfig


def main() -> None:
    """Serve until the end of the input."""
    services, endpoints, kubeconfig = sys.argv[1:]
    with FakeAPIServer() as server:
        server.put(objects.node(), *objects.cluster(int(services), int(endpoints)))
        write_kubeconfig(Path(kubeconfig), server)
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
