"""``/statusz``: the agent's status as a page for a browser, or as JSON for everything else.

The page is one file: no script, no image, nothing from anywhere else, and its own policy says so
to the browser. All that comes from the API server is escaped.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import msgspec

from agent.inspect.wrap import counted
from agent.serve.wire import JSON, Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.serve.statusvalues import FamilyStatus, StatusSnapshot, SyncEvent
    from agent.serve.wire import Handler

HTML = "text/html; charset=utf-8"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_REFRESH_SECONDS = 10
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: #c22; --good: #282; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 70rem;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
p { margin: .2rem 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem .25rem 0;
  text-align: left; vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } td.n { text-align: right; }
.bad { color: var(--bad); } .good { color: var(--good); } .none { opacity: .65; }
"""


def status_routes(snapshot: Callable[[], StatusSnapshot]) -> dict[str, Handler]:
    """``/statusz`` for whoever asks for HTML, and as JSON for all others."""

    def handle(request: Request) -> Response:
        status = snapshot()
        if "text/html" not in request.headers.get("accept", ""):
            return Response(200, msgspec.json.encode(status), JSON)
        headers = (("Content-Security-Policy", _POLICY), ("Cache-Control", "no-store"))
        return Response(200, page(status).encode(), HTML, headers)

    return {"/statusz": handle}


def page(status: StatusSnapshot) -> str:
    """The whole page."""
    facts = status.facts
    title = f"onenth on {facts.node}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_headline(status))}</p>",
        _section("Agent", _facts_table(status)),
        _section("Families", _families(status.families)),
        _section("Set aside", _set_aside(status.families)),
        _section("Objects with problems", _unusable(status)),
        _section("Latest syncs", _syncs(status.syncs)),
        _section("Latest audits", _audits(status)),
        _section("Counters since the start", _counters(status.counters)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"{''.join(body)}</body></html>\n"
    )


def _headline(status: StatusSnapshot) -> str:
    waiting = [one for one in status.families if one.waiting_seconds is not None]
    if any(one.failures for one in status.families):
        state = "syncs fail"
    elif any(one.contested for one in status.families):
        state = "another program keeps writing our rules"
    elif waiting:
        state = "changes wait for the kernel"
    elif all(one.synced for one in status.families):
        state = "the kernel holds what it should"
    else:
        state = "starting"
    return f"{status.at}: {state}; up for {_duration(status.uptime_seconds)}"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (left, "s")]
    shown = [f"{number} {unit}" for number, unit in parts if number][:2]
    return " ".join(shown) or "0 s"


def _section(title: str, content: str) -> str:
    return f'<h2>{escape(title)}</h2><div class="scroll">{content}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of escaped text; numbers stand to the right."""
    lines = []
    for row in rows:
        cells = "".join(
            f'<td class="n">{cell}</td>' if isinstance(cell, int | float) else _cell(str(cell))
            for cell in row
        )
        lines.append(f"<tr>{cells}</tr>")
    if not lines:
        return '<p class="none">none</p>'
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cell(text: str) -> str:
    style = ' class="bad"' if text.startswith("failed") else ""
    return f"<td{style}>{escape(text)}</td>"


def _facts_table(status: StatusSnapshot) -> str:
    facts = status.facts
    rows = [
        ("Version", f"onenth {facts.version}, Python {facts.python}, Linux {facts.kernel}"),
        ("iptables", f"{facts.backend} {facts.iptables}: {facts.reason}"),
        ("Services from", facts.source),
        ("Privileges", facts.privileges),
        ("Started", status.started),
        ("First lists", ", ".join(status.lists) or "not complete"),
        ("Waiting", ", ".join(counted(number, kind) for kind, number in status.queue.items())),
    ]
    return _table(("", ""), rows)


def _families(families: Sequence[FamilyStatus]) -> str:
    head = ("Family", "Services", "Endpoints", "Rules", "Dispatch", "Node", "Pods by", "Last sync")
    rows = [
        (
            one.family,
            one.services,
            one.endpoints,
            ", ".join(f"{count} {table}" for table, count in one.rules.items()),
            one.dispatch,
            one.node_ip,
            one.detect_local or "nothing",
            one.last_sync or "never",
        )
        for one in families
    ]
    return _table(head, rows)


def _set_aside(families: Sequence[FamilyStatus]) -> str:
    rows = [
        (one.family, aside.service, aside.reason, aside.refusals, f"{aside.retry_seconds:g} s")
        for one in families
        for aside in one.set_aside
    ]
    return _table(("Family", "Service", "Why", "Refusals", "Again in"), rows)


def _unusable(status: StatusSnapshot) -> str:
    rows = [(one.kind, one.object, "; ".join(one.reasons)) for one in status.unusable]
    return _table(("Kind", "Object", "Why"), rows)


def _syncs(syncs: Sequence[SyncEvent]) -> str:
    head = ("At", "Family", "Why", "Result", "Services", "Lines", "Seconds")
    rows = [
        (
            one.at,
            one.family,
            ", ".join(one.why),
            sync_result(one),
            one.services,
            one.lines,
            one.seconds,
        )
        for one in syncs
    ]
    return _table(head, rows)


def sync_result(one: SyncEvent) -> str:
    """What came of a sync, in words."""
    if not one.accepted:
        return f"failed ({one.error}), again in {one.retry_seconds:g} s"
    return "full, accepted" if one.full else "accepted"


def _audits(status: StatusSnapshot) -> str:
    rows = [
        (
            one.at,
            one.family,
            "failed" if one.differences is None else str(one.differences),
            "; ".join(one.first) or one.error,
        )
        for one in status.audits
    ]
    return _table(("At", "Family", "Differences", "First"), rows)


def _counters(counters: dict[str, int]) -> str:
    return _table(("What", "How many"), counters.items())
