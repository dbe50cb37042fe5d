from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from agent import __version__
from agent.cluster.client import ClientConfigError, make_client
from agent.cluster.kube import KubeSource
from agent.cluster.objects import Kind
from agent.cluster.observe import NullObserver
from agent.cluster.transport import Transport, UnreachableError
from tests.api.helpers import FAST, Sink
from tests.fakes.apiserver import FakeAPIServer, write_kubeconfig
from tests.fakes.objects import service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TLS = Path(__file__).parent / "tls"
_NAME = "kubernetes.default.svc"


def _get(client: Any, path: str = "/api/v1/services") -> bytes:
    with Transport(client, 2.0, NullObserver()).get(path, {}, 2.0) as response:
        return response.body(1_000_000)


def _tokens(server: FakeAPIServer) -> list[str]:
    return [request.headers.get("authorization", "") for request in server.seen()]


@pytest.fixture(name="pod")
def _pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pod's credentials, with the token "one"."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("one\n")
    (folder / "ca.crt").write_bytes((_TLS / "ca.pem").read_bytes())
    return folder


@pytest.fixture(name="secure")
def _secure() -> Iterator[FakeAPIServer]:
    """A server with TLS, whose certificate names kubernetes.default.svc and nothing else."""
    tls = (_TLS / "server.pem", _TLS / "server.key")
    with FakeAPIServer(tls=tls, token="one", bookmark_seconds=0.1) as server:  # noqa: S106
        yield server
    assert server.crashes == []


def _edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change a kubeconfig in place."""
    config = yaml.safe_load(path.read_text())
    change(config)
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_kubeconfig_s_token_and_the_name_are_sent(server: FakeAPIServer, tmp_path: Path) -> None:
    """Requests carry the bearer token and say that it is onenth who asks."""
    path = write_kubeconfig(tmp_path / "kubeconfig", server, token="abc")  # noqa: S106
    _get(make_client(str(path)))

    (request,) = server.seen()
    assert request.headers["authorization"] == "Bearer abc"
    assert request.headers["user-agent"] == f"onenth/{__version__}"


def test_a_rotated_token_file_of_a_kubeconfig_is_read_again(
    server: FakeAPIServer, tmp_path: Path
) -> None:
    """kubeadm's kubeconfig names a tokenFile, relative here; the next request has its new text."""
    path = write_kubeconfig(tmp_path / "kubeconfig", server)
    _edit(path, lambda config: config["users"][0]["user"].update(tokenFile="token"))
    (tmp_path / "token").write_text("one\n")
    client = make_client(str(path))
    _get(client)
    (tmp_path / "next").write_text("two\n")
    (tmp_path / "next").rename(tmp_path / "token")
    _get(client)

    assert _tokens(server) == ["Bearer one", "Bearer two"]


def test_a_token_file_that_vanishes_leaves_the_last_token(server: FakeAPIServer, pod: Path) -> None:
    """Between two versions of a mounted secret the agent goes on with what it has."""
    client = make_client(None, api_server=server.url, service_account=pod)
    _get(client)
    (pod / "token").unlink()
    _get(client)
    (pod / "token").write_text("")
    _get(client)

    assert _tokens(server) == ["Bearer one"] * 3


def test_the_pod_s_credentials_go_to_another_address_for_good(
    server: FakeAPIServer, pod: Path
) -> None:
    """--api-server outlives every refresh of the token; the ClusterIP is never tried."""
    client = make_client(None, api_server=server.url + "/", service_account=pod)
    _get(client)
    (pod / "token").write_text("second\n")
    for _ in range(3):
        _get(client)

    assert _tokens(server) == ["Bearer one", *["Bearer second"] * 3]
    assert client.configuration.host == server.url


def test_the_pod_s_own_address_is_the_default(pod: Path) -> None:
    """Without an override the address is that of the environment."""
    client = make_client(None, service_account=pod)

    assert client.configuration.host == "https://192.0.2.1:443"
    assert client.configuration.ssl_ca_cert == str(pod / "ca.crt")


def test_an_ipv6_address_gets_brackets(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has a bare IPv6 address in an IPv6 cluster."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "2001:db8::1")

    host = make_client(None, service_account=pod).configuration.host
    assert host == "https://[2001:db8::1]:443"


def test_a_kubeconfig_s_address_is_overridden_for_good(
    server: FakeAPIServer, tmp_path: Path
) -> None:
    """Likewise with a kubeconfig whose server does not answer, and a token of its own."""
    path = write_kubeconfig(tmp_path / "kubeconfig", server, token="abc")  # noqa: S106
    _edit(path, lambda c: c["clusters"][0]["cluster"].update(server="https://192.0.2.1:6443"))
    client = make_client(str(path), api_server=server.url)
    for _ in range(3):
        _get(client)

    assert _tokens(server) == ["Bearer abc"] * 3


def _exec(config: dict[str, Any], script: Path) -> None:
    config["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script)],
            "interactiveMode": "Never",
        }
    }


def test_a_401_runs_the_exec_plugin_again(server: FakeAPIServer, tmp_path: Path) -> None:
    """A token without an expiry that the server does not take any more is replaced at once."""
    script = tmp_path / "plugin.py"
    script.write_text(
        "import pathlib, json; print(json.dumps({'kind': 'ExecCredential',"
        "'apiVersion': 'client.authentication.k8s.io/v1', 'status':"
        f"{{'token': pathlib.Path({str(tmp_path / 'token')!r}).read_text()}}}}))"
    )
    (tmp_path / "token").write_text("one")
    path = _edit(
        write_kubeconfig(tmp_path / "kubeconfig", server), lambda config: _exec(config, script)
    )
    client = make_client(str(path))
    server.token = "one"  # noqa: S105
    _get(client)
    (tmp_path / "token").write_text("two")
    server.token = "two"  # noqa: S105
    _get(client)

    assert _tokens(server) == ["Bearer one", "Bearer one", "Bearer two"]


_SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
_USERS = "\nusers: [{name: u, user: {}}]"
_CONTEXT = "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
_PLUGIN = "{apiVersion: client.authentication.k8s.io/v1, command: /none, interactiveMode: Never}"
_BAD_KUBECONFIGS = {
    "missing": (None, "No such file"),
    "empty": ("", "is not a kubeconfig: it is empty"),
    "syntax": ("a: [", ", line 1 is not YAML: expected"),
    "no text": ("a: \x01", "is not YAML: unacceptable character"),
    "manifests": (
        f"{_SERVICE}---\n{_SERVICE}",
        "it has 2 (Service). Manifests are given with --manifests",
    ),
    "manifest": (_SERVICE, "is not a kubeconfig: its kind is Service"),
    "text": ("just text", "no mapping"),
    "no context": ("{}", "it lacks clusters, contexts, current-context"),
    "unknown context": (
        "{current-context: nope, clusters: [{}], contexts: [{name: a}, {name: b}]}",
        "there is no context named 'nope' in contexts; there is a, b",
    ),
    "unknown cluster": (
        _CONTEXT + "clusters: [{name: d}]" + _USERS,
        "there is no cluster named 'c' in clusters; there is d",
    ),
    "unknown user": (
        _CONTEXT + "clusters: [{name: c, cluster: {server: 'http://h'}}]",
        "there is no user named 'u' in users; there is none",
    ),
    "no list": ("{current-context: x, contexts: 7}", "contexts is not a list"),
    "no server": (_CONTEXT + "clusters: [{name: c, cluster: {}}]" + _USERS, "no server"),
    "no authority": (
        _CONTEXT + "clusters: [{name: c, cluster: {server: 'https://h', "
        "certificate-authority: no.pem}}]" + _USERS,
        "no.pem",
    ),
    "no token file": (
        _CONTEXT + "clusters: [{name: c, cluster: {server: 'http://h'}}]\n"
        "users: [{name: u, user: {tokenFile: nowhere}}]",
        "nowhere",
    ),
    "no plugin": (
        _CONTEXT + "clusters: [{name: c, cluster: {server: 'http://h'}}]\n"
        "users: [{name: u, user: {exec: " + _PLUGIN + "}}]",
        "exec plugin '/none'",
    ),
}


@pytest.mark.parametrize(("text", "said"), _BAD_KUBECONFIGS.values(), ids=_BAD_KUBECONFIGS.keys())
def test_a_bad_kubeconfig_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    """Whatever is wrong with it, the error names the file and what is missing."""
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ClientConfigError) as caught:
        make_client(str(path))
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_an_unknown_context_is_named(server: FakeAPIServer, tmp_path: Path) -> None:
    """A context that the kubeconfig does not have is a configuration error."""
    path = write_kubeconfig(tmp_path / "kubeconfig", server)

    with pytest.raises(ClientConfigError, match="staging"):
        make_client(str(path), "staging")
    with pytest.raises(ClientConfigError, match="without a kubeconfig"):
        make_client(None, "staging")


def test_outside_of_a_pod_there_must_be_something(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No kubeconfig and no pod: the error says what to give; a pod without a token, which file."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClientConfigError, match=r"give a kubeconfig \(--kubeconfig\)"):
        make_client(None)
    with pytest.raises(ClientConfigError, match=str(tmp_path / "token")):
        make_client(None, api_server="https://192.0.2.1", service_account=tmp_path)


@pytest.mark.parametrize("url", ["192.0.2.1:6443", "ftp://h", "https://", "https://h:x", ""])
def test_a_bad_address_is_named(url: str, pod: Path) -> None:
    """An address that is not an http or https URL is refused before anything is tried."""
    with pytest.raises(ClientConfigError, match="is not a URL"):
        make_client(None, api_server=url, service_account=pod)


def test_the_certificate_is_verified_against_the_given_name(
    secure: FakeAPIServer, pod: Path
) -> None:
    """The address is not in the certificate: that fails, and --tls-server-name mends it."""
    with pytest.raises(UnreachableError, match="certificate"):
        _get(make_client(None, api_server=secure.url, service_account=pod))
    client = make_client(None, api_server=secure.url, tls_server_name=_NAME, service_account=pod)

    assert b'"items":[]' in _get(client)


def test_a_server_of_another_authority_is_not_talked_to(secure: FakeAPIServer, pod: Path) -> None:
    """A certificate that the cluster's CA did not sign is refused, and no token is sent."""
    (pod / "ca.crt").write_bytes((_TLS / "other-ca.pem").read_bytes())
    client = make_client(None, api_server=secure.url, tls_server_name=_NAME, service_account=pod)

    with pytest.raises(UnreachableError, match="certificate verify failed"):
        _get(client)
    assert secure.seen() == []


def test_a_source_over_tls_follows_and_stops(secure: FakeAPIServer, pod: Path) -> None:
    """Lists, watches and a prompt stop work over TLS as well."""
    client = make_client(None, api_server=secure.url, tls_server_name=_NAME, service_account=pod)
    source = KubeSource(client, node_name="here", settings=FAST)
    sink = Sink()
    source.start(sink.put)
    sink.wait_listed()
    secure.put(service("s"))
    sink.wait(lambda: sink.names(Kind.SERVICE) == {"s"})
    secure.silence()
    started = time.monotonic()
    source.stop()

    assert time.monotonic() - started < 0.5
    assert not [t for t in threading.enumerate() if t.name.startswith("watch-")]
