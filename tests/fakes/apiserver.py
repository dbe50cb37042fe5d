"""A fake Kubernetes API server: real HTTP, real watches, and every way in which those fail.

It serves Services, EndpointSlices and Nodes as an API server does (``store`` says how true it
is) and takes Events. Tests hold it as an object and tell it to misbehave; by itself it serves
a file of manifests, which it reads again when it changes:

    python -m tests.fakes.apiserver --port 8080 --manifests cluster.yaml
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import socket
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from tests.fakes.handler import Fault, Handler, HTTPServer, Plan, Request, State
from tests.fakes.objects import cluster, node
from tests.fakes.store import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FakeAPIServer", "Fault", "Request", "write_kubeconfig"]


class FakeAPIServer(State):
    """The server, on a thread of its own. A context manager; all controls are thread-safe.

    Args:
        port: 0 chooses a free one.
        host: address to listen on.
        window: how many changes of each resource are remembered.
        bookmark_seconds: how often a watch that wants bookmarks gets one.
        token: the bearer token to ask for; None lets everybody in.
        tls: certificate chain and key file for HTTPS.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        window: int = 100_000,
        bookmark_seconds: float = 60.0,
        token: str | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        super().__init__(window, token, bookmark_seconds)
        self._tls: ssl.SSLContext | None = None
        if tls is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*tls)
        self._listen((host, port))
        self._address = (host, self._http.server_address[1])
        self.url = f"{'https' if tls else 'http'}://{host}:{self._address[1]}"

    def _listen(self, address: tuple[str, int]) -> None:
        self._http = HTTPServer(address, Handler)
        self._http.fake = self
        if self._tls is not None:
            # The handshake is the handler thread's, so that one slow client delays nobody.
            self._http.socket = self._tls.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening and end every connection."""
        self.stopping = True
        self._http.shutdown()
        self._http.server_close()
        self.cut()
        self._thread.join()

    def revive(self) -> None:
        """Serve again after ``stop``, at the same address, in the caller's network namespace.

        All that is stored is still there, and the versions go on.
        """
        self.stopping = False
        self._listen(self._address)
        self._thread.start()

    def change_certificate(self, chain: Path, key: Path) -> None:
        """Show another certificate to connections that are made from now on."""
        if self._tls is None:
            raise ValueError("this server does without TLS")
        self._tls.load_cert_chain(chain, key)

    def stop_listening(self) -> None:
        """Give the port back without having served: connections are refused from now on."""
        self._http.server_close()

    def put(self, *objects: dict[str, Any]) -> None:
        """Create or replace objects."""
        for obj in objects:
            self.store.put(obj)

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        """Delete an object."""
        self.store.delete(kind, name, namespace)

    def compact(self) -> None:
        """Make every version but the present one too old to watch from, and tokens too."""
        self.store.compact()

    def cut(self) -> None:
        """End all connections in the middle of whatever they are doing."""
        for connection in list(self.connections):
            self.connections.discard(connection)
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        self._wake()

    def silence(self) -> None:
        """Keep connections and accept new ones, but send nothing more."""
        self.silent = True

    def speak(self) -> None:
        """End a silence."""
        self.silent = False
        self._wake()

    def slip(self, plural: str, raw: bytes, *, then_cut: bool = False) -> None:
        """Send raw bytes into all open watches of a resource, behind all that has happened.

        Perhaps cut them after it.
        """
        with self.store.condition:
            for watch in self.watches:
                if watch.resource.plural == plural:
                    watch.slipped.append(raw)
                    if then_cut:
                        watch.slipped.append(None)
        self._wake()

    def fail(
        self,
        fault: Fault,
        *,
        verb: str = "",
        plural: str = "",
        times: int | None = 1,
        when: Callable[[Request], bool] = lambda _: True,
    ) -> None:
        """Answer the next ``times`` requests that match (None: all) with a fault."""
        with self.store.condition:
            self.plans.append(Plan(fault, verb, plural, times, when))

    def heal(self) -> None:
        """Forget all faults that are still waiting."""
        with self.store.condition:
            self.plans.clear()

    def seen(self, verb: str = "", plural: str = "") -> list[Request]:
        """Return the requests so far that match."""
        return [r for r in list(self.requests) if verb in {"", r.verb} and plural in {"", r.plural}]

    def watching(self, plural: str) -> int:
        """How many watches of a resource are open."""
        with self.store.condition:
            return sum(1 for watch in self.watches if watch.resource.plural == plural)

    def _wake(self) -> None:
        with self.store.condition:
            self.store.condition.notify_all()


class UnreadableError(ValueError):
    """A manifest file that cannot be served; names the file, and the line if there is one."""


def read_manifests(paths: list[Path]) -> list[dict[str, Any]]:
    """Read the objects of YAML or JSON files; lists are unfolded, other kinds left out.

    Raises:
        UnreadableError: a file is not there, not YAML, or has a slip where its objects begin.
    """
    return [obj for path in paths for obj in _read_manifest(path)]


def _read_manifest(path: Path) -> Iterator[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        documents = list(yaml.load_all(path.read_text("utf-8"), Loader=loader))
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UnreadableError(f"{path}{line}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UnreadableError(f"{path}: {error}") from error
    kinds = {resource.kind for resource in RESOURCES}
    for document in filter(None, documents):
        unfolded = document.get("items") if isinstance(document, dict) else None
        for obj in [document] if unfolded is None else unfolded:
            kind = obj.get("kind") if isinstance(obj, dict) else None
            if not isinstance(kind, str):
                raise UnreadableError(f"{path}: {str(obj)[:40]!r} has no kind")
            if kind in kinds:
                if not isinstance(obj.get("metadata"), dict) or not obj["metadata"].get("name"):
                    raise UnreadableError(f"{path}: a {kind} without metadata.name")
                yield obj
            elif meant := difflib.get_close_matches(kind, kinds, cutoff=0.8):
                raise UnreadableError(f"{path}: kind {kind}; did you mean {meant[0]}?")


def serve_manifests(server: FakeAPIServer, paths: list[Path], seconds: float = 0.5) -> None:
    """Keep the server's objects equal to the files', for ever; half an edit changes nothing."""
    seen: list[int] | None = None
    keys: set[tuple[str, str, str]] = set()
    while True:
        stamps = [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]
        if stamps != seen:
            seen = stamps
            try:
                keys = _serve(server, read_manifests(paths), keys)
            except UnreadableError as error:
                sys.stderr.write(f"not served, what was there stays: {error}\n")
                sys.stderr.flush()
        time.sleep(seconds)


def _serve(
    server: FakeAPIServer, objects: list[dict[str, Any]], keys: set[tuple[str, str, str]]
) -> set[tuple[str, str, str]]:
    """Put objects, and delete those of ``keys`` that are none of them; returns the new keys."""
    stored = [(obj["kind"], server.store.put(obj)) for obj in objects]
    now = {(kind, item.namespace, item.name) for kind, item in stored}
    for kind, namespace, name in keys - now:
        server.delete(kind, name, namespace)
    return now


def write_kubeconfig(path: Path, server: FakeAPIServer, **user: str) -> Path:
    """Write a kubeconfig for the server; ``user`` is the user's entry."""
    name = "fake"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": server.url}}],
        "users": [{"name": name, "user": {k.replace("_", "-"): v for k, v in user.items()}}],
    }
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.apiserver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--manifests", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--services", type=int, default=0, help="make up so many Services")
    parser.add_argument("--endpoints", type=int, default=10, help="of so many endpoints each")
    parser.add_argument("--node", default=socket.gethostname(), help="name of the Node to serve")
    parser.add_argument("--token", help="ask for this bearer token")
    parser.add_argument("--write-kubeconfig", type=Path, metavar="FILE")
    args = parser.parse_args()
    with FakeAPIServer(port=args.port, host=args.host, token=args.token) as server:
        server.put(node(args.node), *cluster(args.services, args.endpoints))
        if args.write_kubeconfig:
            user = {"token": args.token} if args.token else {}
            write_kubeconfig(args.write_kubeconfig, server, **user)
        sys.stdout.write(f"serving on {server.url}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            serve_manifests(server, args.manifests)


if __name__ == "__main__":
    main()
