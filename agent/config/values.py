"""Kinds of values: how each is read from text or YAML, and how it is printed.

A flag and a variable are always text; a file may also hold numbers, booleans and lists. Every
kind reads both, and what it prints it can read again.
"""

from __future__ import annotations

import re
import urllib.parse
from abc import ABC, abstractmethod
from typing import ClassVar

from agent.config.durations import format_duration, parse_duration
from agent.config.errors import BadValueError
from agent.state.addresses import parse_cidr, parse_ip
from agent.state.values import Family

#: What a value looks like in YAML and before it becomes a field of ``Config``.
Plain = str | int | float | bool | tuple[str, ...]


def split_host_port(address: str) -> tuple[str, int]:
    """Host and port of a canonical bind address such as ``0.0.0.0:10256`` or ``[::1]:10249``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class ValueType(ABC):
    """A kind of value.

    Attributes:
        name: what documentation and help call it.
        many: the flag may be given several times.
    """

    name: ClassVar[str]
    many: ClassVar[bool] = False

    @abstractmethod
    def read(self, raw: object) -> Plain:
        """Turn text or a YAML value into a plain value.

        Raises:
            BadValueError: it is not such a value.
        """

    def show(self, value: Plain) -> str:
        """Text of a value that ``read`` gave."""
        return str(value)


class Text(ValueType):
    """Any text without control characters, stripped."""

    name = "text"

    def read(self, raw: object) -> str:
        """See ``ValueType``."""
        if not isinstance(raw, str):
            raise BadValueError(f"{raw!r} is not text; put it in quotes")
        text = raw.strip()
        if not text.isprintable():
            raise BadValueError(f"{raw!r} holds control characters")
        return text


class NodeName(Text):
    """A Node's name: a DNS subdomain (RFC 1123), in lower case as kube-proxy makes it."""

    name = "name"
    _label = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
    _pattern = re.compile(rf"{_label}(?:\.{_label})*")

    def read(self, raw: object) -> str:
        """See ``ValueType``."""
        text = super().read(raw).lower()
        if text and not (self._pattern.fullmatch(text) and len(text) <= 253):
            raise BadValueError(f"{text!r} is not a Node's name (letters, digits, '-' and '.')")
        return text


class Interface(Text):
    """A network interface's name or the beginning of one; the kernel allows 15 characters."""

    name = "interface"

    def read(self, raw: object) -> str:
        """See ``ValueType``."""
        text = super().read(raw)
        if len(text) > 15 or "/" in text or any(char.isspace() for char in text):
            raise BadValueError(f"{text!r} is not an interface name (15 characters, no '/')")
        return text


class Url(Text):
    """Address of the API server."""

    name = "URL"

    def read(self, raw: object) -> str:
        """See ``ValueType``."""
        text = super().read(raw)
        if not text:
            return text
        try:
            parts = urllib.parse.urlsplit(text)
            valid = parts.scheme in {"http", "https"} and bool(parts.hostname)
            _ = parts.port  # reading it checks it
        except ValueError:
            valid = False
        if not valid:
            raise BadValueError(f'{text!r} is not a URL such as "https://192.0.2.10:6443"')
        return text.rstrip("/")


class Choice(Text):
    """One of a few words.

    Args:
        allowed: the words.
        read_as: other words that are accepted, and the word that each stands for.
    """

    name = "word"

    def __init__(self, *allowed: str, read_as: dict[str, str] | None = None) -> None:
        self.allowed = allowed
        self.read_as = read_as or {}

    def read(self, raw: object) -> str:
        """See ``ValueType``."""
        text = super().read(raw)
        text = self.read_as.get(text, text)
        if text not in self.allowed:
            raise BadValueError(f"{text!r} is not one of {', '.join(self.allowed)}")
        return text


class Switch(ValueType):
    """True or false."""

    name = "true or false"
    _words: ClassVar[dict[str, bool]] = {"true": True, "false": False, "1": True, "0": False}

    def read(self, raw: object) -> bool:
        """See ``ValueType``."""
        value = self._words.get(raw.strip().lower()) if isinstance(raw, str) else raw
        if not isinstance(value, bool):
            raise BadValueError(f"{raw!r} is neither true nor false")
        return value

    def show(self, value: Plain) -> str:
        """See ``ValueType``."""
        return "true" if value else "false"


class Number(ValueType):
    """A whole number in a range; both ends belong to it."""

    name = "number"

    def __init__(self, lowest: int, highest: int) -> None:
        self.lowest = lowest
        self.highest = highest

    def read(self, raw: object) -> int:
        """See ``ValueType``."""
        value = raw
        if isinstance(raw, str) and re.fullmatch(r"-?[0-9]{1,12}", raw.strip()):
            value = int(raw)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadValueError(f"{raw!r} is not a whole number")
        if not self.lowest <= value <= self.highest:
            raise BadValueError(f"{value} is not from {self.lowest} to {self.highest}")
        return value


class Duration(ValueType):
    """A length of time; seconds once it is read."""

    name = "duration"

    def __init__(self, *, zero: bool) -> None:
        self.zero = zero

    def read(self, raw: object) -> float:
        """See ``ValueType``."""
        if isinstance(raw, int) and not isinstance(raw, bool) and raw != 0:
            raise BadValueError(f'{raw} has no unit; {raw} seconds are "{raw}s"')
        if not isinstance(raw, str) and raw != 0:
            raise BadValueError(f'{raw!r} is not a duration such as "30s"')
        seconds = parse_duration(str(raw).strip())
        if seconds == 0 and not self.zero:
            raise BadValueError("it must be longer than 0")
        return seconds

    def show(self, value: Plain) -> str:
        """See ``ValueType``."""
        return format_duration(value) if isinstance(value, (int, float)) else str(value)


class HostPort(Text):
    """Where a server listens; a port alone means every address, and empty switches it off."""

    name = "IP:port"

    def __init__(self, default_port: int) -> None:
        self.default_port = default_port

    def read(self, raw: object) -> str:
        """See ``ValueType``."""
        text = super().read(raw)
        if not text:
            return text
        host, port = self._split(text)
        address = parse_ip(host)
        if address is None:
            raise BadValueError(f'{text!r} is not IP:port, such as "127.0.0.1:10249" or ":10249"')
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise BadValueError(f"{port!r} is not a port from 1 to 65535")
        family, ip = address
        return f"[{ip}]:{int(port)}" if family is Family.V6 else f"{ip}:{int(port)}"

    def _split(self, text: str) -> tuple[str, str]:
        """Host and port; a host that is no address means that neither could be told."""
        if parse_ip(text):
            return text, str(self.default_port)
        if text.startswith("["):
            host, _, rest = text[1:].partition("]")
            return host, rest.removeprefix(":") if rest else str(self.default_port)
        host, colon, port = text.rpartition(":")
        if colon and not host:
            return "::", port
        return ("", "") if ":" in host else (host, port)


class Address(Text):
    """One IP address."""

    name = "IP"

    def read(self, raw: object) -> str:
        """See ``ValueType``."""
        address = parse_ip(super().read(raw))
        if address is None:
            raise BadValueError(f"{raw!r} is not an IP address")
        return address[1]


class Many(ValueType):
    """Several words: a list in YAML; with commas, or a flag given several times, elsewhere."""

    name = "list"
    many = True

    def read(self, raw: object) -> tuple[str, ...]:
        """See ``ValueType``."""
        given = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) for one in given):
            raise BadValueError(f"{raw!r} is not a list of words")
        words = [word.strip() for one in given for word in self.split(one)]
        return self.check(tuple(word for word in words if word))

    def split(self, text: str) -> list[str]:
        """Words of one element of a list."""
        return text.split(",")

    def check(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Validate and canonicalise the words; raises as ``read``."""
        return words

    def show(self, value: Plain) -> str:
        """See ``ValueType``."""
        return ",".join(value) if isinstance(value, tuple) else str(value)


class Paths(Many):
    """Files and folders; in a list, each is taken as it stands, commas and all."""

    name = "paths"

    def split(self, text: str) -> list[str]:
        """See ``Many``."""
        return [text]


class Addresses(Many):
    """At most one IP address of each family."""

    name = "IPs"

    def check(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """See ``Many``."""
        parsed = [parse_ip(word) for word in words]
        found = [address for address in parsed if address is not None]
        if len(found) < len(words):
            bad = words[parsed.index(None)]
            raise BadValueError(f"{bad!r} is not an IP address")
        _one_of_each(found, "address")
        return tuple(text for _, text in found)


class Ranges(Many):
    """CIDR ranges.

    Args:
        word: this word is allowed instead.
        pair: at most one of each family.
    """

    name = "CIDRs"

    def __init__(self, *, word: str = "", pair: bool = False) -> None:
        self.word = word
        self.pair = pair

    def check(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """See ``Many``."""
        if self.word and self.word in words:
            if len(words) > 1:
                raise BadValueError(f"{self.word!r} and ranges cannot stand together")
            return words
        parsed = [parse_cidr(word) for word in words]
        found = [cidr for cidr in parsed if cidr is not None]
        if len(found) < len(words):
            bad = words[parsed.index(None)]
            raise BadValueError(f'{bad!r} is not a range such as "10.244.0.0/16"')
        if self.pair:
            _one_of_each(found, "range")
        return tuple(text for _, text in found)


class Families(Many):
    """IP families in order of preference; ``auto`` or nothing means all that work."""

    name = "families"

    def check(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """See ``Many``."""
        if words == ("auto",):
            return ()
        names = {family.value.lower(): family.value for family in Family}
        for word in words:
            if word.lower() not in names:
                raise BadValueError(f"{word!r} is not one of auto, {', '.join(names.values())}")
        return tuple(dict.fromkeys(names[word.lower()] for word in words))

    def show(self, value: Plain) -> str:
        """See ``ValueType``."""
        return super().show(value) or "auto"


def _one_of_each(found: list[tuple[Family, str]], noun: str) -> None:
    """Refuse two of one family."""
    for family in Family:
        same = [text for one, text in found if one is family]
        if len(same) > 1:
            raise BadValueError(f"more than one {family.value} {noun}: {', '.join(same)}")
