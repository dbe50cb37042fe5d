"""Configuration: flags, variables and a file with kube-proxy's names, from one table.

``agent.config.options`` (which needs click) and ``agent.config.docs`` are imported by name.
"""

from agent.config.durations import format_duration, parse_duration
from agent.config.load import ConfigError, Loaded, as_document, defaults, describe, load
from agent.config.model import PRIMARY, Config, Source
from agent.config.table import SETTINGS, Setting
from agent.config.values import split_host_port

__all__ = [
    "PRIMARY",
    "SETTINGS",
    "Config",
    "ConfigError",
    "Loaded",
    "Setting",
    "Source",
    "as_document",
    "defaults",
    "describe",
    "format_duration",
    "load",
    "parse_duration",
    "split_host_port",
]
