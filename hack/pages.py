"""``python hack/pages.py ADDRESS PORT FOLDER``: a web server.

Unlike ``python -m http.server`` it does not ask for the name of its address, which takes many
seconds where the machine's name server cannot be reached, as in a network namespace.
"""

from __future__ import annotations

import functools
import sys
from http.server import SimpleHTTPRequestHandler
from socketserver import ThreadingTCPServer


class Server(ThreadingTCPServer):
    """May take an address again that it has just had."""

    allow_reuse_address = True
    daemon_threads = True


def main() -> None:
    """Serve until a signal."""
    address, port, folder = sys.argv[1:]
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    with Server((address, int(port)), handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
