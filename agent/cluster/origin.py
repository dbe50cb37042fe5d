"""Where objects come from: files, or an API server with credentials.

An origin is found before anything else is done on the node, since a wrong one ends the agent; a
source is made of it when there is somebody to tell. What the other kind needs is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agent.cluster.events import EventRecorder, NoRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kubernetes.client import ApiClient

    from agent.cluster.feed import Source
    from agent.cluster.observe import RequestObserver, SourceObserver
    from agent.cluster.reflector import WatchSettings

    Recording = EventRecorder | NoRecorder


class OriginError(Exception):
    """There is nothing to take objects from; says what to mend."""


class Origin(Protocol):
    """Files or an API server; see ``find_origin``."""

    def source(self, node_name: str, observer: SourceObserver, settings: WatchSettings) -> Source:
        """Make the source; it is not started."""

    def recorder(
        self, node_name: str, observer: RequestObserver, died: Callable[[BaseException], None]
    ) -> Recording:
        """Make what takes Events; it is not started."""


def find_origin(
    *, manifests: Sequence[str], kubeconfig: str, api_server: str, tls_server_name: str
) -> Origin:
    """Look at the files, or at the credentials; nothing is connected to.

    Args:
        manifests: files and folders; the others count only without them.
        kubeconfig: its path; empty for the pod's own credentials.
        api_server: URL instead of the credentials' own; may be empty.
        tls_server_name: the certificate's name instead of the URL's; may be empty.

    Raises:
        OriginError: a file is not there, or there are no credentials that can be used.
    """
    if manifests:
        return _files(manifests)
    from agent.cluster.client import ClientConfigError, make_client  # noqa: PLC0415  memory

    try:
        client = make_client(
            kubeconfig or None,
            api_server=api_server or None,
            tls_server_name=tls_server_name or None,
        )
    except ClientConfigError as error:
        raise OriginError(str(error)) from error
    return _Server(client)


def _files(paths: Sequence[str]) -> Origin:
    from agent.cluster.manifests import ManifestError, check_watchable  # noqa: PLC0415  memory

    try:
        check_watchable(paths)
    except ManifestError as error:
        raise OriginError(str(error)) from error
    return _Files(paths)


class _Files:
    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def source(
        self,
        node_name: str,
        observer: SourceObserver,  # noqa: ARG002  nothing is watched over a network
        settings: WatchSettings,  # noqa: ARG002  likewise
    ) -> Source:
        from agent.cluster.manifests import ManifestSource  # noqa: PLC0415  memory

        return ManifestSource(self._paths, node_name=node_name)

    def recorder(
        self,
        node_name: str,  # noqa: ARG002  there is nobody to tell
        observer: RequestObserver,  # noqa: ARG002  likewise
        died: Callable[[BaseException], None],  # noqa: ARG002  likewise
    ) -> Recording:
        return NoRecorder()


class _Server:
    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def source(self, node_name: str, observer: SourceObserver, settings: WatchSettings) -> Source:
        from agent.cluster.kube import KubeSource  # noqa: PLC0415  memory

        return KubeSource(self._client, node_name=node_name, observer=observer, settings=settings)

    def recorder(
        self, node_name: str, observer: RequestObserver, died: Callable[[BaseException], None]
    ) -> Recording:
        return EventRecorder(self._client, node_name, died=died, observer=observer)
