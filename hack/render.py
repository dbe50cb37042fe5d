"""Renders deploy/ without kubectl: the part of kustomize that deploy/ uses, and no more.

::

    python hack/render.py deploy/overlays/kind
    python hack/render.py --write        # deploy/install.yaml and the chart's copies anew

It knows resources, components, patches by strategic merge, images and configMapGenerator, and
refuses anything else, so that it never renders less than kustomize does. Where there is a
kubectl, a test compares the two on every overlay.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
INSTALL = DEPLOY / "install.yaml"
#: A chart can only read what is in its own folder: by name there, where it comes from.
CHART_COPIES = {
    DEPLOY / "chart/files" / name: DEPLOY / "components/monitoring" / name
    for name in ("dashboard.json", "podmonitor.yaml", "prometheusrule.yaml")
}
HEADER = (
    "# Rendered from deploy/base by hack/render.py --write; change it there.\n"
    "# Before use: ONENTH_API_SERVER in the ConfigMap (docs/operations.md).\n"
)

Object = dict[str, Any]
#: Lists that strategic merge joins by a key of their items; every other list is replaced.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
}
_KNOWN = {
    "apiVersion", "kind", "resources", "components", "patches", "images", "configMapGenerator",
}  # fmt: skip


class RenderError(Exception):
    """A kustomization that this cannot render as kustomize would."""


def render(folder: Path) -> list[Object]:
    """Return the objects of a kustomization."""
    return _render(folder.resolve(), [])


def add(component: Path, objects: list[Object]) -> list[Object]:
    """Return the objects with a component added; the given ones are not changed."""
    return _render(component.resolve(), copy.deepcopy(objects))


def to_yaml(objects: list[Object]) -> str:
    """Write objects as a stream of documents."""
    return "---\n".join(yaml.safe_dump(obj, sort_keys=False, width=100) for obj in objects)


def install_yaml() -> str:
    """Return what deploy/install.yaml should hold."""
    return HEADER + to_yaml(render(DEPLOY / "base"))


def _render(folder: Path, objects: list[Object]) -> list[Object]:
    """Add what a folder has to objects, and change them as it says."""
    path = folder / "kustomization.yaml"
    content = yaml.safe_load(path.read_text("utf-8"))
    unknown = set(content) - _KNOWN
    if unknown:
        raise RenderError(f"{path}: this renderer does not know {sorted(unknown)}")
    for name in content.get("resources", ()):
        target = (folder / name).resolve()
        objects += _render(target, []) if target.is_dir() else _documents(target)
    for generator in content.get("configMapGenerator", ()):
        objects.append(_config_map(folder, generator))
    for name in content.get("components", ()):
        objects = _render((folder / name).resolve(), objects)
    for patch in content.get("patches", ()):
        _patch(objects, _patch_content(folder, path, patch))
    for image in content.get("images", ()):
        _set_image(objects, image)
    return objects


def _documents(path: Path) -> list[Object]:
    return [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]


def _patch_content(folder: Path, path: Path, patch: Object) -> Object:
    if set(patch) == {"patch"}:
        content = yaml.safe_load(patch["patch"])
    elif set(patch) == {"path"}:
        content = yaml.safe_load((folder / patch["path"]).read_text("utf-8"))
    else:
        raise RenderError(f"{path}: only strategic merge patches without a target are known")
    if not isinstance(content, dict):
        raise RenderError(f"{path}: a patch is not a strategic merge patch")
    return content


def _identity(obj: Object) -> tuple[str, str, str, str]:
    meta = obj["metadata"]
    return obj["apiVersion"], obj["kind"], meta.get("namespace", ""), meta["name"]


def _patch(objects: list[Object], patch: Object) -> None:
    for index, obj in enumerate(objects):
        if _identity(obj) == _identity(patch):
            if patch.get("$patch") == "delete":
                del objects[index]
            else:
                objects[index] = merge(obj, patch)
            return
    raise RenderError(f"a patch is for {_identity(patch)}, which does not exist")


def merge(base: Any, patch: Any, key: str = "") -> Any:
    """Merge as kubectl's strategic merge does, for the lists of ``MERGE_KEYS``."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = {name: value for name, value in base.items() if patch.get(name, "") is not None}
        for name, value in patch.items():
            if value is not None:
                merged[name] = merge(base.get(name), value, name)
        return merged
    if isinstance(base, list) and isinstance(patch, list) and key in MERGE_KEYS:
        return _merge_lists(base, patch, MERGE_KEYS[key])
    return copy.deepcopy(patch)


def _merge_lists(base: list[Object], patch: list[Object], by: str) -> list[Object]:
    deleted = {item[by] for item in patch if item.get("$patch") == "delete"}
    changes = {item[by]: item for item in patch if item[by] not in deleted}
    merged = [
        merge(item, changes.pop(item[by])) if item[by] in changes else item
        for item in base
        if item[by] not in deleted
    ]
    return merged + [copy.deepcopy(item) for item in changes.values()]


def _set_image(objects: list[Object], image: Object) -> None:
    for obj in objects:
        spec = obj.get("spec", {}).get("template", {}).get("spec", {})
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            name, _, tag = container["image"].rpartition(":")
            if name == image["name"]:
                new = image.get("newName", name)
                container["image"] = f"{new}:{image.get('newTag', tag)}"


def _config_map(folder: Path, generator: Object) -> Object:
    options = generator.get("options", {})
    if not options.get("disableNameSuffixHash"):
        raise RenderError("a generated ConfigMap needs disableNameSuffixHash: true")
    data = {}
    for entry in generator["files"]:
        key, _, name = entry.rpartition("=")
        data[key or Path(name).name] = (folder / name).read_text("utf-8")
    meta = {"name": generator["name"], "namespace": generator["namespace"]}
    if "labels" in options:
        meta["labels"] = options["labels"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def main() -> int:
    """Print a rendered folder, or write what is made of others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--write", action="store_true", help="write what is made from deploy/")
    options = parser.parse_args()
    if options.write:
        INSTALL.write_text(install_yaml(), "utf-8")
        for copy_, source in CHART_COPIES.items():
            copy_.write_bytes(source.read_bytes())
    if options.folder:
        sys.stdout.write(to_yaml(render(options.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
