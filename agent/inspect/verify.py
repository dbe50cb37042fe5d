"""Is what the kernel holds right? Everything that can be told from the rules alone.

What should be there according to the API server is compared by ``agent.inspect.compare``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.inspect.check_base import check_base
from agent.inspect.check_chains import check_service_chains
from agent.inspect.check_dispatch import check_dispatch
from agent.inspect.findings import Finding, Wrong
from agent.inspect.survey import Survey

if TYPE_CHECKING:
    from agent.inspect.tables import Tables


def verify(survey: Survey, *, tcp_be_liberal: bool | None = None) -> list[Finding]:
    """Check one family's tables.

    Args:
        survey: of the tables.
        tcp_be_liberal: whether the sysctl ``nf_conntrack_tcp_be_liberal`` is set; None if it is
            not known.

    Returns:
        What is wrong, the shared rules first.
    """
    if not survey.is_held():
        text = "no rules of a Service proxy are here, neither kube-proxy's nor onenth's"
        return [Finding(Wrong.NO_RULES, survey.tables.family, "", "", text)]
    return [
        *check_base(survey, tcp_be_liberal),
        *check_dispatch(survey),
        *check_service_chains(survey),
    ]


def both_hold(survey: Survey, other: Tables, backend: str) -> list[Finding]:
    """Check that the other backend does not hold chains of a Service proxy as well.

    Args:
        survey: of the tables that are looked at.
        other: the tables of the same family in the other backend.
        backend: the other backend's name.
    """
    if not survey.is_held() or not Survey(other).is_held():
        return []
    text = f"iptables-{backend} holds chains of a Service proxy too: packets meet the rules of both"
    expected = f"none there: onenth cleanup --backend {backend}"
    family = survey.tables.family
    return [Finding(Wrong.BOTH_BACKENDS, family, "nat", "KUBE-SERVICES", text, expected=expected)]
