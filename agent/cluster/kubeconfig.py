"""Reads a kubeconfig far enough to say what it lacks, in the words of whoever wrote it.

The official client's loader takes what is read here once more, with credentials and all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

_LISTS = {"clusters": "cluster", "contexts": "context", "users": "user"}


class KubeconfigError(ValueError):
    """A file that is no kubeconfig, or one with something missing; names the file."""


def read_kubeconfig(path: Path, context: str | None) -> dict[str, Any]:
    """The file's content, if the context can be used as far as names go.

    Args:
        path: of the file.
        context: the wanted one; None for its current one.

    Raises:
        KubeconfigError: the file cannot be read, is something else, or lacks something.
    """
    content = _one_document(path)
    kind = content.get("kind")
    if kind not in {None, "Config"}:
        raise KubeconfigError(f"kubeconfig {path} is not a kubeconfig: its kind is {kind}")
    for field in _LISTS:
        entries = content.get(field) or []
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise KubeconfigError(f"kubeconfig {path}: {field} is not a list of mappings")
    wanted = _wanted(content, context)
    missing = [field for field in _LISTS if not content.get(field) and field != "users"]
    missing += [] if wanted else ["current-context"]
    if missing:
        what = "is not a kubeconfig" if "clusters" in missing else "is not complete"
        raise KubeconfigError(f"kubeconfig {path} {what}: it lacks {', '.join(missing)}")
    chosen = _entry(path, content, "contexts", wanted)
    _entry(path, content, "clusters", chosen.get("cluster"))
    if chosen.get("user"):
        _entry(path, content, "users", chosen["user"])
    return content


def user_of(content: dict[str, Any], context: str | None) -> dict[str, Any]:
    """The user of a context, as ``read_kubeconfig`` takes it; empty if it has none."""
    chosen = _find(content, "contexts", _wanted(content, context))
    return _find(content, "users", chosen.get("user"))


def _wanted(content: dict[str, Any], context: str | None) -> Any:
    return context if context is not None else content.get("current-context")


def _one_document(path: Path) -> dict[str, Any]:
    try:
        documents = list(yaml.load_all(path.read_bytes(), Loader=yaml.SafeLoader))
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error.strerror or error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise KubeconfigError(
            f"kubeconfig {path}{line} is not YAML: {error.problem or error.context}"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise KubeconfigError(f"kubeconfig {path} is not YAML: {error}") from error
    if len(documents) > 1:
        kinds = [str(one.get("kind")) for one in documents if isinstance(one, dict)]
        raise KubeconfigError(
            f"kubeconfig {path} is not a kubeconfig, which is one document: it has"
            f" {len(documents)} ({', '.join(dict.fromkeys(kinds))}). Manifests are given with"
            " --manifests"
        )
    content = documents[0] if documents else None
    if not isinstance(content, dict):
        what = "is empty" if content is None else "holds no mapping"
        raise KubeconfigError(f"kubeconfig {path} is not a kubeconfig: it {what}")
    return content


def _entry(path: Path, content: dict[str, Any], field: str, name: object) -> dict[str, Any]:
    """What an entry of a list holds, by its name."""
    names = [entry.get("name") for entry in content.get(field) or ()]
    if name not in names:
        there = ", ".join(map(str, names)) or "none"
        raise KubeconfigError(
            f"kubeconfig {path}: there is no {_LISTS[field]} named {name!r} in {field}; there is"
            f" {there}"
        )
    return _find(content, field, name)


def _find(content: dict[str, Any], field: str, name: object) -> dict[str, Any]:
    entries = content.get(field)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name:
            found = entry.get(_LISTS[field])
            return found if isinstance(found, dict) else {}
    return {}
