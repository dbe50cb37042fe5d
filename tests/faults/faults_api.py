"""What an API server, and the way to it, can do wrong. Nothing of it may cost a connection."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from tests.fakes.apiserver import Fault as Answer
from tests.fakes.store import BY_KIND
from tests.faults.agent import READ_TIMEOUT
from tests.faults.schedule import Fault

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.faults.run import Run
    from tests.faults.schedule import Act
    from tests.kernel.shapes import Object

PLURALS = ("services", "endpointslices", "nodes")
_RESOURCES = {"Service": "services", "EndpointSlice": "endpointslices", "Node": "nodes"}


def _killed(run: Run, rng: random.Random) -> Iterator[None]:
    """Connections are refused, then everything goes on at the same address."""
    run.api.stop()
    yield
    if rng.random() < 0.3:
        run.api.compact()
    run.node.call(run.api.revive)


def _cut(run: Run, rng: random.Random) -> Iterator[None]:
    """Every connection ends in the middle of whatever it is doing, several times."""
    for _ in range(rng.randint(1, 4)):
        run.api.cut()
        time.sleep(rng.uniform(0.0, 0.3))
    yield
    run.api.cut()


def _slow(run: Run, rng: random.Random) -> Iterator[None]:
    """Every piece of every answer is late, but comes."""
    run.api.lag = rng.uniform(0.1, 0.6)
    if rng.random() < 0.5:
        run.api.cut()
    yield
    run.api.lag = 0.0


def _silent(run: Run, rng: random.Random) -> Iterator[None]:
    """Connections stay open and are accepted, and nothing comes any more."""
    run.api.silence()
    if rng.random() < 0.5:
        run.api.cut()
    yield
    run.api.speak()


def _gone(run: Run, rng: random.Random) -> Iterator[None]:
    """The version to go on from is too old, as a status or in the stream."""
    run.api.gone_as_status = rng.random() < 0.5
    run.api.cut()
    run.churn(rng)
    run.api.compact()
    yield
    run.api.compact()
    run.api.cut()


def _answers(code: int, retry_after: str = "") -> Act:
    def act(run: Run, rng: random.Random) -> Iterator[None]:
        """Every request gets this status."""
        plural = rng.choice(("", *PLURALS))
        if rng.random() < 0.5:
            run.api.compact()
        run.api.fail(Answer(status=code, retry_after=retry_after), plural=plural, times=None)
        run.api.cut()
        yield
        run.api.heal()

    return act


def _garbage(run: Run, rng: random.Random) -> Iterator[None]:
    """Lines that are no JSON, or no event, in the middle of a watch; answers likewise."""
    lines = (
        b"\x00\xff\xfe garbage\n", b"{]\n", b"[]\n", b'"text"\n', b"null\n", b'{"type":7}\n',
        b'{"type":"ADDED","object":{}}\n', b'{"type":"ADDED","object":null}\n',
        b'{"type":"NOBODY KNOWS","object":{"metadata":{}}}\n', b"\n\n\n", b"<html>502</html>\n",
    )  # fmt: skip
    for _ in range(rng.randint(1, 3)):
        run.api.slip(rng.choice(PLURALS), rng.choice(lines), then_cut=rng.random() < 0.3)
    if rng.random() < 0.5:
        body = rng.choice([b"<html>who knows</html>", b"", b"[]", b"null", b"{}", b"\xff\xfe"])
        run.api.fail(Answer(body=body), plural=rng.choice(PLURALS), times=rng.randint(1, 3))
        run.api.compact()
        run.api.cut()
    yield
    run.api.heal()


def _half_an_object(run: Run, rng: random.Random) -> Iterator[None]:
    """A watch, or a list, that ends in the middle of an object."""
    event = _event(run, "MODIFIED", rng)
    for plural in PLURALS:
        run.api.slip(plural, event[: rng.randrange(1, len(event) - 1)], then_cut=True)
    if rng.random() < 0.5:
        body = b'{"kind":"ServiceList","metadata":{"resourceVersion":"9"},"items":[{"metad'
        run.api.fail(Answer(body=body), verb="list", plural=rng.choice(PLURALS), times=2)
        run.api.compact()
    yield
    run.api.heal()
    run.api.cut()


def _expired_credentials(run: Run, rng: random.Random) -> Iterator[None]:
    """The token is no longer taken; a new one lies in its file only after a while."""
    token = f"token-{rng.randrange(1 << 30)}"
    run.api.token = token
    run.api.cut()
    yield
    (run.folder / "agent" / "token").write_text(token)


def _certificate(run: Run, rng: random.Random) -> Iterator[None]:
    """Another certificate: of an authority that nobody trusts, then a renewed one."""
    certificates = run.stage.certificates
    run.api.change_certificate(*certificates.stranger)
    run.api.cut()
    yield
    run.api.change_certificate(*rng.choice([certificates.renewed, certificates.first]))
    if rng.random() < 0.5:
        run.api.cut()


def _missing_in_a_list(run: Run, rng: random.Random) -> Iterator[None]:
    """Objects go while no watch can tell: only the next list does, by not having them."""
    run.api.fail(Answer(status=503), verb="watch", times=None)
    run.api.cut()
    for kind, _, name in sorted(run.api.store.keys()):
        if name.startswith("churn") and rng.random() < 0.5:
            run.api.delete(kind, name)
    yield
    run.api.compact()
    run.api.heal()


def _event(run: Run, what: str, rng: random.Random, kind: str = "Service") -> bytes:
    """An event of an object as it is now."""
    names = [key for key in sorted(run.api.store.keys()) if key[0] == kind]
    return _line(run, what, rng.choice(names))


def _line(run: Run, what: str, key: tuple[str, str, str]) -> bytes:
    kind, namespace, name = key
    stored = run.api.store.get(BY_KIND[kind], namespace, name)
    if stored is None:  # gone meanwhile: the event says so
        meta = {"namespace": namespace, "name": name, "resourceVersion": "1"}
        return json.dumps({"type": "DELETED", "object": {"metadata": meta}}).encode() + b"\n"
    body = stored.whole(BY_KIND[kind]).decode()
    return f'{{"type":"{what}","object":{body}}}\n'.encode()


def _replayed(run: Run, rng: random.Random) -> Iterator[None]:
    """Events come twice, in another order, of objects that are gone or never were."""
    yield
    for _ in range(rng.randint(2, 6)):
        kind = rng.choice(["Service", "EndpointSlice", "Node"])
        raw = _event(run, rng.choice(["ADDED", "MODIFIED"]), rng, kind)
        run.api.slip(_RESOURCES[kind], raw * rng.randint(1, 3))
    ghost = {"metadata": {"namespace": "default", "name": "ghost", "resourceVersion": "1"}}
    line = json.dumps({"type": "DELETED", "object": ghost}) + "\n"
    run.api.slip(rng.choice(PLURALS), line.encode())


def _history_again(run: Run, rng: random.Random) -> Iterator[None]:
    """A watch tells the past again, in order, before it goes on."""
    keys = [key for key in sorted(run.api.store.keys()) if key[0] in _RESOURCES]
    chosen = rng.sample(keys, min(len(keys), 12))
    past = [(key, _line(run, "MODIFIED", key)) for key in chosen]
    yield
    run.churn(rng)
    for key, line in past:
        run.api.slip(_RESOURCES[key[0]], line + _line(run, "MODIFIED", key))
    if rng.random() < 0.5:
        run.api.cut()


def _absurd_objects(run: Run, rng: random.Random) -> Iterator[None]:
    """Objects that cannot be used, among those that can."""
    bad: list[Object] = [
        {"kind": "Service", "metadata": {"name": "bad-1", "namespace": "default"}, "spec": None},
        {"kind": "Service", "metadata": {"name": "bad-2", "namespace": "default"},
         "spec": {"clusterIP": "-j ACCEPT", "ports": [{"port": "80; reboot"}]}},
        {"kind": "EndpointSlice", "metadata": {"name": "bad-3", "namespace": "default",
         "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "FQDN",
         "endpoints": None, "ports": None},
    ]  # fmt: skip
    run.api.put(*bad)
    if rng.random() < 0.5:
        run.api.compact()
        run.api.cut()
    yield
    for obj in bad:
        run.api.delete(obj["kind"], obj["metadata"]["name"])


FAULTS = (
    Fault("API server: killed and started again", _killed),
    Fault("API server: connections cut", _cut),
    Fault("API server: slow", _slow),
    Fault("API server: silent", _silent, says=("watch silent",), seconds=READ_TIMEOUT + 0.5),
    Fault("API server: 410", _gone),
    Fault("API server: 429 with Retry-After", _answers(429, "1")),
    Fault("API server: 500", _answers(500)),
    Fault("API server: 403 for a while", _answers(403)),
    Fault("API server: garbage", _garbage),
    Fault("API server: half an object", _half_an_object),
    Fault("API server: expired credentials", _expired_credentials),
    Fault("API server: a certificate that changes", _certificate),
    Fault("API server: things missing in a list", _missing_in_a_list),
    Fault("API server: duplicate and reordered events", _replayed),
    Fault("API server: old events again", _history_again),
    Fault("API server: absurd objects", _absurd_objects),
)
