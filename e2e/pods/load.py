"""Load from inside a pod: who answered, and what failed, and when.

It ends when standard input says something or ends. Sent as source (``python -c``), so that it
runs in any image with Python, and it imports nothing else. Options are one JSON object:
``address``, ``port``, ``protocol`` (tcp, udp), ``held`` (connections that stay open and keep
asking), ``interval`` (seconds between new connections), ``timeout`` (seconds for one), ``limit``
(seconds after which it ends by itself).
The report is one JSON object: ``answers`` and ``held_answers`` per name of the server,
``failures`` as [seconds since the start, what], ``seconds``, and ``gap``, the longest time
without any answer. ``started`` is printed at the first answer.
"""

import asyncio
import collections
import ipaddress
import json
import os
import socket
import sys
import time
from typing import Any


class Load:
    def __init__(self, options: dict[str, Any]) -> None:
        self.address: str = options["address"]
        self.port: int = options["port"]
        self.udp = options.get("protocol", "tcp") == "udp"
        self.interval: float = options.get("interval", 0.02)
        self.timeout: float = options.get("timeout", 5.0)
        self.limit: float = options.get("limit", 300.0)
        self.held: int = options.get("held", 0)
        self.answers: collections.Counter[str] = collections.Counter()
        self.held_answers: collections.Counter[str] = collections.Counter()
        self.failures: list[tuple[float, str]] = []
        self.begin = self.last = time.monotonic()
        self.gap = 0.0
        self.ended = asyncio.Event()

    def note(self, line: bytes, counter: "collections.Counter[str]") -> None:
        now = time.monotonic()
        if not self.answers and not self.held_answers:
            print("started", flush=True)
        self.gap = max(self.gap, now - self.last)
        self.last = now
        counter[line.decode(errors="replace").split()[0]] += 1

    def fail(self, what: str, error: BaseException) -> None:
        self.failures.append((round(time.monotonic() - self.begin, 3), f"{what}: {error!r}"))

    async def connect(self) -> socket.socket:
        version = ipaddress.ip_address(self.address).version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        made = socket.socket(family, socket.SOCK_DGRAM if self.udp else socket.SOCK_STREAM)
        made.settimeout(0)
        try:
            async with asyncio.timeout(self.timeout):
                loop = asyncio.get_running_loop()
                await loop.sock_connect(made, (self.address, self.port))
        except BaseException:
            made.close()
            raise
        return made

    async def ask(self, connection: socket.socket) -> bytes:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self.timeout):
            await loop.sock_sendall(connection, b"who\n")
            data = b""
            while not data.endswith(b"\n"):
                more = await loop.sock_recv(connection, 4096)
                if not more:
                    raise ConnectionResetError("closed by the server")
                data += more
        return data

    async def once(self) -> None:
        try:
            with await self.connect() as connection:
                self.note(await self.ask(connection), self.answers)
        except OSError as error:
            self.fail("new", error)

    async def hold(self) -> None:
        try:
            with await self.connect() as connection:
                while not self.ended.is_set():
                    self.note(await self.ask(connection), self.held_answers)
                    await asyncio.sleep(0.2)
        except OSError as error:
            self.fail("held", error)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, self.watch_input)
        loop.call_later(self.limit, self.ended.set)
        tasks = {asyncio.create_task(self.hold()) for _ in range(self.held)}
        while not self.ended.is_set():
            tasks.add(asyncio.create_task(self.once()))
            tasks = {task for task in tasks if not task.done()}
            await asyncio.sleep(self.interval)
        await asyncio.gather(*tasks)
        self.gap = max(self.gap, time.monotonic() - self.last)
        report = {
            "answers": self.answers,
            "held_answers": self.held_answers,
            "failures": self.failures,
            "seconds": time.monotonic() - self.begin,
            "gap": self.gap,
        }
        print(json.dumps(report), flush=True)

    def watch_input(self) -> None:
        os.read(sys.stdin.fileno(), 4096)
        asyncio.get_running_loop().remove_reader(sys.stdin)
        self.ended.set()


async def main() -> None:
    await Load(json.loads(sys.argv[1])).run()


asyncio.run(main())
