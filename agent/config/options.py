"""The table of settings as options of a click command."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, TypeVar

import click

from agent.config.load import ENV_FILE
from agent.config.table import SETTINGS
from agent.config.values import Choice, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.config.table import Setting

_Command = TypeVar("_Command", bound="Callable[..., object]")


def click_options() -> Callable[[_Command], _Command]:
    """A decorator that gives a command every setting as an option, and ``--config``.

    The values stay text and absent ones are None, as ``load`` wants them: it reads and checks
    flags, variables and the file alike, and lists all mistakes at once. The command receives
    them by ``Setting.param``, and the file as ``config``.
    """

    def decorate(command: _Command) -> _Command:
        for setting in reversed(SETTINGS):
            command = _option(setting)(command)
        return click.option(
            "--config",
            envvar=ENV_FILE,
            type=click.Path(path_type=pathlib.Path),
            help="Configuration file, ours or kube-proxy's.",
            show_envvar=True,
        )(command)

    return decorate


def _option(setting: Setting) -> Callable[[_Command], _Command]:
    """One setting as an option."""
    default = setting.type.show(setting.default) or "none"
    help_text = f"{setting.help}  [env var: {setting.env}; default: {default}]"
    names = (setting.flag, *setting.aliases, setting.param)
    if isinstance(setting.type, Switch):  # --flag alone, or --flag=false as kube-proxy has it
        return click.option(
            *names, is_flag=False, flag_value="true", metavar="[true|false]", help=help_text
        )
    kind = "|".join(setting.type.allowed) if isinstance(setting.type, Choice) else None
    return click.option(
        *names,
        multiple=setting.type.many,
        metavar=kind or setting.type.name.upper(),
        help=help_text,
    )
