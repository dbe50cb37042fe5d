"""A resolver that asks one DNS server over and over from the same UDP port.

Sent as source (``python -c``). Options are one JSON object: ``address``, ``name``, ``interval``,
``timeout`` (of one try), ``tries``, ``limit``. A question that no try answers is a failure. The
same source port all the time is the worst case for a proxy: the connection table remembers where
such a flow went, and would go on sending it to a pod that is gone. Ends when standard input says
something or ends; the report is one JSON object: ``answered``, ``failures``, ``retried``, ``gap``.
"""

import json
import select
import socket
import struct
import sys
import time

OPTIONS = json.loads(sys.argv[1])


def question(number: int, name: str) -> bytes:
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.strip(".").split("."))
    return struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"


def ask(connection: socket.socket, number: int) -> int:
    """How many tries it took; 0 if none was answered."""
    query = question(number, OPTIONS["name"])
    for attempt in range(1, OPTIONS["tries"] + 1):
        end = time.monotonic() + OPTIONS["timeout"]
        try:
            connection.send(query)
            while (left := end - time.monotonic()) > 0:
                if not select.select([connection], [], [], left)[0]:
                    break
                reply = connection.recv(4096)
                if reply[:2] == query[:2]:
                    return attempt
        except OSError:  # an ICMP error of the try before: as good as no answer, and not sooner
            time.sleep(max(0.0, end - time.monotonic()))
    return 0


def main() -> None:
    family = socket.AF_INET6 if ":" in OPTIONS["address"] else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_DGRAM)
    connection.connect((OPTIONS["address"], 53))
    begin = last = time.monotonic()
    answered = retried = number = 0
    gap = 0.0
    failures = []
    while time.monotonic() - begin < OPTIONS["limit"]:
        if select.select([sys.stdin], [], [], 0)[0]:
            break
        number = number % 65535 + 1
        took = ask(connection, number)
        now = time.monotonic()
        if took:
            if not answered:
                print("started", flush=True)
            answered += 1
            retried += took > 1
            gap = max(gap, now - last)
            last = now
        else:
            failures.append(round(now - begin, 3))
        time.sleep(OPTIONS["interval"])
    print(json.dumps({"answered": answered, "failures": failures, "retried": retried, "gap": gap}))


main()
