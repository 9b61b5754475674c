"""The table of reliability, as markdown: what a fault does to the official SDKs' clients, and what it does here.

`python tests/reliability/table.py` prints it. The second column was seen by running openreward 0.1.167 and ors-sdk
0.1.0 against such faults; a dash is where they were not tried. Each cell of the third names the test that shows it, in
`tests/reliability/`; another test makes sure that it is there.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One fault."""

    fault: str
    sdk: str
    ours: str
    test: str


def _fault(case: str) -> str:
    return f"test_exactly_once.py::test_fault[{case}]"


ROWS = (
    # --- A call
    Row(
        "The reply is lost after the tool ran (reset, 502, 504)",
        "the tool runs twice, up to six times if it goes on",
        "runs once; `OutcomeUnknown`",
        _fault("call-reset_after_answer_always"),
    ),
    Row(
        "A gateway answers 502 after the tool ran",
        "the tool runs twice",
        "runs once; `OutcomeUnknown`",
        _fault("call-502_after_answer"),
    ),
    Row(
        "The stream ends before `task_id`, again and again",
        "runs without end (24 times in 12 s)",
        "runs once; `OutcomeUnknown`",
        _fault("call-ended_after_head_always"),
    ),
    Row(
        "The server is silent before `task_id`",
        "the tool runs twice after 30 s",
        "runs once; `OutcomeUnknown`",
        _fault("call-silent_before_head"),
    ),
    Row(
        "Setup takes longer than 30 s",
        "the first tool runs twice (on ors-sdk's server)",
        "waits with a request that is safe to repeat; runs once",
        "test_limits.py::test_setup_slower_than_a_response_is_waited_for",
    ),
    Row(
        "The stream breaks off after `task_id`",
        "resumed; runs once",
        "resumed with the same id; runs once",
        _fault("call-reset_in_chunk"),
    ),
    Row(
        "Every stream breaks off after `task_id`",
        "never ends: each 200 resets the counter",
        "`TransportError` after a bounded number without progress",
        _fault("call-reset_after_task_id_always"),
    ),
    Row(
        "The server forgot the result",
        "`ToolFailed`, and the session is ended",
        "`ResultLost`; the session goes on",
        _fault("call-forgotten"),
    ),
    Row(
        "An HTML page or JSON instead of a stream",
        "`ValueError`, or sent again until a stream comes",
        "`ProtocolError`; sent once",
        _fault("call-html"),
    ),
    Row(
        "A connection went stale while the model generated",
        "—",
        "never sent on it; no `OutcomeUnknown`",
        "test_processes.py::test_connection_that_the_server_closed_while_the_loop_was_blocked_loses_no_call",
    ),
    Row(
        "The event loop is blocked for longer than a limit",
        "the result is read",
        "the result is read",
        "test_time.py::test_blocked_loop_longer_than_a_limit_does_not_lose_the_answer",
    ),
    Row(
        "A long call with nothing but keepalive comments",
        "—",
        "finishes",
        "test_limits.py::test_call_that_shows_nothing_but_life_outlasts_every_limit",
    ),
    Row(
        "The reply to `score_group` is lost, which may cost a judge's call",
        "—",
        "scored once; `OutcomeUnknown`",
        _fault("score_group-reset_after_answer"),
    ),
    Row(
        "The link breaks again and again, and gets a little further each time",
        "—",
        "resumed, however often",
        "test_resume.py::test_call_that_gets_further_each_time_is_resumed_any_number_of_times",
    ),
    # --- Waiting
    Row(
        "`/prompt` is accepted and never answered",
        "hangs",
        "asked again; `DeadlineExceeded` names `start_up`",
        "test_limits.py::test_setup_that_never_ends_meets_its_limit",
    ),
    Row(
        "429 with `Retry-After` as a date, or 25 s",
        "after 1 s; cut to 10 s or ignored",
        "honoured in both forms",
        _fault("call-429_date"),
    ),
    Row(
        "503 while the backend starts, six times",
        "openreward waits, ors-sdk gives up after three",
        "waits until `start_up`",
        _fault("call-503_starting_always"),
    ),
    Row(
        "400, 404 or 422",
        "ors-sdk sends each three times",
        "told at once",
        _fault("prompt-422"),
    ),
    Row(
        "The server is away for a while",
        "a call is given up after 13 to 17 s",
        "waited for until `start_up`",
        "test_load.py::test_rollouts_wait_for_a_server_that_is_away",
    ),
    Row(
        "The server restarts",
        "HTTP 404 or `RuntimeError`, the session is not marked as gone",
        "`SessionLost`; new sessions work",
        "test_load.py::test_restarted_server_loses_sessions_clearly_and_serves_new_ones",
    ),
    Row(
        "An endless stream, a flood, a huge or deep answer",
        "—",
        "`LimitExceeded` names the setting",
        "test_limits.py::test_endless_stream_ends_in_an_error_that_names_the_limit",
    ),
    # --- Sessions
    Row(
        "The reply to `/create` is lost",
        "`Session already exists`, one environment left running",
        "the id is deleted, a fresh session is opened",
        _fault("create-reset_after_answer"),
    ),
    Row(
        "The constructor goes on after its request was lost",
        "an environment left running",
        "deleted when it shows itself",
        "test_lifetime.py::test_session_whose_constructor_outlasts_its_request_is_deleted",
    ),
    Row(
        "`/create` is refused",
        "the id is not deleted",
        "deleted",
        "test_lifetime.py::test_session_that_fails_to_open_leaves_nothing",
    ),
    Row(
        "Cancelled during `/create`, or by `anyio.move_on_after`",
        "an environment left running",
        "deleted, whatever the moment",
        "test_cancellation.py::test_cancelled_session_is_deleted",
    ),
    Row(
        "Cancelled at each step of an episode, again and again",
        "—",
        "deleted",
        "test_cancellation.py::test_session_cancelled_at_any_step_is_deleted",
    ),
    Row(
        "The interpreter exits, or SIGTERM and SIGINT, with an open session",
        "left running until the server reaps it",
        "deleted; exit within 5 s, without warnings",
        "test_lifetime.py::test_program_that_ends_with_an_open_session_leaves_nothing",
    ),
    Row(
        "`/delete` fails",
        "given up in silence",
        "tried again; else logged once with its id, and counted",
        "test_lifetime.py::test_session_that_cannot_be_deleted_is_logged_once_with_its_id",
    ),
    # --- Keepalive
    Row(
        "The event loop is blocked, or a blocking caller thinks",
        "ors-sdk does not ping",
        "pinged by a thread of its own",
        "test_keepalive.py::test_session_outlives_a_blocked_event_loop",
    ),
    Row(
        "500 streams are open",
        "pings time out waiting for a connection",
        "pinged through connections of their own",
        "test_keepalive.py::test_sessions_outlive_500_open_streams",
    ),
    Row(
        "Pings fail for 3 s",
        "ors-sdk ends the rollout",
        "borne for `tolerance` seconds",
        "test_keepalive.py::test_five_dropped_pings_in_a_row_do_not_lose_a_session",
    ),
    Row(
        "The session is gone",
        "noticed by openreward after 240 s",
        "the running call raises `SessionLost` at the next ping",
        "test_keepalive.py::test_lost_session_ends_the_running_call_and_refuses_later_ones_at_once",
    ),
    # --- Processes
    Row(
        "Used in a forked child",
        "openreward's blocking client hangs",
        "`ClientStateError` at once; a client of its own works",
        "test_processes.py::test_fork",
    ),
    Row(
        "One client in two event loops, one after the other",
        "`Event loop is closed`",
        "works",
        "test_processes.py::test_one_client_left_open_serves_a_second_event_loop",
    ),
    Row(
        "An error crosses a process boundary",
        "can't be unpickled, and hangs `multiprocessing.Pool`",
        "arrives whole",
        "test_processes.py::test_error_travels_through_a_multiprocessing_pool",
    ),
    Row(
        "600 calls at a time",
        "—",
        "no limit on connections",
        "test_processes.py::test_600_calls_run_at_a_time",
    ),
)


def markdown() -> str:
    """Give the table."""
    lines = ["| fault | official SDKs | here | shown by |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.fault} | {row.sdk} | {row.ours} | `{row.test}` |" for row in ROWS]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())  # noqa: T201 - what it is for
