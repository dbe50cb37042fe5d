"""The configuration file: from YAML to a flat list of keys, each with its line.

Everything that is wrong with a file is collected, so that an operator mends it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from agent.config import kubeproxy
from agent.config.suggest import closest_key
from agent.config.table import BY_PATH

if TYPE_CHECKING:
    from pathlib import Path

API_VERSION = "onenth.dev/v1alpha1"
KIND = "OnenthConfiguration"

_KINDS = {API_VERSION: KIND, kubeproxy.API_VERSION: kubeproxy.KIND}
_SECTIONS = frozenset(
    path.rpartition(".")[0] for path in (*BY_PATH, *kubeproxy.WITHOUT_MEANING) if "." in path
)
#: No key is deeper than this; a YAML alias can make a document that contains itself.
_DEEPEST = 6


class Document(msgspec.Struct):
    """What a file says.

    Attributes:
        values: what is set, by key; null counts as not set.
        lines: line of each key, from 1.
        problems: what is wrong with it.
        ignored: what it says that has no meaning here.
    """

    values: dict[str, object] = msgspec.field(default_factory=dict)
    lines: dict[str, int] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)
    ignored: list[str] = msgspec.field(default_factory=list)


def read_document(file: Path) -> Document:
    """Read a configuration file, ours or kube-proxy's."""
    document = Document()
    try:
        root = _parse(file.read_text("utf-8"), document)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        document.problems.append(f"{file} cannot be read: {why}")
        return document
    except yaml.YAMLError as error:
        document.problems.append(f"{file} is not YAML: {_flat(str(error))}")
        return document
    if root is None:
        return document
    if not isinstance(root, dict):
        document.problems.append(f"{file} does not hold keys and values")
        return document
    lenient = _dialect(root, document)
    if lenient is not None:
        _collect(root, "", lenient=lenient, document=document)
    return document


def _parse(text: str, document: Document) -> Any:
    """Parse one YAML document, and note where its keys stand."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _note_lines(node, "", 0, document)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _note_lines(node: yaml.Node, prefix: str, depth: int, document: Document) -> None:
    """Keep the line of every key, and complain of keys that are there twice."""
    if not isinstance(node, yaml.MappingNode) or depth > _DEEPEST:
        return
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        line = key.start_mark.line + 1
        if path in document.lines and key.value != "<<":
            document.problems.append(
                f"{path} is set twice, in lines {document.lines[path]} and {line}"
            )
        document.lines[path] = line
        _note_lines(value, f"{path}.", depth + 1, document)


def _dialect(root: dict[Any, Any], document: Document) -> bool | None:
    """Whether unknown keys are forgiven; None if the file is of another kind altogether."""
    version, kind = root.pop("apiVersion", None), root.pop("kind", None)
    by_kind = {kind: version for version, kind in _KINDS.items()}
    if version is None and (kind is None or kind in by_kind):
        version = by_kind.get(kind, API_VERSION)
    if version not in _KINDS or kind not in {None, _KINDS[version]}:
        document.problems.append(
            f"apiVersion {version}, kind {kind} is not a configuration that onenth reads; "
            + " and ".join(f"apiVersion {one}, kind {two}" for one, two in _KINDS.items())
            + " are"
        )
        return None
    return bool(version == kubeproxy.API_VERSION)


def _collect(section: dict[Any, Any], prefix: str, *, lenient: bool, document: Document) -> None:
    """Sort the keys of a section into values, ignored ones and problems."""
    for key, value in section.items():
        path = f"{prefix}{key}"
        where = _where(path, document)
        if setting := BY_PATH.get(path):
            unset = lenient and setting.zero_is_default and kubeproxy.is_zero(value)
            if value is not None and not unset:
                document.values[path] = value
        elif path in kubeproxy.WITHOUT_MEANING:
            document.ignored += (
                _with_line(path, remark, document) for remark in kubeproxy.remarks(path, value)
            )
        elif path in _SECTIONS and isinstance(value, dict):
            _collect(value, f"{path}.", lenient=lenient, document=document)
        elif path in _SECTIONS:
            if value is not None:
                document.problems.append(f"{where} must hold keys and values, not {value!r}")
        else:
            report = document.ignored if lenient else document.problems
            report.append(f"{where} is not a key{_hint(path)}")


def _hint(path: str) -> str:
    """``; did you mean ...?``, or nothing if no key resembles the path."""
    key = closest_key(path, (*BY_PATH, *sorted(_SECTIONS), *kubeproxy.WITHOUT_MEANING))
    return f"; did you mean {key}?" if key else ""


def _where(path: str, document: Document) -> str:
    """A key with its line, if that is known."""
    line = document.lines.get(path)
    return f"{path} (line {line})" if line else path


def _with_line(path: str, remark: str, document: Document) -> str:
    """A remark with the line of the key that it begins with."""
    words = remark.split(" ", 1)
    line = document.lines.get(words[0], document.lines.get(path))
    return f"{remark} (line {line})" if line else remark


def _flat(text: str) -> str:
    """Several lines of an error as one."""
    return " ".join(part.strip() for part in text.splitlines())
