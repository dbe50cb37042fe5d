from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from hack import dashboard
from hack.render import DEPLOY, INSTALL, RenderError, install_yaml, merge, render

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FOLDERS = sorted(
    path.parent.relative_to(DEPLOY).as_posix() for path in DEPLOY.glob("*/**/kustomization.yaml")
)
#: Components are no kustomization of their own.
RENDERED = [folder for folder in FOLDERS if not folder.startswith("components/")]


def kustomize(folder: Path) -> list[dict[str, Any]]:
    """What kubectl makes of a folder; skips where there is no kubectl that works."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl, to compare with what kustomize makes")
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def in_order(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def unordered(value: Any) -> Any:
    """The same with lists sorted: kustomize puts what a patch adds first, we put it last."""
    if isinstance(value, dict):
        return {key: unordered(item) for key, item in value.items()}
    if isinstance(value, list):
        return in_order(unordered(item) for item in value)
    return value


def test_install_yaml_is_what_the_base_renders_to() -> None:
    """deploy/install.yaml has not drifted from deploy/base (hack/render.py --write mends it)."""
    assert INSTALL.read_text("utf-8") == install_yaml()


def test_the_dashboard_is_what_its_table_builds() -> None:
    """The committed dashboard has not drifted from hack/dashboard.py (run it to mend it)."""
    assert dashboard.TARGET.read_text("utf-8") == dashboard.text()


@pytest.mark.parametrize("folder", RENDERED)
def test_our_renderer_makes_what_kustomize_makes(folder: str) -> None:
    """Every kustomization renders to the same objects with kubectl and with hack/render.py."""
    assert unordered(render(DEPLOY / folder)) == unordered(kustomize(DEPLOY / folder))


@pytest.mark.parametrize("component", ["monitoring", "sysctls"])
def test_a_component_renders_alike_on_an_overlay(component: str, tmp_path: Path) -> None:
    """A component added to an overlay, as docs/operations.md has it, renders the same."""
    (tmp_path / "deploy").symlink_to(DEPLOY)
    shutil.copytree(DEPLOY, tmp_path / "copy")
    mine = tmp_path / "copy/overlays/mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\n"
        "kind: Kustomization\n"
        f"resources: [../kind]\ncomponents: [../../components/{component}]\n"
        "images: [{name: onenth, newName: registry.example/onenth, newTag: '9'}]\n"
    )
    ours = render(mine)
    images = [
        container["image"]
        for obj in ours
        if obj["kind"] == "DaemonSet"
        for kind in ("initContainers", "containers")
        for container in obj["spec"]["template"]["spec"].get(kind, ())
    ]
    assert set(images) == {"registry.example/onenth:9"}
    theirs = kustomize(mine)
    assert unordered(ours) == unordered(theirs)


def test_what_the_renderer_does_not_know_it_refuses(tmp_path: Path) -> None:
    """A field that kustomize would honour and we would not is an error, not a silent loss."""
    (tmp_path / "kustomization.yaml").write_text("namePrefix: my-\n")
    with pytest.raises(RenderError, match="namePrefix"):
        render(tmp_path)


def test_a_patch_for_nothing_is_refused(tmp_path: Path) -> None:
    """A patch whose target is not there is an error, as with kustomize."""
    (tmp_path / "kustomization.yaml").write_text(
        "patches:\n- patch: |\n    {apiVersion: v1, kind: ConfigMap, metadata: {name: absent}}\n"
    )
    with pytest.raises(RenderError, match="absent"):
        render(tmp_path)


def test_strategic_merge_by_hand() -> None:
    """Named items are joined, null deletes a key, and other lists are replaced."""
    base = {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "args": ["run"],
        "gone": 1,
    }
    patch = {
        "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "args": ["init", "x"],
        "gone": None,
    }
    assert merge(base, patch) == {
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "3"},
            {"name": "C", "value": "4"},
        ],
        "args": ["init", "x"],
    }
