"""The table of settings as documentation; a test keeps docs/configuration.md equal to it."""

from __future__ import annotations

from agent.config.table import SETTINGS, Setting
from agent.config.values import Choice


def settings_table() -> str:
    """A Markdown table of every setting."""
    rows = [
        "| Key in the file | Flag | Variable | Value | Default | Meaning |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(setting) for setting in SETTINGS),
    ]
    return "\n".join(rows) + "\n"


def _row(setting: Setting) -> str:
    """One row; keys that kube-proxy does not have carry a star."""
    flags = ", ".join(f"`{flag}`" for flag in (setting.flag, *setting.aliases))
    variables = ", ".join(f"`{name}`" for name in (setting.env, *setting.env_aliases))
    kind = setting.type
    value = ", ".join(f"`{word}`" for word in kind.allowed) if isinstance(kind, Choice) else None
    default = kind.show(setting.default)
    cells = (
        f"`{setting.path}`{'' if setting.kube_proxy else ' *'}",
        flags,
        variables,
        value or kind.name,
        f"`{default}`" if default else "",
        setting.help,
    )
    return f"| {' | '.join(cells)} |"
