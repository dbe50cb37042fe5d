"""``onenth render``: manifests in, restore input out, for a node that need not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.cluster.content import Severity
from agent.cluster.manifests import load
from agent.cluster.objects import LABEL_ZONE
from agent.config.node import address_policy, node_settings
from agent.rules.ruleset import RuleSet
from agent.state.node import KernelFacts, NodeInfo, node_info, node_view
from agent.state.store import Store
from agent.state.values import Family
from agent.sync.render import render as render_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.cluster.content import Manifests
    from agent.config.model import Config


class Pretended(msgspec.Struct, frozen=True):
    """What a real node would find out about itself.

    Attributes:
        labels: the Node's labels, over those of a Node among the manifests.
        facts: of the kernel and the interfaces.
        families: which to render.
    """

    labels: dict[str, str]
    facts: KernelFacts
    families: tuple[Family, ...]


class Rendered(msgspec.Struct, frozen=True):
    """Restore input, and what is wrong with the manifests.

    Attributes:
        texts: by family.
        left_out: what the manifests say that is not in the rules, with its file or object.
        remarks: what else is worth a word.
    """

    texts: dict[Family, str]
    left_out: tuple[str, ...]
    remarks: tuple[str, ...]


def render(config: Config, pretended: Pretended) -> Rendered:
    """Render manifests for a node.

    Raises:
        ManifestError: a path does not exist or cannot be read.
    """
    settings = node_settings(config)
    manifests = load(config.manifests)
    store = Store(settings.name, address_policy(config))
    told: dict[bool, list[str]] = {True: [], False: []}
    for problem in manifests.problems:
        told[problem.severity is Severity.ERROR].append(str(problem))
    told[True] += [f"{one.kind.value} {one.key}: {one.reason}" for one in manifests.rejected]
    if not manifests.services:
        told[False].append("there is no Service in the manifests")
    for service in store.replace_services(manifests.services).problems:
        told[not service.exposes].append(f"Service {service.key}: {service.text}")
    for part in store.replace_slices(manifests.slices).problems:
        told[True].append(f"EndpointSlice {part.key}: {part.text}")
    info = _node(manifests, settings.name, pretended.labels)
    texts: dict[Family, str] = {}
    for family in pretended.families:
        rules = RuleSet(node_view(family, settings, info, pretended.facts))
        rules.update(store.snapshot(0).records, store)
        texts[family] = render_rules(rules)
    return Rendered(texts, tuple(told[True]), tuple(told[False]))


def _node(manifests: Manifests, name: str, labels: Mapping[str, str]) -> NodeInfo:
    node = next((node for node in manifests.nodes if node.metadata.name == name), None)
    info = NodeInfo() if node is None else node_info(node)
    zone = labels.get(LABEL_ZONE)
    return info if zone is None else msgspec.structs.replace(info, zone=zone)
