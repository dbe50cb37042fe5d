from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import pytest

from agent.kernel.sysctl import (
    HASH_SIZE,
    TCP_BE_LIBERAL,
    Outcome,
    Reading,
    Result,
    Sysctls,
    apply_conntrack,
    entries_wanted,
)

MAX = "net/netfilter/nf_conntrack_max"


@dataclasses.dataclass(frozen=True)
class Settings:
    """kube-proxy's ``conntrack`` configuration, with everything left as it is."""

    max_per_core: int = 0
    min: int = 0
    tcp_established_timeout: float = 0
    tcp_close_wait_timeout: float = 0
    tcp_be_liberal: bool = False
    udp_timeout: float = 0
    udp_stream_timeout: float = 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "net/netfilter").mkdir(parents=True)
    (tmp_path / "module/nf_conntrack/parameters").mkdir(parents=True)
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text, encoding="utf-8")


def get(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="ascii")


@pytest.mark.parametrize(("text", "value"), [("0\n", 0), ("1\n", 1), ("2\n", 2), (" 17 \n", 17)])
def test_numbers_are_read(root: Path, text: str, value: int) -> None:
    """Whatever number the file holds is returned, without a reason."""
    put(root, TCP_BE_LIBERAL, text)

    assert Sysctls(root).read_int(TCP_BE_LIBERAL) == Reading(value)


def test_what_cannot_be_read_has_a_reason(root: Path) -> None:
    """A missing file, a folder, an empty file and a text give no value and say why."""
    sysctls = Sysctls(root)
    put(root, "empty", "")
    put(root, "text", "four")
    put(root, "odd", "\u00e9")

    assert sysctls.read_int("gone") == Reading(None, "No such file or directory")
    assert sysctls.read_int("net") == Reading(None, "Is a directory")
    assert sysctls.read_int("empty") == Reading(None, "'' is not a number")
    assert sysctls.read_int("text") == Reading(None, "'four' is not a number")
    assert sysctls.read_int("odd").value is None


def test_only_a_different_value_is_written(root: Path) -> None:
    """An equal value is kept; with at_least a larger one is kept as well."""
    sysctls = Sysctls(root)
    put(root, MAX, "100\n")

    assert sysctls.ensure(MAX, 100) == Outcome(MAX, 100, 100, Result.KEPT)
    assert sysctls.ensure(MAX, 50, at_least=True) == Outcome(MAX, 50, 100, Result.KEPT)
    assert get(root, MAX) == "100\n"
    assert sysctls.ensure(MAX, 200, at_least=True) == Outcome(MAX, 200, 100, Result.WRITTEN)
    assert get(root, MAX) == "200\n"
    assert sysctls.ensure(MAX, 50) == Outcome(MAX, 50, 200, Result.WRITTEN)
    assert get(root, MAX) == "50\n"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOENT, errno.EINVAL])
def test_a_refusal_is_an_outcome(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Whatever error writing gives, it is reported and not raised."""
    put(root, MAX, "1\n")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "refused for the test")

    monkeypatch.setattr(Path, "write_text", refuse)

    outcome = Sysctls(root).ensure(MAX, 2)
    assert outcome == Outcome(MAX, 2, 1, Result.REFUSED, "refused for the test")


@pytest.mark.parametrize(
    ("per_core", "floor", "cores", "entries"),
    [
        (32768, 131072, 2, 131072),
        (32768, 131072, 4, 131072),
        (32768, 131072, 8, 262144),
        (32768, 131072, 128, 1048576),
        (32768, 0, 1, 32768),
        (1, 2_000_000, 1, 1048576),
        (0, 131072, 8, 0),
        (-1, 131072, 8, 0),
    ],
)
def test_entries_scale_with_cores(per_core: int, floor: int, cores: int, entries: int) -> None:
    """Per core, no fewer than the minimum, no more than a million; 0 per core leaves it alone."""
    assert entries_wanted(Settings(max_per_core=per_core, min=floor), cores) == entries


def test_all_conntrack_settings_are_applied(root: Path) -> None:
    """kube-proxy's defaults on eight cores, over a kernel's: timeouts also get shorter."""
    present = {
        MAX: "65536\n",
        HASH_SIZE: "16384\n",
        "net/netfilter/nf_conntrack_tcp_timeout_established": "432000\n",
        "net/netfilter/nf_conntrack_tcp_timeout_close_wait": "60\n",
        TCP_BE_LIBERAL: "0\n",
        "net/netfilter/nf_conntrack_udp_timeout": "30\n",
        "net/netfilter/nf_conntrack_udp_timeout_stream": "120\n",
    }
    for name, text in present.items():
        put(root, name, text)
    settings = Settings(
        max_per_core=32768,
        min=131072,
        tcp_established_timeout=86400.0,
        tcp_close_wait_timeout=3600.0,
        tcp_be_liberal=True,
        udp_timeout=60.9,
    )
    found = apply_conntrack(settings, sysctls=Sysctls(root), modules=Sysctls(root), cores=8)

    assert [(outcome.wanted, outcome.result) for outcome in found] == [
        (262144, Result.WRITTEN),
        (65536, Result.WRITTEN),
        (86400, Result.WRITTEN),
        (3600, Result.WRITTEN),
        (1, Result.WRITTEN),
        (60, Result.WRITTEN),
    ]
    assert {name: get(root, name) for name in present} == {
        MAX: "262144\n",
        HASH_SIZE: "65536\n",
        "net/netfilter/nf_conntrack_tcp_timeout_established": "86400\n",
        "net/netfilter/nf_conntrack_tcp_timeout_close_wait": "3600\n",
        TCP_BE_LIBERAL: "1\n",
        "net/netfilter/nf_conntrack_udp_timeout": "60\n",
        "net/netfilter/nf_conntrack_udp_timeout_stream": "120\n",
    }


def test_nothing_is_touched_when_everything_is_off(root: Path) -> None:
    """All zeros, as in kind: no setting is even looked at."""
    assert apply_conntrack(Settings(), sysctls=Sysctls(root), modules=Sysctls(root)) == []


def test_what_could_be_is_told_without_writing(root: Path) -> None:
    """A value that is there, or may be written, could be; a setting that is not there could not."""
    put(root, TCP_BE_LIBERAL, "0\n")
    sysctls = Sysctls(root)
    assert sysctls.could_be(TCP_BE_LIBERAL, 0)
    assert sysctls.could_be(TCP_BE_LIBERAL, 1)
    assert get(root, TCP_BE_LIBERAL) == "0\n"
    assert not sysctls.could_be(MAX, 1)
