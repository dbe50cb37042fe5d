from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import structlog.testing
from prometheus_client import generate_latest

from agent.inspect.traffic import Meter, attribute, read_sample, rows
from agent.kernel.errors import NetlinkError
from agent.serve.metrics import Metrics
from agent.serve.traffic import Reader, TrafficMetrics
from agent.state.values import Family
from agent.sync.port import ReadError
from tests.fakes.dumps import IPS, rules_for, sample_store, saved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.inspect.traffic import EndpointId, Portal

WEB, STICKY, API = (
    f"KUBE-SVC-{digest}" for digest in ("67NZLRHBNDSAWJRO", "25FJTMN2OLOPNGWS", "RUKNB3TURLFC6SGL")
)
ENDPOINTS = tuple(f"{ip}:8080" for ip in IPS)
PLAIN = saved(rules_for(sample_store()))


def counted(chain: str, dice: Sequence[int], sticky: Sequence[int] = (), text: str = PLAIN) -> str:
    """A dump with counters; those of a lottery as given, in the order of its rules."""
    numbers = [*sticky, *dice]
    lines = []
    for line in text.splitlines():
        is_rule = line.startswith("-A ")
        here = line.startswith(f"-A {chain} ") and " -j KUBE-SEP-" in line
        packets = numbers.pop(0) if here and numbers else 0
        lines.append(f"[{packets}:{packets * 60}] {line}" if is_rule else line)
    return "\n".join([*lines, ""])


def test_lotteries_are_read_with_their_counters() -> None:
    """Endpoints in order, with what the dice sent them; and the Service's name."""
    sample = read_sample(counted(WEB, [30, 31, 29]))
    web = sample.lotteries[WEB]

    assert (web.service, web.protocol, web.local) == ("shop/web:http", "tcp", False)
    assert web.endpoints == ENDPOINTS
    assert (web.thrown, web.returned, web.total) == ((30, 31, 29), (0, 0, 0), 90)
    assert sample.lotteries["KUBE-SVL-RUKNB3TURLFC6SGL"].local


def test_remembered_clients_count_apart() -> None:
    """They did not meet the dice."""
    sticky = read_sample(counted(STICKY, [3, 3, 3], [100, 0, 0])).lotteries[STICKY]

    assert (sticky.thrown, sticky.returned) == ((3, 3, 3), (100, 0, 0))


def test_portals_are_read_in_either_layout() -> None:
    """Addresses and node ports with the Service behind them."""
    portals = read_sample(counted(WEB, [])).portals

    assert portals["tcp", "10.96.0.1", 80] == "shop/web:http"
    assert portals["udp", "10.96.0.5", 53] == "shop/dns:dns"
    assert portals["tcp", "", 30080] == "shop/web:http"
    assert portals["tcp", "198.51.100.2", 80] == "shop/api:http"


def _rows(meter: Meter, seconds: float = 2.0) -> dict[str, object]:
    found = rows("IPv4", meter.totals, meter.latest, seconds, None)
    return {row.service: row for row in found if not row.local}


def test_rates_are_differences_over_time() -> None:
    """Two samples make a rate; the totals are since the rules were written."""
    meter = Meter(since_written=True)
    meter.take(read_sample(counted(WEB, [100, 100, 100])))
    first = _rows(meter)["shop/web:http"]
    meter.take(read_sample(counted(WEB, [110, 100, 130])))
    second = _rows(meter)["shop/web:http"]

    assert (first.per_second, first.thrown) == (0.0, 300)  # type: ignore[attr-defined]  # a Row
    assert (second.per_second, second.thrown) == (20.0, 340)  # type: ignore[attr-defined]  # likewise
    assert [one.per_second for one in second.endpoints] == [5.0, 0.0, 15.0]  # type: ignore[attr-defined]  # likewise


def test_counting_may_begin_now() -> None:
    """What was counted before is left out."""
    meter = Meter(since_written=False)
    meter.take(read_sample(counted(WEB, [100, 100, 100])))
    meter.take(read_sample(counted(WEB, [101, 102, 103])))

    assert meter.totals[WEB].thrown == (1, 2, 3)


def test_a_chain_that_was_written_again_begins_anew() -> None:
    """Counters that fall are a new beginning, never a negative rate."""
    meter = Meter(since_written=True)
    meter.take(read_sample(counted(WEB, [100, 100, 100])))
    meter.take(read_sample(counted(WEB, [2, 1, 0])))

    assert meter.latest[WEB].thrown == (2, 1, 0)
    assert meter.totals[WEB].thrown == (102, 101, 100)


def test_other_endpoints_are_another_lottery() -> None:
    """Their shares are compared from the beginning."""
    meter = Meter(since_written=True)
    meter.take(read_sample(counted(WEB, [100, 100, 100])))
    two = saved(rules_for(sample_store(endpoints=IPS[:2])))
    meter.take(read_sample(counted(WEB, [5, 4], text=two)))

    assert meter.totals[WEB].endpoints == ENDPOINTS[:2]
    assert meter.totals[WEB].thrown == (5, 4)


@pytest.mark.parametrize(
    ("dice", "fair"),
    [((10_000, 10_050, 9_950), True), ((10_000, 10_000, 13_000), False), ((4, 4, 4), None)],
)
def test_a_split_is_chance_or_not_or_too_small_to_tell(
    dice: tuple[int, int, int], *, fair: bool | None
) -> None:
    """Fair dice, loaded ones, and too few throws."""
    meter = Meter(since_written=True)
    meter.take(read_sample(counted(WEB, dice)))
    row = _rows(meter)["shop/web:http"]

    assert row.fair is fair  # type: ignore[attr-defined]  # a Row
    assert row.expected == "1/3"  # type: ignore[attr-defined]  # likewise
    assert (row.p is None) is (fair is None)  # type: ignore[attr-defined]  # likewise


def test_the_more_lotteries_the_less_a_small_p_says() -> None:
    """Among a thousand fair ones, p below a hundredth is no news: all are tested together."""
    sample = read_sample(counted(WEB, [340, 330, 240]))
    one = sample.lotteries[WEB]
    alone = rows("IPv4", {WEB: one}, {}, 1.0, None)[0]
    many = {f"{WEB}{n}": one for n in range(1000)}
    among = rows("IPv4", many, {}, 1.0, None)[0]

    assert alone.p == among.p
    assert alone.p is not None
    assert alone.p < 0.001
    assert (alone.fair, among.fair) == (False, True)


def test_established_connections_are_attributed() -> None:
    """By the address or node port that was called, and by who answers."""
    portals = read_sample(counted(WEB, [])).portals
    endpoint = ("tcp", "10.64.0.1", 8080)
    flows = [
        (("tcp", "10.96.0.1", 80), endpoint),
        (("tcp", "192.0.2.10", 30080), endpoint),
        (("tcp", "192.0.2.10", 22), ("tcp", "172.17.0.2", 22)),
    ]

    found = attribute(flows, portals)

    assert found == {("shop/web:http", endpoint): 2}


def never(error: BaseException) -> None:
    """No thread dies in these tests."""
    raise AssertionError(repr(error))


# As metrics ----------------------------------------------------------------------------------


def _metrics(
    level: str, texts: list[str], flows: Sequence[object] = ()
) -> tuple[Metrics, TrafficMetrics]:
    metrics = Metrics([Family.V4])
    reader = Reader(lambda _: texts.pop(0), lambda _: flows)  # type: ignore[arg-type,return-value]  # as the tests give them
    traffic = TrafficMetrics(metrics.parts, [Family.V4], level, reader, never)  # type: ignore[arg-type]  # one of the levels
    return metrics, traffic


FLOWS = [(("tcp", "10.96.0.1", 80), ("tcp", "10.64.0.1", 8080))] * 4
LABELS = {"ip_family": "IPv4", "service": "shop/web:http", "protocol": "tcp"}


def test_services_are_counted_from_the_start_of_the_agent() -> None:
    """New connections add up from reading to reading; established ones are as of now."""
    texts = [counted(WEB, n) for n in ([50, 50, 50], [60, 50, 55], [60, 51, 55])]
    metrics, traffic = _metrics("service", texts, FLOWS)
    for _ in range(3):
        traffic.read()
    value = metrics.registry.get_sample_value

    assert value("onenth_service_new_connections_total", LABELS) == 16
    assert value("onenth_service_established_connections", LABELS) == 4
    p = value("onenth_service_split_p_value", {**LABELS, "scope": "all"})
    assert p is not None
    assert 0 < p < 1
    assert b"onenth_endpoint_" not in generate_latest(metrics.registry)


def test_endpoints_are_counted_if_asked_for() -> None:
    """One series each."""
    metrics, traffic = _metrics(
        "endpoint", [counted(WEB, [0, 0, 0]), counted(WEB, [7, 0, 5])], FLOWS
    )
    traffic.read()
    traffic.read()
    value = metrics.registry.get_sample_value
    first = {**LABELS, "endpoint": ENDPOINTS[0]}

    assert value("onenth_endpoint_new_connections_total", first) == 7
    assert value("onenth_endpoint_established_connections", first) == 4


def test_series_of_what_is_gone_go_as_well() -> None:
    """A Service that was deleted leaves no series behind."""
    gone = saved(rules_for(sample_store("web")))
    texts = [counted(WEB, [0, 0, 0]), counted(WEB, [1, 1, 1]), counted(WEB, [], text=gone)]
    metrics, traffic = _metrics("endpoint", texts)
    for _ in range(3):
        traffic.read()

    assert b'service="shop/web:http"' not in generate_latest(metrics.registry)


def test_a_failed_reading_is_told_once_and_keeps_what_was_known() -> None:
    """Neither a scrape nor the agent fails with it."""
    metrics = Metrics([Family.V4])

    def fail(_: Family) -> str:
        raise ReadError("no privilege")

    def refuse(_: Family) -> list[tuple[Portal, EndpointId]]:
        raise NetlinkError("no table")

    broken = TrafficMetrics(metrics.parts, [Family.V4], "service", Reader(fail, refuse), never)
    with structlog.testing.capture_logs() as logged:
        broken.read()
        broken.read()

    assert [one["event"] for one in logged] == ["metrics of connections are missing"]
    assert generate_latest(metrics.registry)


def test_a_thread_reads_and_ends() -> None:
    """It reads at once, and stop waits for it."""
    metrics = Metrics([Family.V4])
    read = threading.Event()

    def rules(_: Family) -> str:
        read.set()
        return PLAIN

    traffic = TrafficMetrics(
        metrics.parts, [Family.V4], "service", Reader(rules, lambda _: ()), never
    )
    traffic.start()
    assert read.wait(5)
    traffic.stop()
    assert not [t for t in threading.enumerate() if t.name == "traffic"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_ends_the_agent() -> None:
    """What nobody expected is handed on."""
    metrics = Metrics([Family.V4])
    died: list[BaseException] = []
    ended = threading.Event()

    def rules(_: Family) -> str:
        raise ZeroDivisionError

    def note(error: BaseException) -> None:
        died.append(error)
        ended.set()

    traffic = TrafficMetrics(
        metrics.parts, [Family.V4], "service", Reader(rules, lambda _: ()), note
    )
    traffic.start()
    assert ended.wait(5)
    traffic.stop()
    assert isinstance(died[0], ZeroDivisionError)
