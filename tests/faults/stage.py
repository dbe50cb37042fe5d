"""Where runs take place: the network, its servers and its traffic, made once for many runs."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

import trustme

from agent.demo import namespaces
from agent.demo.namespaces import Namespace
from agent.demo.testbed import Testbed
from tests.faults.clock import Clock
from tests.faults.oracle import Oracle
from tests.faults.tools import Tools
from tests.faults.traffic import Traffic

if TYPE_CHECKING:
    from agent.demo.testbed import Pod


@dataclasses.dataclass(frozen=True)
class Certificates:
    """Of the API server: what the agent trusts, and chains with their keys."""

    authority: Path
    first: tuple[Path, Path]
    renewed: tuple[Path, Path]
    stranger: tuple[Path, Path]


class Stage:
    """A context manager.

    Attributes:
        folder: for files; a small file system of its own, so that it can be full.
        bed: the network.
        traffic: the process that connects.
        clock: what time it is for the agent.
        tools: what stands for ``/usr/sbin`` where the agent runs.
        certificates: of the API server.
        oracle: knows what the kernel should hold.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self.bed: Testbed
        self.traffic: Traffic
        self.oracle: Oracle

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            kept = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onenth-faults-")))
            self.tools = Tools(kept)
            self.clock = Clock(kept)
            self.certificates = _certificates(kept)
            self.bed = stack.enter_context(Testbed(pods=4, remote_pods=1))
            for namespace in (self.bed.node, self.bed.client):
                _answer_all(namespace)
            self.bed.serve(protocols=("tcp", "udp"))
            scratch = Namespace.create(namespaces.owned_name("scratch"))
            stack.callback(scratch.close)
            self.oracle = Oracle(scratch, self.bed.node)
            places = {
                "client": self.bed.client,
                "node": self.bed.node,
                "pod": self.bed.pods[3].namespace,
            }
            self.traffic = stack.enter_context(Traffic(places))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Three pods of the node, and one elsewhere."""
        return (*self.bed.pods[:3], *self.bed.remote_pods)


def _certificates(folder: Path) -> Certificates:
    def make(authority: trustme.CA, name: str) -> tuple[Path, Path]:
        made = authority.issue_cert("127.0.0.1", "localhost")
        chain, key = folder / f"{name}.pem", folder / f"{name}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(key))
        return chain, key

    trusted, stranger = trustme.CA(), trustme.CA()
    trusted.cert_pem.write_to_path(str(folder / "ca.pem"))
    return Certificates(
        folder / "ca.pem",
        make(trusted, "first"),
        make(trusted, "renewed"),
        make(stranger, "stranger"),
    )


def _answer_all(namespace: Namespace) -> None:
    """Let the kernel send any number of ICMP errors, so that a refusal is always told."""
    namespace.write_sysctl("net/ipv4/icmp_ratemask", 1 << 30)
    namespace.write_sysctl("net/ipv6/icmp/ratemask", 255)
