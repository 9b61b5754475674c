"""Whether there is a next attempt, and when: judged without a clock and without a server."""

import time

import pytest

from ors_client import OutcomeUnknown, RetryPolicy, SessionLost, StatusError, Timeouts, TransportError
from ors_client._protocol.operations import Address, call, ping, version
from ors_client._protocol.retry import FailedAttempt, RetryState, is_missing_route, judge_status, retry_after
from ors_client.cli.hints import hints_for
from ors_client.cli.options import ServerOptions

SHORT = RetryPolicy(attempts=3, first_delay=0.5, jitter=0.0)


def attempts(**timeouts):
    return RetryState(version(), policy=SHORT, timeouts=Timeouts(**timeouts), url="http://a.test", answered_before=True)


def unavailable(seconds):
    return FailedAttempt("HTTP 503", delivered=True, status=503, retry_after=seconds)


def test_reading_request_is_repeated_when_the_server_asks():
    assert attempts(start_up=60).after(unavailable(25.0), now=0.0) == 25.0


@pytest.mark.parametrize("seconds", [60.0, 1e9, float("inf")])
def test_server_that_asks_for_more_than_the_start_up_gets_no_next_attempt(seconds):
    with pytest.raises(TransportError, match="Retry-After of"):
        attempts(start_up=60).after(unavailable(seconds), now=0.0)


def test_fruitless_attempts_are_as_many_as_the_policy_says():
    tries = attempts()
    assert [tries.after(unavailable(None), now=0.0) for _ in range(2)] == [0.5, 1.0]
    with pytest.raises(TransportError, match="after 3 attempts"):
        tries.after(unavailable(None), now=0.0)


@pytest.mark.parametrize(
    "failure",
    [
        FailedAttempt("nothing came for 60 seconds", delivered=True, silent="response"),
        FailedAttempt("HTTP 504", delivered=True, status=504),
    ],
)
def test_call_whose_answer_is_held_back_names_buffering_and_time_outs_of_proxies(failure):
    operation = call(Address("echo"), "s", "echo", {})
    tries = RetryState(operation, policy=SHORT, timeouts=Timeouts(), url="http://a.test", answered_before=True)
    with pytest.raises(OutcomeUnknown, match=r"not repeated.*buffering.*read time-out") as caught:
        tries.after(failure, now=0.0)
    assert any("buffering" in hint for hint in hints_for(caught.value, ServerOptions("http://a.test")))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 37.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 37.0),
        ("Sun Nov  6 08:49:37 1994", 37.0),
        ("Sun, 06 Nov 1994 08:48:59 GMT", 0.0),  # it is past
        ("soon", None),
        ("-1", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after_reads_seconds_and_every_kind_of_date(value, seconds):
    assert retry_after({"retry-after": value}, now=784111740.0) == seconds


def test_retry_after_counts_from_the_servers_own_clock():
    headers = {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": "Sun, 06 Nov 1994 08:49:30 GMT"}
    assert retry_after(headers, now=0.0) == 7.0


@pytest.fixture
def far_east(monkeypatch):
    monkeypatch.setenv("TZ", "UTC-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows takes its time zone from elsewhere")
@pytest.mark.usefixtures("far_east")
def test_date_without_a_zone_is_in_utc_wherever_the_client_is():
    assert retry_after({"retry-after": "Sun Nov  6 08:49:37 1994"}, now=784111740.0) == 37.0


@pytest.mark.parametrize(("asked", "waits"), [(4.0, 5.0), (40.0, 45.0), (0.0, 1.25)])
def test_jitter_makes_the_wait_that_a_server_asked_for_longer(asked, waits):
    policy = RetryPolicy(first_delay=1.0, max_delay=20.0, jitter=0.25)
    tries = RetryState(
        version(), policy=policy, timeouts=Timeouts(), url="http://a.test", answered_before=True, draw=lambda: 1.0
    )
    assert tries.after(unavailable(asked), now=0.0) == waits


def test_jitter_takes_its_share_of_a_delay():
    policy = RetryPolicy(first_delay=1.0, jitter=0.5)
    tries = RetryState(
        version(), policy=policy, timeouts=Timeouts(), url="http://a.test", answered_before=True, draw=lambda: 0.5
    )
    assert tries.after(unavailable(None), now=0.0) == 0.75


def resumed(**progress):
    """Lose the connection of a call that runs, three times."""
    operation = call(Address("echo"), "s", "go", {})
    policy = RetryPolicy(attempts=2, first_delay=0.5, jitter=0.0)
    tries = RetryState(operation, policy=policy, timeouts=Timeouts(), url="http://a.test", answered_before=True)
    lost = FailedAttempt("the stream ended before its result", delivered=True, **progress)
    return [tries.after(lost, now=0.0, started=True) for _ in range(3)]


@pytest.mark.parametrize("progress", [{"alive": 5.0}, {"advanced": True}])
def test_call_that_gets_on_is_resumed_however_often_its_connection_is_lost(progress):
    assert resumed(**progress) == [0.5, 0.5, 0.5]


def test_call_that_does_not_get_on_is_given_up():
    with pytest.raises(TransportError, match="after 2 attempts"):
        resumed(alive=1.0)


@pytest.mark.parametrize(
    "detail",
    [
        "",
        "Not Found",  # Starlette, FastAPI, Koa; Fastify's and Spring's `error`
        "404: Not Found",  # aiohttp
        "404 page not found\n",  # Go, Traefik
        "404 Not Found",  # Hono
        "NOT_FOUND",  # Elysia
        "Cannot POST /ping",  # NestJS's `message`
        "<!DOCTYPE html>\n<html><body><pre>Cannot POST /ping</pre></body></html>\n",
        "\ufeff\n<html><head><title>404 Not Found</title></head></html>",
        "<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>",
    ],
)
def test_words_and_pages_of_frameworks_say_that_a_route_is_missing(detail):
    error = StatusError("POST /ping", status=404, detail=detail)
    assert is_missing_route(error)
    assert "There is no such route" in error.message


@pytest.mark.parametrize(
    "detail",
    [
        "Active environment not found",
        "unknown environment 'nosuch'",
        "Environment 'alpha' does not implement score_group",
        "Deployment not found.",
        "Session not found",
        "Task not found",
        "<Task 5> not found",
        "<htmlish> not found",
    ],
)
def test_words_of_an_environment_do_not_say_that_a_route_is_missing(detail):
    error = StatusError("POST /ping", status=404, detail=detail)
    assert not is_missing_route(error)
    assert "There is no such route" not in error.message


@pytest.mark.parametrize(
    ("detail", "lost"),
    [
        ("Session abc not found", True),
        ("error:\nthe session of this session has EXPIRED.", True),
        ("unknown session", True),
        ("Sessions are gone", False),
        ("gone is the session", False),
        ("session\nnot found", False),
    ],
)
def test_words_of_a_gateway_say_that_the_session_is_gone(detail, lost):
    assert isinstance(_judged(detail), SessionLost) is lost


def test_loss_of_a_session_is_looked_for_in_time_that_grows_with_the_text():
    # Were the text read anew from each of these words, it would be half an hour.
    assert not isinstance(_judged("session " * 2**17), SessionLost)


def _judged(detail):
    return judge_status(ping("s-1"), 404, {}, detail, url="http://h:1/ping", now=0.0)


@pytest.mark.parametrize(("status", "missing"), [(405, True), (400, False), (410, False), (500, False)])
def test_wrong_method_is_a_missing_route_and_no_other_status(status, missing):
    assert is_missing_route(StatusError("POST /ping", status=status, detail="Not Found")) is missing
