"""What can be wrong with rules, one kind for each, and where."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from agent.state.values import Family


class Wrong(enum.Enum):
    """A kind of fault. The value names it in JSON and is stable."""

    # The lottery.
    PROBABILITY = "probability"
    LAST_HAS_PROBABILITY = "last-has-probability"
    CASCADE_ENDS_EARLY = "cascade-ends-early"
    ENDPOINT_TWICE = "endpoint-twice"
    AFFINITY = "affinity"
    NO_ENDPOINTS = "no-endpoints"
    # Chains and jumps.
    JUMP_TO_NOTHING = "jump-to-nothing"
    ORPHAN_CHAIN = "orphan-chain"
    CHAIN_MISSING = "chain-missing"
    CANARY_MISSING = "canary-missing"
    CROSSED = "crossed"
    FALLS_THROUGH = "falls-through"
    FOREIGN_RULE = "foreign-rule"
    RULE_ORDER = "rule-order"
    # The jumps from built-in chains.
    JUMP_MISSING = "jump-missing"
    JUMP_TWICE = "jump-twice"
    JUMP_ORDER = "jump-order"
    JUMP_DIFFERS = "jump-differs"
    JUMP_SHADOWED = "jump-shadowed"
    # Dispatch.
    TAIL_MISSING = "tail-missing"
    TAIL_TWICE = "tail-twice"
    TAIL_NOT_LAST = "tail-not-last"
    PORTAL_TWICE = "portal-twice"
    PORTAL_TARGET = "portal-target"
    CONTRADICTION = "contradiction"
    FIREWALL_OPEN = "firewall-open"
    # Marks and masquerading.
    MARK_RULE = "mark-rule"
    MARK_MISMATCH = "mark-mismatch"
    MASQUERADE_RULES = "masquerade-rules"
    MASQUERADE_MISSING = "masquerade-missing"
    FORWARD_RULES = "forward-rules"
    INVALID_RULE_MISSING = "invalid-rule-missing"
    INVALID_RULE_UNNEEDED = "invalid-rule-unneeded"
    # Endpoints' chains.
    ENDPOINT_BROKEN = "endpoint-broken"
    HAIRPIN = "hairpin"
    # Names.
    HASH = "hash"
    COMMENT = "comment"
    # The whole.
    BOTH_BACKENDS = "both-backends"
    NO_RULES = "no-rules"
    # Against what should be.
    SERVICE_MISSING = "service-missing"
    SERVICE_UNEXPECTED = "service-unexpected"
    ENDPOINT_MISSING = "endpoint-missing"
    ENDPOINT_STALE = "endpoint-stale"
    RULE_MISSING = "rule-missing"
    RULE_UNEXPECTED = "rule-unexpected"
    RULE_DIFFERS = "rule-differs"


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong.

    Attributes:
        kind: what kind of fault.
        family: in which family's tables.
        table: table, empty if it concerns no single one.
        chain: chain, likewise.
        service: ``namespace/name:port``, empty if it concerns no single one.
        rule: text of the rule at fault, empty if there is none.
        number: its 1-based position, 0 if there is none.
        expected: what should be there instead, empty if nothing should.
        text: what is wrong, for people.
    """

    kind: Wrong
    family: Family
    table: str
    chain: str
    text: str
    service: str = ""
    rule: str = ""
    number: int = 0
    expected: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values, for ``-o json``."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
