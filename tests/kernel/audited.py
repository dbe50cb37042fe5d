"""``python -m agent`` whose opened files, started programs and sockets are written down.

Python tells audit hooks of these before they happen (PEP 578), whoever asks: the agent, a library
or the import system. Each is a line of JSON in the file that ``AUDITED`` names.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

#: Any way to start a program, to touch a file, or to make code of text.
EVENTS = frozenset(
    {
        "compile", "exec", "open", "os.chmod", "os.exec", "os.fork", "os.link", "os.mkdir",
        "os.posix_spawn", "os.remove", "os.rename", "os.spawn", "os.symlink", "os.system",
        "pty.spawn", "shutil.rmtree", "socket.bind", "socket.connect", "subprocess.Popen",
    }
)  # fmt: skip


def watch(path: str) -> None:
    """Write down everything from here on."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS:
            plain = [arg if isinstance(arg, list | dict) else str(arg) for arg in args]
            os.write(log, (json.dumps([event, *plain], default=str) + "\n").encode())

    sys.addaudithook(hook)


if __name__ == "__main__":
    watch(os.environ["AUDITED"])
    from agent.cli import main

    main()
