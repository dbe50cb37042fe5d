"""A coverage-guided attack on the whole way of an object, with atheris (``make fuzz TIME=60``).

The fuzzer makes bytes and keeps those that reach new code. The first byte says how the others come
in: as a list, as a line of a watch, as a file, or as what is put into fields of honest objects.
Any error that no room declares, and any line that is not in the grammar, ends the run with the
input saved as ``crash-...``; ``python -m tests.grammar.fuzz FILE`` runs it again.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import atheris
import msgspec

with atheris.instrument_imports(include=["agent.cluster", "agent.state", "agent.rules"]):
    from agent.cluster.objects import Kind
    from tests.fakes import objects
    from tests.grammar.pipeline import API_VERSIONS, SETTINGS, Pipeline, encode, event, page

if TYPE_CHECKING:
    from agent.rules.ruleset import Layout

KINDS = list(Kind)
SEEDS = {
    Kind.SERVICE: objects.service("evil", "10.96.0.66"),
    Kind.SLICE: objects.endpoint_slice("evil", "10.0.0.66"),
    Kind.NODE: objects.node("node-a"),
}
#: A field of each kind that text of the fuzzer's can stand in.
PLACES = {
    Kind.SERVICE: (
        ("spec", "type"), ("spec", "clusterIP"), ("spec", "clusterIPs"), ("spec", "ipFamilies"),
        ("spec", "ports"), ("spec", "externalIPs"), ("spec", "loadBalancerSourceRanges"),
        ("spec", "sessionAffinity"), ("spec", "sessionAffinityConfig"), ("metadata", "name"),
        ("metadata", "namespace"), ("metadata", "labels"), ("status", "loadBalancer"),
        ("spec", "externalTrafficPolicy"), ("spec", "internalTrafficPolicy"),
        ("spec", "healthCheckNodePort"),
    ),
    Kind.SLICE: (
        ("addressType",), ("ports",), ("endpoints",), ("metadata", "labels"), ("metadata", "name"),
        ("metadata", "annotations"),
    ),
    Kind.NODE: (
        ("spec", "podCIDR"), ("spec", "podCIDRs"), ("spec", "taints"), ("status", "addresses"),
        ("metadata", "labels"), ("metadata", "deletionTimestamp"),
    ),
}  # fmt: skip


def one_input(data: bytes) -> None:
    """What the fuzzer calls."""
    if len(data) < 3:
        return
    how, which, rest = data[0], data[1], data[2:]
    kind = KINDS[which % len(KINDS)]
    pipeline = _pipeline(which // len(KINDS) % len(SETTINGS), "tree" if how & 4 else "flat")
    match how % 4:
        case 0:
            pipeline.objects(kind, rest)
        case 1:
            pipeline.line(kind, rest)
        case 2:
            pipeline.file(rest)
        case _:
            _into_fields(pipeline, kind, rest)
    pipeline.reset()


@functools.cache
def _pipeline(number: int, layout: Layout) -> Pipeline:
    """One that is there already costs a twentieth; that nothing is left in it is checked."""
    return Pipeline(number, layout)


def _into_fields(pipeline: Pipeline, kind: Kind, data: bytes) -> None:
    """Put what the fuzzer made into fields, each as JSON if it is JSON and as text if not."""
    obj = msgspec.json.decode(encode(SEEDS[kind]))
    for part in data.split(b"\n"):
        place = PLACES[kind][part[0] % len(PLACES[kind])] if part else ()
        inner = obj
        for name in place[:-1]:
            inner = inner.setdefault(name, {})
        for name in place[-1:]:
            inner[name] = part[1:].decode("utf-8", "replace")
            with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
                inner[name] = msgspec.json.decode(part[1:])
    with contextlib.suppress(msgspec.EncodeError, OverflowError):
        pipeline.line(kind, event("ADDED", obj))


def seeds(folder: Path) -> None:
    """Honest inputs to begin with."""
    for number, (kind, obj) in enumerate(SEEDS.items()):
        head = {"kind": kind.value, "apiVersion": API_VERSIONS[kind]}
        inputs = [page(kind, [obj]), event("ADDED", obj), encode({**obj, **head})]
        for how, body in enumerate(inputs):
            (folder / f"{kind.value}-{how}").write_bytes(bytes([how, number]) + body)
        for index, place in enumerate(PLACES[kind]):
            inner = obj
            for name in place:
                inner = inner.get(name, {})
            body = bytes([3, number, index]) + encode(inner)
            (folder / f"{kind.value}-field-{index}").write_bytes(body)


def main() -> None:
    """Run libFuzzer; arguments are its own."""
    with tempfile.TemporaryDirectory() as folder:
        seeds(Path(folder))
        known = [] if any(Path(one).is_file() for one in sys.argv[1:]) else [folder]
        options = ["-max_len=2048", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]
        atheris.Setup([*sys.argv, *known, *options], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
