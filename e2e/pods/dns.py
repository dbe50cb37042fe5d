"""A DNS server for tests: answers every A question with 192.0.2.53, and TXT with its own name.

Sent as source (``python -c SOURCE NAME PORT``), and it imports the standard library alone.
"""

import selectors
import socket
import struct
import sys

NAME, PORT = sys.argv[1].encode(), int(sys.argv[2])
TYPE_A, TYPE_TXT = 1, 16


def answer(query: bytes) -> bytes:
    number, _, questions = struct.unpack("!HHH", query[:6])
    if questions != 1:
        raise ValueError("not one question")
    end = 12
    while query[end]:
        end += query[end] + 1
    kind = struct.unpack("!H", query[end + 1 : end + 3])[0]
    data = bytes((192, 0, 2, 53)) if kind == TYPE_A else bytes((len(NAME),)) + NAME
    head = struct.pack("!HHHHHH", number, 0x8580, 1, 1, 0, 0)
    record = struct.pack("!HHHIH", 0xC00C, kind, 1, 5, len(data)) + data
    return head + query[12 : end + 5] + record


def main() -> None:
    selector = selectors.DefaultSelector()
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        server = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind((address, PORT))
        selector.register(server, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            listener: socket.socket = key.fileobj  # type: ignore[assignment]
            query, peer = listener.recvfrom(4096)
            try:
                listener.sendto(answer(query), peer)
            except (ValueError, IndexError, struct.error):
                continue


main()
