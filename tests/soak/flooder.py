"""``python -m tests.soak.flooder ADDRESS PORT PATH CONNECTIONS``: as many exchanges as will go.

Without a path it only connects and says nothing. Runs until it is ended, and prints how many
exchanges came to their end each second.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time

_PAUSE = 0.002


class Flooder:
    """So many connections to one port at a time; each that ends is followed by another."""

    def __init__(self, address: str, port: int, path: str, connections: int) -> None:
        self._where = (address, port)
        self._request = f"GET {path} HTTP/1.1\r\nHost: flood\r\n\r\n".encode() if path else b""
        self._selector = selectors.DefaultSelector()
        self._wanted = connections
        self.ended = 0

    def run(self) -> None:
        """Flood."""
        said = time.monotonic()
        while True:
            while len(self._selector.get_map()) < self._wanted:
                self._open()
            for key, _ in self._selector.select(_PAUSE):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                self._serve(sock, sending=bool(key.data))
            if time.monotonic() - said >= 1:
                said += 1
                sys.stdout.write(f"{self.ended}\n")
                sys.stdout.flush()
                self.ended = 0

    def _open(self) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(0)
        sock.connect_ex(self._where)
        events = selectors.EVENT_WRITE if self._request else selectors.EVENT_READ
        self._selector.register(sock, events, bool(self._request))

    def _serve(self, sock: socket.socket, *, sending: bool) -> None:
        with contextlib.suppress(OSError):
            if sending:
                sock.send(self._request)
                self._selector.modify(sock, selectors.EVENT_READ, data=False)
                return
            if sock.recv(1 << 16):
                return
        self._selector.unregister(sock)
        sock.close()
        self.ended += 1


if __name__ == "__main__":
    os.nice(19)  # what floods a node is not on the node: it must not take its processor
    address, port, path, connections = sys.argv[1:]
    Flooder(address, int(port), path, int(connections)).run()
