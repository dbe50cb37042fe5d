from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.feed import Deleted, Rejected, Upserted
from agent.cluster.objects import Key, Kind
from agent.cluster.transport import StatusError
from agent.cluster.wire import GarbledError, read_line, read_page

_OBJECT = b'{"metadata":{"name":"s","namespace":"n","resourceVersion":"41"}}'


def _line(kind: bytes, obj: bytes = _OBJECT) -> bytes:
    return b'{"type":"' + kind + b'","object":' + obj + b"}"


def test_a_page_has_the_list_s_version() -> None:
    """The version is the list's, 100, and not that of its newest item, 40."""
    page = read_page(
        Kind.SERVICE,
        b'{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"100",'
        b'"continue":"next"},"items":[{"metadata":{"name":"a","resourceVersion":"40"}},{"spec":7}]}',
    )

    assert (page.version, page.token) == ("100", "next")
    assert [obj.metadata.name for obj in page.objects] == ["a"]
    assert [rejected.key for rejected in page.rejected] == [None]


def test_a_list_without_items_is_empty() -> None:
    """Null items are how Go writes an empty list."""
    page = read_page(Kind.NODE, b'{"metadata":{"resourceVersion":"1"},"items":null}')

    assert page.objects == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"metadata":{},"items":[]}',
        b'{"kind":"NodeList","metadata":{"resourceVersion":"1"},"items":[]}',
        b'{"kind":"Status","metadata":{"resourceVersion":"1"}}',
        b'{"metadata":{"resourceVersion":"1"},"items":{}}',
        b'{"metadata":{"resourceVersion":"1"},"items":[{}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_this_list_is_garbled(body: bytes) -> None:
    """An answer that is not a list of the kind, with a version, is never taken for empty."""
    with pytest.raises(GarbledError):
        read_page(Kind.SERVICE, body)


def test_events_and_bookmarks() -> None:
    """Each type of event is what it says, and carries the version to go on from."""
    added = read_line(Kind.SERVICE, _line(b"ADDED"))
    modified = read_line(Kind.SERVICE, _line(b"MODIFIED"))
    deleted = read_line(Kind.SERVICE, _line(b"DELETED"))
    bookmark = read_line(Kind.SERVICE, _line(b"BOOKMARK", b'{"metadata":{"resourceVersion":"99"}}'))

    assert isinstance(added.event, Upserted)
    assert isinstance(modified.event, Upserted)
    assert deleted.event == Deleted(Kind.SERVICE, Key("n", "s"))
    assert {added.version, modified.version, deleted.version} == {"41"}
    assert (bookmark.event, bookmark.version, bookmark.unknown) == (None, "99", "")


def test_an_unusable_object_still_has_a_version() -> None:
    """The watch goes on from behind it; only its deletion needs no more than its name."""
    bad = b'{"metadata":{"name":"s","namespace":"n","resourceVersion":"42"},"spec":7}'

    added = read_line(Kind.SERVICE, _line(b"ADDED", bad))
    assert isinstance(added.event, Rejected)
    assert (added.event.key, added.version) == (Key("n", "s"), "42")
    assert read_line(Kind.SERVICE, _line(b"DELETED", bad)).event == Deleted(
        Kind.SERVICE, Key("n", "s")
    )
    nameless = read_line(Kind.SERVICE, _line(b"DELETED", b"7"))
    assert isinstance(nameless.event, Rejected)
    assert nameless.version == ""


def test_an_unknown_type_is_reported_as_that() -> None:
    """It is no event, and its object is not looked into."""
    line = read_line(Kind.SERVICE, _line(b"PONDERED", b"7"))

    assert (line.event, line.version, line.unknown) == (None, "", "PONDERED")


def test_error_events_have_their_code() -> None:
    """410 in a stream is told from other errors; a Status that is none has code 0."""
    gone = b'{"kind":"Status","code":410,"reason":"Expired","message":"too old"}'
    with pytest.raises(StatusError, match="too old") as caught:
        read_line(Kind.SERVICE, _line(b"ERROR", gone))
    assert (caught.value.status, caught.value.in_stream) == (410, True)
    with pytest.raises(StatusError) as caught:
        read_line(Kind.SERVICE, _line(b"ERROR", b'"what"'))
    assert caught.value.status == 0


@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_garble(raw: bytes) -> None:
    """Whatever comes in place of a line is garbled, or a line of an unknown type."""
    try:
        line = read_line(Kind.SERVICE, raw)
    except GarbledError:
        return
    assert line.unknown or line.event
