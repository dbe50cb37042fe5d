"""The command render: what it prints, and that nothing is left out without a word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner, Result

from agent.cli import cli

if TYPE_CHECKING:
    from pathlib import Path

WEB: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"namespace": "shop", "name": "web"},
    "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80}]},
}
#: What Service web's rules are found by.
FOUND_BY = '-A KUBE-SERVICES -m comment --comment "shop/web:http'


def render(*paths: Path) -> Result:
    """Render manifests for IPv4."""
    flags = [f"--manifests={path}" for path in paths]
    return CliRunner().invoke(cli, ["render", "--family", "IPv4", "--node-name", "n", *flags])


def write(path: Path, *objects: object) -> Path:
    """Write a file of documents."""
    path.write_text(yaml.safe_dump_all(objects), "utf-8")
    return path


def changed(path: str, value: object, name: str = "other") -> dict[str, Any]:
    """The Service with another name and one field changed."""
    copy: dict[str, Any] = json.loads(json.dumps(WEB))
    copy["metadata"]["name"] = name
    target = copy
    *sections, last = path.split(".")
    for section in sections:
        target = target[section]
    target[last] = value
    return copy


def test_good_manifests_end_with_status_0_and_no_word(tmp_path: Path) -> None:
    """Standard output is restore input, whole: it ends with COMMIT."""
    result = render(write(tmp_path / "web.yaml", WEB))

    assert (result.exit_code, result.stderr) == (0, "")
    assert FOUND_BY in result.stdout
    assert result.stdout.splitlines()[-1] == "COMMIT"


def test_a_file_that_cannot_be_read_ends_with_status_1(tmp_path: Path) -> None:
    """It is named with the line; the rest is what the agent would write, and is printed."""
    good = write(tmp_path / "web.yaml", WEB)
    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: Service\nmetadata: {name: x\n", "utf-8")
    result = render(good, broken)

    assert result.exit_code == 1
    assert f"{broken}:3: while parsing a flow mapping" in result.stderr
    assert result.stderr.splitlines()[-1] == (
        "Error: 1 problem, named above: the rules leave something out"
    )
    assert FOUND_BY in result.stdout


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (changed("spec.clusterIP", []), "Service shop/other: Expected"),
        (changed("spec.ports", [{"port": 99999}]), "Service shop/other: port '' has the number"),
        (changed("kind", "Servize"), "kind Servize is unknown and skipped; did you mean Service?"),
        (changed("apiVersion", "v2"), "Service with apiVersion v2 is skipped: v1 is read"),
        (
            {"apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice"},
            "EndpointSlice with apiVersion discovery.k8s.io/v1beta1 is skipped",
        ),
        ("just text", "what has no kind is skipped"),
    ],
)
def test_whatever_is_left_out_ends_with_status_1(
    tmp_path: Path, document: object, said: str
) -> None:
    """An object, a part of one, a kind with a slip: each is named, with file or object."""
    result = render(write(tmp_path / "all.yaml", WEB, document))

    assert result.exit_code == 1
    assert said in result.stderr
    assert str(tmp_path) in result.stderr or "shop/other" in result.stderr
    assert FOUND_BY in result.stdout


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("v1", "ServiceAccount"),
        ("v1", "Endpoints"),
        ("serving.knative.dev/v1", "Service"),
        ("apps/v1", "Deployment"),
        ("example.org/v1", "Servize"),
    ],
)
def test_kinds_of_others_are_nobodys_business(tmp_path: Path, version: str, kind: str) -> None:
    """They are in every folder of manifests; no word of them, nor of logs, on any output."""
    other = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}}
    result = render(write(tmp_path / "all.yaml", other, WEB))

    assert (result.exit_code, result.stderr) == (0, "")
    assert "ignored" not in result.stdout


def test_no_service_at_all_is_worth_a_word(tmp_path: Path) -> None:
    """The rules that all Services share are printed, and it is said that there is none."""
    result = render(write(tmp_path / "empty.yaml", {"kind": "Deployment", "apiVersion": "apps/v1"}))

    assert (result.exit_code, result.stderr) == (0, "there is no Service in the manifests\n")
    assert ":KUBE-SERVICES" in result.stdout


def test_what_is_only_a_warning_ends_with_status_0(tmp_path: Path) -> None:
    """An object that is there twice is rendered once, as it stands last."""
    result = render(
        write(tmp_path / "all.yaml", WEB, changed("spec.clusterIP", "10.96.0.9", "web"))
    )

    assert result.exit_code == 0
    assert "Service shop/web is also in" in result.stderr
    assert "-d 10.96.0.9 " in result.stdout
