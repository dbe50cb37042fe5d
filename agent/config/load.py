"""Flags over variables over the file over defaults, with everything that is wrong at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from agent.config.check import cross_check
from agent.config.document import API_VERSION, KIND, Document, read_document
from agent.config.errors import BadValueError
from agent.config.model import Config, Source
from agent.config.suggest import closest
from agent.config.table import ENV_PREFIX, SETTINGS, Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence
    from pathlib import Path

    from agent.config.values import Plain, ValueType

    #: Finds problems of a configuration in which some keys, which it is given, are wrong already.
    Further = Callable[[Config, Container[str]], Iterable[str]]

#: The variable that names the configuration file; the command line reads it.
ENV_FILE = ENV_PREFIX + "CONFIG"
#: The kubelet gives every container such variables for each Service of its namespace, and a
#: Service may well be called onenth-something.
_SERVICE_LINK = re.compile(r"(_SERVICE_HOST|_SERVICE_PORT(_.+)?|_PORT(_[0-9]+_(TCP|UDP|SCTP).*)?)$")


class ConfigError(ValueError):
    """A configuration that cannot be used.

    Attributes:
        problems: all that is wrong with it, one sentence each.
        exit_code: what the process ends with.
    """

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        heading = "the configuration cannot be used:"
        super().__init__("\n  - ".join((heading, *self.problems)))


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, and where it came from.

    Attributes:
        config: the values.
        sources: where each value came from, by key.
        ignored: what was given that has no meaning here; worth one log line.
        file: the file that was read, if any.
    """

    config: Config
    sources: dict[str, Source]
    ignored: tuple[str, ...] = ()
    file: str | None = None


class _Given(msgspec.Struct):
    """A value that somebody gave, before it is read."""

    source: Source
    where: str
    raw: object


def load(
    flags: Mapping[str, str | Sequence[str] | None],
    env: Mapping[str, str],
    file: Path | None = None,
    further: Further | None = None,
) -> Loaded:
    """Put the configuration together.

    Args:
        flags: text of the flags by ``Setting.param``; None or an empty tuple is "not given".
        env: the environment; an empty variable counts as not given.
        file: the configuration file, if there is one.
        further: looks for what is wrong beyond the values themselves; asked even if some of those
            are, so that all is told at once.

    Raises:
        ConfigError: something is wrong, in whichever place and however overridden it is.
    """
    document = read_document(file) if file else Document()
    problems = [*document.problems, *_unknown_variables(env)]
    values: dict[str, Plain] = {}
    wrong: set[str] = set()
    sources: dict[str, Source] = {}
    for setting in SETTINGS:
        values[setting.path], sources[setting.path] = setting.default, "default"
        for given in _given(setting, flags, env, document):  # the least important one first
            try:
                values[setting.path] = setting.type.read(given.raw)
            except BadValueError as error:
                problems.append(f"{given.where}: {error}")
                wrong.add(setting.path)
            sources[setting.path] = given.source
    ignored = [*document.ignored]
    problems += cross_check(values, sources, ignored)
    config = msgspec.convert(_nest(values), Config)
    problems += further(config, wrong) if further else ()
    if problems:
        raise ConfigError(problems)
    return Loaded(config, sources, tuple(ignored), str(file) if file else None)


def defaults() -> Config:
    """The configuration when nothing is given."""
    return load({}, {}).config


def describe(loaded: Loaded) -> list[tuple[str, str, Source]]:
    """Key, value as text and source of every setting, in the order of the documentation."""
    plain = _flatten(loaded.config)
    return [
        (one.path, one.type.show(plain[one.path]), loaded.sources[one.path]) for one in SETTINGS
    ]


def as_document(config: Config) -> dict[str, object]:
    """The configuration as a file of ours holds it; reading it again gives the same."""
    plain = _flatten(config)
    shown = {one.path: _for_file(one.type, plain[one.path]) for one in SETTINGS}
    return {"apiVersion": API_VERSION, "kind": KIND, **_nest(shown)}


def _given(
    setting: Setting,
    flags: Mapping[str, str | Sequence[str] | None],
    env: Mapping[str, str],
    document: Document,
) -> list[_Given]:
    """Everything given for a setting, the most important one last."""
    found: list[_Given] = []
    if setting.path in document.values:
        line = document.lines.get(setting.path)
        where = f"{setting.path} (line {line})" if line else setting.path
        found.append(_Given("file", where, document.values[setting.path]))
    names = (*reversed(setting.env_aliases), setting.env)
    found += (_Given("env", name, env[name]) for name in names if env.get(name, "").strip())
    flag = flags.get(setting.param)
    if flag is not None and flag != ():
        found.append(_Given("flag", setting.flag, flag))
    return found


def _unknown_variables(env: Mapping[str, str]) -> list[str]:
    """Problems of variables that carry our prefix and are none of ours."""
    known = [ENV_FILE, *(setting.env for setting in SETTINGS)]
    problems = []
    for name in sorted(env):
        if name.startswith(ENV_PREFIX) and name not in known and not _SERVICE_LINK.search(name):
            close = closest(name, known)
            hint = f"; did you mean {close}?" if close else ""
            problems.append(f"{name} is not a variable that onenth reads{hint}")
    return problems


def _for_file(kind: ValueType, value: Plain) -> object:
    """A plain value as YAML holds it: durations as text, several words as a list."""
    if isinstance(value, tuple):
        return list(value)
    return kind.show(value) if isinstance(value, float) else value


def _nest(values: Mapping[str, object]) -> dict[str, object]:
    """``{"a.b": 1}`` as ``{"a": {"b": 1}}``; no key is deeper than that."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        target = nested.setdefault(section, {}) if section else nested
        target[name] = value
    return nested


def _flatten(config: Config) -> dict[str, Plain]:
    """Plain values by key."""
    nested = msgspec.to_builtins(config)
    flat: dict[str, Plain] = {}
    for setting in SETTINGS:
        value = nested
        for name in setting.path.split("."):
            value = value[name]
        flat[setting.path] = tuple(value) if isinstance(value, list) else value
    return flat
