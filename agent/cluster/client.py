"""Who the agent is to the API server, and where the API server is.

The official client reads kubeconfigs and in-cluster credentials and does the TLS. Three of its
habits would break a node agent, and are mended here:

- It sets the server's address again whenever it refreshes a token, so an address that was
  overridden lasts for one request. A node without a proxy needs the override: the API
  server's ClusterIP does not answer before the agent has run. Here a refresh changes the token
  and nothing else.
- It reads a kubeconfig's ``tokenFile`` once. Service account tokens live for an hour. Here the
  file is looked at before every request, and read when it has changed.
- urllib3 retries by itself, and sleeps for as long as Retry-After says. Here nothing retries
  but the reflectors, which can be stopped.

A fourth costs memory: importing any part of the package imports all of it (``_import_in_parts``).
"""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent import __version__, logs
from agent.cluster.kubeconfig import KubeconfigError, read_kubeconfig, user_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubernetes.client import ApiClient, Configuration

log = logs.get(component=__name__)

#: Where Kubernetes puts a pod's credentials.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_BEARER = "BearerToken"


class ClientConfigError(Exception):
    """There are no usable credentials or there is no usable address; says what to mend."""


def make_client(
    kubeconfig: str | None,
    context: str | None = None,
    api_server: str | None = None,
    *,
    tls_server_name: str | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> ApiClient:
    """Make the one client of the process; it does not connect yet.

    Args:
        kubeconfig: path of a kubeconfig; None for the credentials of the pod.
        context: context of the kubeconfig; None for its current one.
        api_server: URL to use instead of the address that belongs to the credentials.
        tls_server_name: the name to verify the server's certificate against, where it is not
            the host of the address.
        service_account: folder of the pod's credentials.

    Raises:
        ClientConfigError: something is missing, unreadable or invalid.
    """
    if api_server is not None:
        api_server = _checked_url(api_server)
    _import_in_parts()
    if kubeconfig is not None:
        identity = _from_kubeconfig(Path(kubeconfig), context)
    elif context is not None:
        raise ClientConfigError(f"context {context!r} is given without a kubeconfig to take it of")
    else:
        identity = _from_pod(service_account, api_server)
    from kubernetes.client import ApiClient  # noqa: PLC0415 (40 MB that manifests do not need)

    configuration = identity.configuration
    if api_server is not None:
        configuration.host = api_server
    if not configuration.host:
        raise ClientConfigError(
            f"kubeconfig {kubeconfig}: the cluster has no server; give its URL as --api-server"
        )
    if tls_server_name is not None:
        configuration.tls_server_name = tls_server_name
    configuration.refresh_api_key_hook = identity
    configuration.retries = False
    configuration.keep_alive = True
    configuration.connection_pool_maxsize = 8
    client = ApiClient(configuration)
    client.user_agent = f"onenth/{__version__}"
    return client


def renew_credentials(client: ApiClient) -> None:
    """Read all credentials anew, because the API server does not take those it got."""
    hook = client.configuration.refresh_api_key_hook
    if isinstance(hook, Identity):
        hook.renew(client.configuration)


def _import_in_parts() -> None:
    """Let parts of the official client be imported without all others.

    Its package imports websockets, leader election, a dynamic client and, through kubeconfigs,
    OAuth: 6 MB, of which a pod needs nothing. So the package stands there without having been run,
    unless somebody has imported it already.
    """
    if "kubernetes" not in sys.modules:
        spec = find_spec("kubernetes")
        if spec is not None:
            sys.modules["kubernetes"] = module_from_spec(spec)


class Identity:
    """The client's credentials; the official client calls it before each request with a token.

    Args:
        load: makes a fresh configuration from what is on disk.
        token_file: file that holds the token, if one does.
    """

    def __init__(self, load: Callable[[], Configuration], token_file: Path | None) -> None:
        self._load = load
        self._token_file = token_file
        self._stamp: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self.configuration = load()
        # The official client's own hook goes on writing to a configuration that nobody else
        # has, from which only the token is taken.
        self._inner = self.configuration.refresh_api_key_hook
        self._scratch = type(self.configuration)()

    def __call__(self, configuration: Configuration) -> None:
        """Bring the token up to date; what cannot be read leaves the present one in place."""
        with self._lock:
            try:
                self._refresh(configuration)
            except Exception as error:  # noqa: BLE001 (the official loader raises anything)
                log.warning("credentials not refreshed", error=str(error) or repr(error))

    def renew(self, configuration: Configuration) -> None:
        """Begin again from what is on disk (and run a kubeconfig's exec plugin again)."""
        with self._lock:
            try:
                self._scratch = self._load()
                self._inner = self._scratch.refresh_api_key_hook
                self._stamp = ()
            except ClientConfigError as error:
                log.warning("credentials not renewed", error=str(error))
        self(configuration)

    def _refresh(self, configuration: Configuration) -> None:
        if self._token_file is not None:
            status = self._token_file.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp != self._stamp:
                configuration.api_key[_BEARER] = f"Bearer {_read_token(self._token_file)}"
                self._stamp = stamp
            return
        if self._inner is not None:
            self._inner(self._scratch)
        if _BEARER in self._scratch.api_key:
            configuration.api_key[_BEARER] = self._scratch.api_key[_BEARER]


def _from_kubeconfig(path: Path, context: str | None) -> Identity:
    """Take address and credentials from a kubeconfig."""
    if ":" in str(path):
        raise ClientConfigError(f"kubeconfig {path}: one file without a colon in its name, please")
    try:
        content = read_kubeconfig(path, context)
    except KubeconfigError as error:
        raise ClientConfigError(str(error)) from error
    user = user_of(content, context)
    token_file = user.get("tokenFile")

    def load() -> Configuration:
        configuration = _load_kubeconfig(path, context)
        given = _BEARER in configuration.api_key or configuration.cert_file
        if "exec" in user and not given:
            command = user["exec"].get("command") if isinstance(user["exec"], dict) else None
            raise ClientConfigError(
                f"kubeconfig {path}: the exec plugin {command!r} gave no credentials"
            )
        return configuration

    # Relative paths in a kubeconfig are relative to its folder.
    folder = Path(os.path.abspath(path)).parent  # noqa: PTH100 (a symlink stays one)
    return Identity(load, folder / token_file if isinstance(token_file, str) else None)


def _load_kubeconfig(path: Path, context: str | None) -> Configuration:
    from kubernetes import config  # noqa: PLC0415 (40 MB that manifests do not need)
    from kubernetes.client import Configuration  # noqa: PLC0415 (same)

    configuration = Configuration()
    configuration.host = ""
    try:
        config.load_kube_config(
            config_file=str(path),
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
    except (config.ConfigException, OSError) as error:
        raise ClientConfigError(f"kubeconfig {path}: {error}") from error
    except Exception as error:
        # A field of a wrong type surfaces as whatever Python makes of it.
        raise ClientConfigError(f"kubeconfig {path} cannot be used: {error!r}") from error
    return configuration


def _from_pod(folder: Path, api_server: str | None) -> Identity:
    """Take the pod's service account; the address may come from elsewhere."""
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST"),
        os.environ.get("KUBERNETES_SERVICE_PORT"),
    )
    if api_server is None and not (host and port):
        raise ClientConfigError(
            "not in a pod (KUBERNETES_SERVICE_HOST is not set): give a kubeconfig (--kubeconfig)"
            " or manifests (--manifests)"
        )
    token_file, authority = folder / "token", folder / "ca.crt"
    token = _read_token(token_file)
    if not authority.is_file():
        raise ClientConfigError(f"in-cluster credentials: {authority} does not exist")
    if host and ":" in host:
        host = f"[{host}]"

    def load() -> Configuration:
        from kubernetes.client import Configuration  # noqa: PLC0415 (see make_client)

        configuration = Configuration()
        configuration.host = api_server or f"https://{host}:{port}"
        configuration.ssl_ca_cert = str(authority)
        configuration.api_key[_BEARER] = f"Bearer {token}"
        return configuration

    return Identity(load, token_file)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientConfigError(f"the token file {path} cannot be read: {error}") from error
    if not token or any(c.isspace() for c in token):
        raise ClientConfigError(f"the token file {path} does not hold a token")
    return token


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ClientConfigError(f"API server {url!r} is not a URL such as https://192.0.2.1:6443")
    if parts.scheme == "http":
        log.warning("credentials go to the API server unencrypted", api_server=url)
    return url.rstrip("/")
