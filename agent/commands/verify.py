"""``onenth verify``: is what the kernel holds right?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agent.commands.expected import expect, node_warning, read_both
from agent.commands.sources import Held, Options, this_node
from agent.inspect.compare import compare
from agent.inspect.differences import differences, merge
from agent.inspect.findings import Finding, Wrong
from agent.inspect.verify import both_hold, verify
from agent.inspect.wrap import counted, indented

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.config.model import Config
    from agent.kernel.tools import Runner


class Looked(msgspec.Struct, frozen=True):
    """One family that was looked at.

    Attributes:
        family: IPv4 or IPv6.
        backend: of the kernel, or empty.
        path: of the file, or empty.
        rules: in all of its tables.
        services: service ports whose rules are there.
        held: rules of a Service proxy are there.
    """

    family: str
    backend: str
    path: str
    rules: int
    services: int
    held: bool


class Report(msgspec.Struct, frozen=True):
    """What was looked at, and what is wrong.

    Attributes:
        looked: by family.
        compared: where Services came from to compare with; empty if nowhere.
        findings: what is wrong.
        problems: of the objects that were compared with.
        warnings: what makes the comparison say less than it could.
    """

    looked: tuple[Looked, ...]
    compared: str
    findings: tuple[Finding, ...]
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Plain values, for ``-o json``."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {"sound": self.sound, **plain}


def run(options: Options, config: Config, runner: Runner | None = None) -> Report:
    """Look, and check.

    Raises:
        LookError: something could not be looked at.
        HostError: no iptables is installed, or this process may not ask.
    """
    held, objects = read_both(options, config, runner)
    node = this_node(options)
    used = [one for one in held if one.survey.is_held()] or held
    findings: list[Finding] = []
    for one in used:
        found = verify(one.survey, tcp_be_liberal=node.tcp_be_liberal)
        if objects is not None and one.survey.is_held():
            expected = expect(config, objects, one, node)
            changes = compare(one.survey, expected.rules, expected.jumps)
            different = differences(one.survey, expected.rules, changes)
            found = merge(found, different, expected.rules)
        if one.other is not None:
            found += both_hold(one.survey, one.other, _other(one.backend))
        findings += found
    if len(used) > 1 and all(one.kind is Wrong.NO_RULES for one in findings):
        findings = findings[:1]
    return Report(
        tuple(map(_looked, held)),
        objects.source if objects else "",
        tuple(findings),
        _problems(objects) if objects else (),
        tuple(filter(None, [node_warning(config, objects)])) if objects else (),
    )


def _other(backend: str) -> str:
    return "legacy" if backend == "nft" else "nft"


def _problems(objects: Any) -> tuple[str, ...]:
    rejected = (f"{one.kind.value} {one.key}: {one.reason}" for one in objects.rejected)
    return (*objects.problems, *rejected)


def _looked(held: Held) -> Looked:
    survey = held.survey
    return Looked(
        family=held.family.value,
        backend=held.backend,
        path=held.path,
        rules=held.tables.rules,
        services=len({p.service for p in survey.portals if p.service}),
        held=survey.is_held(),
    )


def as_text(report: Report, *, limit: int = 0) -> Iterator[str]:
    """The report for people, a line each, at most 80 columns wide.

    Args:
        report: of ``run``.
        limit: findings to show, 0 for all.
    """
    for one in report.looked:
        place = f"iptables-{one.backend}" if one.backend else one.path
        what = f"{counted(one.rules, 'rule')}, {counted(one.services, 'service port')}"
        yield f"{one.family}, {place}: {what if one.held else 'no rules of a Service proxy'}"
    yield from (f"compared with {report.compared}" for _ in range(bool(report.compared)))
    for problem in report.problems:
        yield from indented(f"not compared: {problem}", 0, 2)
    shown = report.findings[:limit] if limit else report.findings
    yield from _by_service(shown)
    if len(shown) < len(report.findings):
        yield ""
        yield f"... and {len(report.findings) - len(shown):,} more (--limit 0 shows all)"
    yield ""
    yield "sound" if report.sound else counted(len(report.findings), "finding")


def _by_service(findings: Sequence[Finding]) -> Iterator[str]:
    groups: dict[str, list[Finding]] = {}
    for one in findings:
        groups.setdefault(one.service, []).append(one)
    for service, mine in groups.items():
        yield ""
        yield service or "all Services"
        for one in mine:
            place = f"{one.family.value} {one.table} {one.chain}".rstrip()
            place += f" rule {one.number}" if one.number else ""
            yield f"  {place} [{one.kind.value}]"
            yield from indented(one.text, 4, 6)
            if one.rule:
                yield from indented(f"is:        {one.rule}", 4, 15)
            if one.expected:
                yield from indented(f"should be: {one.expected}", 4, 15)
