"""Objects from files instead of an API server: the same events, no cluster needed.

What is in the files is the truth, so the dangerous moment is a file that is being written. A
file counts once it has kept still for a moment; one that does not parse, or that became empty,
or cannot be read, leaves what it said last in force and is reported. To take its objects away,
delete the file, or leave a comment in it. Replacing a file by renaming another over it, as
Kubernetes does with mounted ConfigMaps, is never seen half done.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent import logs
from agent.cluster.content import Content, Manifests, Problem, Severity, merge, read_text
from agent.cluster.feed import Rejected, Replaced, SourceFailed
from agent.cluster.objects import Key, Kind, Object

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.cluster.feed import Event

log = logs.get(component=__name__)

_SUFFIXES = (".yaml", ".yml", ".json")
#: A file that was written this recently (ns) may be written again without its times changing.
_RACY_NS = 2_000_000_000
#: How many times in a row files may change while one waits for them to keep still.
_MAX_SETTLING = 20
#: Seconds that ``stop`` waits; reading a large file may take longer, but sends nothing then.
_STOP_SECONDS = 2.0
_IN_FORCE = "what it said last stays in force"


class ManifestError(Exception):
    """A path that was asked for is not there, or cannot be read; says which."""


def load(paths: Sequence[str | Path]) -> Manifests:
    """Read files and folders once; ``-`` is the standard input.

    Of a folder everything below it counts that ends in .yaml, .yml or .json, in order of the
    paths, without what is hidden. An object that is there twice counts as it is the last time.

    Raises:
        ManifestError: a path does not exist or cannot be read.
    """
    contents = []
    for path in paths:
        if str(path) == "-":
            contents.append(read_text("(standard input)", sys.stdin.buffer.read()))
            continue
        for file in _files(Path(path)):
            try:
                contents.append(read_text(str(file), file.read_bytes()))
            except OSError as error:
                raise ManifestError(f"{file} cannot be read: {error.strerror}") from error
    return merge(contents)


def check_watchable(paths: Sequence[str | Path]) -> None:
    """See whether files and folders are there.

    Raises:
        ManifestError: a path does not exist or cannot be read.
    """
    for path in paths:
        if str(path) == "-":
            raise ManifestError("the standard input cannot be watched; give a file or folder")
        _files(Path(path))


class ManifestSource:
    """Files and folders as a source of objects, looked at again and again.

    Args:
        paths: files and folders.
        node_name: the only Node to send, as with an API server; None for all.
        poll_seconds: how often to look for changes.
        settle_seconds: how long a changed file must keep still before it is read.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        node_name: str | None = None,
        poll_seconds: float = 1.0,
        settle_seconds: float = 0.1,
    ) -> None:
        self._paths = [Path(path) for path in paths]
        self._node_name = node_name
        self._poll_seconds = poll_seconds
        self._settle_seconds = settle_seconds
        self._folder = _Watched(self._paths)
        self._sent: dict[Kind, Replaced] = {}
        self._told: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, put: Callable[[Event], None]) -> None:
        """Begin; the first lists are put from the source's thread.

        Raises:
            ManifestError: a path does not exist or cannot be read.
            RuntimeError: it was started before.
        """
        if self._thread is not None:
            raise RuntimeError("a source is started once")
        check_watchable(self._paths)
        self._thread = threading.Thread(
            target=self._run, args=(put,), name="manifests", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; no event follows."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self, put: Callable[[Event], None]) -> None:
        try:
            while not self._stop.is_set():
                if self._settle() and self._folder.refresh():
                    self._send(self._folder.manifests(), put)
                self._stop.wait(self._poll_seconds)
        except BaseException as error:  # a thread must not die unseen
            log.exception("manifest thread died")
            put(SourceFailed(error))

    def _settle(self) -> bool:
        """Wait until no file changes; False if the source is stopped meanwhile."""
        if not self._folder.changed() or not self._sent:
            return True
        for _ in range(_MAX_SETTLING):
            if self._stop.wait(self._settle_seconds):
                return False
            if not self._folder.changed():
                break
        return True

    def _send(self, manifests: Manifests, put: Callable[[Event], None]) -> None:
        """Send the lists that differ from what was sent last."""
        self._tell(manifests)
        lists: dict[Kind, Sequence[Object]] = {
            Kind.SERVICE: manifests.services,
            Kind.SLICE: manifests.slices,
            Kind.NODE: [
                node
                for node in manifests.nodes
                if self._node_name is None or node.metadata.name == self._node_name
            ],
        }
        rejections = [*manifests.rejected, *_unusable_files(manifests)]
        for kind, objects in lists.items():
            rejected = tuple(r for r in rejections if r.kind is kind)
            event = Replaced(kind, tuple(objects), rejected)
            if self._sent.get(kind) != event and not self._stop.is_set():
                self._sent[kind] = event
                put(event)

    def _tell(self, manifests: Manifests) -> None:
        """Log what is new."""
        said = frozenset(str(problem) for problem in manifests.problems)
        for problem in manifests.problems:
            if str(problem) in self._told:
                continue
            tell = log.error if problem.severity is Severity.ERROR else log.warning
            tell("manifest", file=problem.path, line=problem.line, error=problem.message)
        self._told = said
        log.info(
            "manifests read",
            services=len(manifests.services),
            slices=len(manifests.slices),
            nodes=len(manifests.nodes),
            rejected=len(manifests.rejected),
            ignored=manifests.ignored,
        )


def _unusable_files(manifests: Manifests) -> list[Rejected]:
    """Files that say nothing (any more), for metrics and status; counted among Services."""
    found: list[Rejected] = []
    for problem in manifests.problems:
        if problem.severity is Severity.ERROR:
            where = f"line {problem.line}: " if problem.line else ""
            found.append(Rejected(Kind.SERVICE, Key("", problem.path), where + problem.message))
    return found


class _File(msgspec.Struct):
    """A file as it was read last.

    Attributes:
        stamp: identity, size and times then.
        racy: it had just been written, so the same stamp may hide another content.
        digest: of the bytes then.
        content: what it says; the last good content if the bytes were no good.
        problem: why they were not.
    """

    stamp: tuple[int, ...] = ()
    racy: bool = True
    digest: bytes = b""
    content: Content = msgspec.field(default_factory=Content)
    problem: Problem | None = None


class _Watched:
    """The files below some paths, and what they say."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._files: dict[Path, _File] = {}
        self._listed: dict[Path, list[Path]] = {}
        self._stamps: dict[Path, tuple[int, ...]] = {}
        self._missing: dict[Path, Problem] = {}
        #: What ``refresh`` knew of ``_missing``; None before the first time.
        self._told: list[Problem] | None = None

    def changed(self) -> bool:
        """Whether anything looks different from the last time that this was asked."""
        stamps = {}
        for path in self._paths:
            try:
                self._listed[path] = _files(path)
                self._missing.pop(path, None)
            except ManifestError as error:
                self._missing[path] = Problem(str(path), 0, f"{error}; {_IN_FORCE}")
            for file in self._listed.get(path, ()):
                stamps[file] = _stamp(file)
        before, self._stamps = self._stamps, stamps
        return before != stamps

    def refresh(self) -> bool:
        """Read what may have changed; True if anything is different."""
        problems = list(self._missing.values())
        different = self._told != problems or self._files.keys() != self._stamps.keys()
        self._told = problems
        for path in self._files.keys() - self._stamps.keys():
            del self._files[path]
        for path, stamp in self._stamps.items():
            file = self._files.setdefault(path, _File())
            if file.racy or file.stamp != stamp:
                different |= _read(path, file, stamp)
        return different

    def manifests(self) -> Manifests:
        """Put all files together."""
        problems = [*self._missing.values(), *(f.problem for f in self._files.values())]
        contents = [self._files[path].content for path in self._stamps]
        return merge(contents, [p for p in problems if p is not None])


def _read(path: Path, file: _File, stamp: tuple[int, ...]) -> bool:
    """Read one file again; True if it says something else, or has another problem."""
    kept = _IN_FORCE if file.content.entries else "it counts for nothing"
    try:
        data = path.read_bytes()
    except OSError as error:
        before = file.problem
        file.problem = Problem(str(path), 0, f"cannot be read: {error.strerror}; {kept}")
        file.racy, file.digest = True, b""
        return before != file.problem
    file.stamp = stamp
    file.racy = time.time_ns() - max(stamp[:2], default=0) < _RACY_NS
    digest = hashlib.blake2b(data, digest_size=16).digest()
    if digest == file.digest:
        return False
    file.digest = digest
    content = read_text(str(path), data)
    if content.broken:
        problem = content.problems[0]
        file.problem = msgspec.structs.replace(problem, message=f"{problem.message}; {kept}")
    elif not data.strip() and file.content.entries:
        message = f"it is empty; {kept}, until it is deleted or has a comment at least"
        file.problem = Problem(str(path), 0, message)
    else:
        file.content, file.problem = content, None
    return True


def _stamp(path: Path) -> tuple[int, ...]:
    """Identity, size and times of a file's content; empty if it is not there."""
    try:
        status = path.stat()
    except OSError:
        # Reading it will fail as well, and tell why.
        return ()
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)


def _files(path: Path) -> list[Path]:
    """Find the files that a path stands for.

    Raises:
        ManifestError: it does not exist or cannot be read.
    """
    if not path.is_dir():
        if not path.exists():
            raise ManifestError(f"{path} does not exist")
        return [path]
    found = []
    try:
        for folder, folders, names in os.walk(path, onerror=_fail):
            # Mounted ConfigMaps keep their versions in hidden folders, editors their copies.
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [
                Path(folder, name)
                for name in names
                if name.endswith(_SUFFIXES) and not name.startswith(".")
            ]
    except OSError as error:
        raise ManifestError(f"{error.filename} cannot be read: {error.strerror}") from error
    return sorted(found)


def _fail(error: OSError) -> None:
    raise error
