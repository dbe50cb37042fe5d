"""Docker: the daemon (started if there is none), the base image, and the project's image.

Nothing is pulled. Where there is no ``debian:trixie-slim``, debootstrap makes it from Debian's
packages and it gets that name, so that what is built is the project's own Dockerfile. Such a base
also carries this machine's settings for apt and pip and its certificates, without which a build
could not reach the registries in the way that this machine does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agent import __version__
from e2e.shell import CommandError, run, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
STATE = Path("/var/cache/onenth-e2e")
RUN = Path("/run/onenth-e2e")
BASE = "debian:trixie-slim"
IMAGE = f"onenth:{__version__}"
#: The same, with another digest: what an upgrade goes to.
NEXT = f"onenth:{__version__}-next"
_SOCKET = f"unix://{RUN}/docker.sock"
#: It must not touch the machine's own netfilter tables, addresses and sysctls.
_DAEMON = (
    "dockerd", "--host", _SOCKET, "--data-root", f"{STATE}/docker", "--exec-root", f"{RUN}/exec",
    "--pidfile", f"{RUN}/docker.pid", "--bridge=none", "--iptables=false", "--ip6tables=false",
    "--ip-masq=false", "--ip-forward=false",
)  # fmt: skip
#: What a slim Debian image lacks, as in Debian's own images of that name.
_SLIM = (
    "usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian",
    "var/cache/apt", "var/lib/apt/lists", "var/log",
)  # fmt: skip
_CAP_SYS_RESOURCE = 24


class NoDockerError(Exception):
    """Docker cannot be had here; the message says why."""


class DockerError(Exception):
    """Docker is here and does not work; the message says why."""


class Docker:
    """A Docker daemon.

    Attributes:
        started: it was started here and ends with ``stop``.
    """

    def __init__(self) -> None:
        self.env = dict(os.environ)
        self._daemon: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def started(self) -> bool:
        """Whether it was started here."""
        return self._daemon is not None

    def start(self) -> None:
        """Find a daemon that answers, or start one.

        Raises:
            NoDockerError: neither is possible here.
            DockerError: the one that was started ended.
        """
        if shutil.which("docker") is None:
            raise NoDockerError("there is no docker command; install docker.io")
        if self._answers():
            return
        self.env["DOCKER_HOST"] = _SOCKET
        self._wait_for_others()
        if self._answers():  # of a run that was killed
            return
        if os.geteuid() != 0 or shutil.which("dockerd", path=_path()) is None:
            raise NoDockerError("no Docker daemon answers, and starting one takes root and dockerd")
        STATE.mkdir(parents=True, exist_ok=True)
        with (RUN / "dockerd.log").open("wb") as log:
            self._daemon = subprocess.Popen(
                _DAEMON, stdout=log, stderr=log, env={**os.environ, "PATH": _path()},
                start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + 60
        while not self._answers():
            if self._daemon.poll() is not None or time.monotonic() > end:
                self.stop()
                raise DockerError(f"dockerd does not come up; {RUN}/dockerd.log says why")
            time.sleep(0.2)

    def _wait_for_others(self) -> None:
        """Wait until no other run has a daemon of this kind: it would end with that run.

        The lock is this process's until it ends.
        """
        if os.geteuid() == 0:
            RUN.mkdir(parents=True, exist_ok=True)
            self._lock = (RUN / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _answers(self) -> bool:
        return run("docker", "info", env=self.env, check=False, timeout=30).returncode == 0

    def stop(self) -> None:
        """End the daemon, if it was started here."""
        if self._daemon is not None:
            self._daemon.terminate()
            try:
                self._daemon.wait(30)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
            self._daemon = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def forget(self) -> None:
        """Leave the daemon running at the end."""
        self._daemon = None

    def __call__(self, *argv: str, **options: Any) -> str:
        """Run a docker command; returns what it prints.

        Raises:
            CommandError: it failed.
        """
        return run("docker", *argv, env=self.env, **options).stdout

    @property
    def command(self) -> tuple[str, ...]:
        """How a command begins that reaches this daemon whatever environment it runs in."""
        host = self.env.get("DOCKER_HOST")
        return ("docker", "--host", host) if host else ("docker",)

    def inspect(self, name: str) -> dict[str, Any]:
        """Everything about a container, an image or a network."""
        found: dict[str, Any] = json.loads(self("inspect", name))[0]
        return found

    def has_image(self, name: str) -> bool:
        """Whether an image of that name is there."""
        return run("docker", "image", "inspect", name, env=self.env, check=False).returncode == 0

    def has_container(self, name: str) -> bool:
        """Whether a container of that name is there."""
        argv = ("docker", "container", "inspect", name)
        return run(*argv, env=self.env, check=False).returncode == 0

    def build(self) -> None:
        """Build the project's image from its Dockerfile, and a next one from that."""
        if not self.has_image(BASE) and shutil.which("debootstrap", path=_path()):
            self._make_base()
        # A build needs this machine's network: a daemon that was started here has no other.
        common = ("build", "--quiet", "--network", "host")
        # kind cannot load an image that brings attestations beside itself.
        self.env["BUILDX_NO_DEFAULT_ATTESTATIONS"] = "1"
        self(
            *common, "--tag", IMAGE, "--build-arg", f"VERSION={__version__}",
            "--build-arg", f"REVISION={_revision()}", str(ROOT), timeout=900,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "Dockerfile").write_text(f"FROM {IMAGE}\nLABEL onenth.dev/next=true\n")
            self(*common, "--tag", NEXT, folder)

    def _make_base(self) -> None:
        with tempfile.TemporaryDirectory(dir=STATE if STATE.exists() else None) as folder:
            tree = Path(folder, "tree")
            mirror = os.environ.get("ONENTH_DEBIAN_MIRROR", "")
            run(
                "debootstrap", "--variant=minbase", "trixie", str(tree), *filter(None, [mirror]),
                timeout=900, env={**os.environ, "PATH": _path()},
            )  # fmt: skip
            for name in _SLIM:
                shutil.rmtree(tree / name, ignore_errors=True)
                (tree / name).mkdir(parents=True, exist_ok=True)
            _copy_settings(tree)
            archive = Path(folder, "base.tar")
            run("tar", "--numeric-owner", "-C", str(tree), "-cf", str(archive), ".", timeout=300)
            self("import", str(archive), BASE, timeout=300)

    def privileged(self) -> tuple[str, ...]:
        """Options that give a container everything that this machine can give.

        ``--privileged`` asks for every capability and fails where this process lacks one, as in
        some virtual machines.
        """
        bounding = int(_status("CapBnd"), 16)
        if bounding >> _CAP_SYS_RESOURCE & 1:
            return ("--privileged",)
        return (
            "--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE",
            "--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined",
        )  # fmt: skip


@contextlib.contextmanager
def docker_running() -> Iterator[Docker]:
    """A daemon for as long as the block lasts."""
    docker = Docker()
    docker.start()
    try:
        yield docker
    finally:
        docker.stop()


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def _status(field: str) -> str:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line.partition(":")[2].strip()
    raise DockerError(f"/proc/self/status has no {field}")


def _revision() -> str:
    try:
        return run("git", "-C", str(ROOT), "rev-parse", "HEAD").stdout.strip()
    except CommandError:
        return "unknown"


def _copy_settings(tree: Path) -> None:
    """Give the base this machine's apt and pip settings and its certificates."""
    with contextlib.suppress(CommandError):
        dump = run("apt-config", "dump", "Acquire").stdout.splitlines()
        # Of simple settings only; sections and lists belong to this machine's sources.
        kept = [line for line in dump if "::" in line and not line.endswith(' "";')]
        wanted = ("Proxy", "Check-", "Retries", "Timeout", "ForceIPv")
        lines = [line for line in kept if any(word in line for word in wanted)]
        (tree / "etc/apt/apt.conf.d/90host").write_text("\n".join(lines) + "\n")
    settings = {}
    with contextlib.suppress(CommandError):
        for line in run("pip", "config", "list").stdout.splitlines():
            name, _, value = line.partition("=")
            if name.startswith("global.") and "file:" not in value:
                settings[name.removeprefix("global.")] = value.strip("'\"")
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.is_file():
        # Not in the place of Debian's own: installing ca-certificates would write over it.
        (tree / "etc/ssl").mkdir(exist_ok=True)
        shutil.copy(certificates, tree / "etc/ssl/host-certificates.crt")
        settings["cert"] = "/etc/ssl/host-certificates.crt"
    for name in ("constraint", "find-links", "extra-index-url"):
        settings.pop(name, None)
    lines = [f"{name} = {value}" for name, value in settings.items()]
    (tree / "etc/pip.conf").write_text("[global]\n" + "\n".join(lines) + "\n")
    shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")


def container_pid(docker: Docker, name: str) -> int:
    """Process id of a container's first process, as this machine sees it."""
    pid = int(docker.inspect(name)["State"]["Pid"])
    if pid == 0:
        raise CommandError(f"container {name} does not run")
    return pid


def wait_healthy(docker: Docker, name: str, timeout: float = 60.0) -> None:
    """Wait until a container's HEALTHCHECK passes."""
    wait_for(
        f"{name} healthy",
        lambda: docker.inspect(name)["State"]["Health"]["Status"],
        accept=lambda status: status == "healthy",
        timeout=timeout,
    )
