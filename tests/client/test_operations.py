"""Each endpoint as bytes, and what is made of its answer."""

import json

import pytest

from ors_client import (
    GroupCandidate,
    LimitExceeded,
    Limits,
    Message,
    ProtocolError,
    Split,
    Task,
    TextBlock,
    ToolFailed,
    ToolOutput,
    ToolRejected,
)
from ors_client._protocol import operations
from ors_client._protocol.operations import Address, Episode

HERE = Address("echo")
THERE = Address("echo", "owner/name")
LIMITS = Limits()

# operation, method, path, body, whether it may be repeated
REQUESTS = [
    (operations.list_environments(), "GET", "/list_environments", None, True),
    (operations.version(), "GET", "/version", None, True),
    (operations.splits(HERE), "GET", "/echo/splits", None, True),
    (operations.tools(HERE, limits=LIMITS), "GET", "/echo/tools", None, True),
    (operations.tasks(HERE, "train"), "POST", "/echo/tasks", {"split": "train"}, True),
    (operations.num_tasks(HERE, "train"), "POST", "/echo/num_tasks", {"split": "train"}, True),
    (operations.task(HERE, "train", -1), "POST", "/echo/task", {"split": "train", "index": -1}, True),
    (
        operations.task_range(HERE, "train", 1, 3),
        "POST",
        "/echo/task_range",
        {"split": "train", "start": 1, "stop": 3},
        True,
    ),
    (operations.task_range(HERE, "train", None, None), "POST", "/echo/task_range", {"split": "train"}, True),
    (operations.create_session(), "POST", "/create_session", {}, True),
    (operations.create_session(env_overrides={"cpu": 2}), "POST", "/create_session", {"env": {"cpu": 2}}, True),
    (
        operations.create(HERE, "s", Episode(split="train", index=0)),
        "POST",
        "/create",
        {"env_name": "echo", "split": "train", "index": 0},
        False,
    ),
    (
        operations.create(HERE, "s", Episode(spec={"a": None}, toolset="web"), secrets_body={"K": "v"}),
        "POST",
        "/create",
        {"env_name": "echo", "task_spec": {"a": None}, "toolset_name": "web", "secrets": {"K": "v"}},
        False,
    ),
    (operations.prompt(HERE, "s"), "GET", "/echo/prompt", None, True),
    (operations.messages(HERE, "s"), "GET", "/echo/messages", None, True),
    (operations.task_tools(HERE, "s", limits=LIMITS), "GET", "/echo/task_tools", None, True),
    (operations.call(HERE, "s", "say", {"a": 1}), "POST", "/echo/call", {"name": "say", "input": {"a": 1}}, False),
    (operations.call(HERE, "s", "say", {}), "POST", "/echo/call", {"name": "say", "input": {}}, False),
    (
        operations.score_group(
            HERE, "s", [GroupCandidate(messages=[Message(role="user", blocks=[TextBlock(text="a")])])]
        ),
        "POST",
        "/echo/score_group",
        {"candidates": [{"messages": [{"role": "user", "blocks": [{"type": "text", "text": "a"}]}]}]},
        False,
    ),
    (operations.ping("s"), "POST", "/ping", None, True),
    (operations.delete("s"), "POST", "/delete", None, True),
    (operations.delete_session("s"), "POST", "/delete_session", None, True),
    (operations.required_secrets("o/n"), "GET", "/v1/environments/o/n/required-secrets", None, True),
    (
        operations.task_difficulty("o/n", {"split": "a b", "min_model_params": 1.5}),
        "GET",
        "/v1/environments/o/n/task-difficulty?split=a+b&min_model_params=1.5",
        None,
        True,
    ),
    (operations.environment_id("o/n"), "GET", "/v1/environments/o/n", None, True),
    (operations.variant_ids("o/n"), "GET", "/v1/environments/o/n/variants", None, True),
    (operations.upload_rollouts([b'{"a":1}', b"{}"]), "POST", "/v1/rollouts", {"events": [{"a": 1}, {}]}, True),
]


@pytest.mark.parametrize(("operation", "method", "path", "body", "repeatable"), REQUESTS)
def test_request_holds_what_is_set_and_nothing_else(operation, method, path, body, repeatable):
    assert (operation.method, operation.path) == (method, path)
    assert (None if operation.body is None else json.loads(operation.body)) == body
    assert operation.idempotent is repeatable


@pytest.mark.parametrize(
    "operation",
    [
        operations.prompt(THERE, "s1"),
        operations.call(THERE, "s1", "say", {}),
        operations.create(THERE, "s1", Episode(split="train", index=0)),
        operations.tasks(THERE, "train", session_id="s1"),
        operations.ping("s1", deployment="owner/name"),
        operations.delete("s1", deployment="owner/name"),
        operations.delete_session("s1", deployment="owner/name"),
    ],
)
def test_session_and_deployment_travel_as_headers(operation):
    assert dict(operation.headers) == {b"x-session-id": b"s1", b"x-deployment": b"owner/name"}
    assert operation.session_id == "s1"


def test_only_the_api_host_is_asked_about_the_catalogue():
    hosts = {operation.host for operation, _, path, *_ in REQUESTS if path.startswith("/v1/")}
    others = {operation.host for operation, _, path, *_ in REQUESTS if not path.startswith("/v1/")}
    assert (hosts, others) == ({"api"}, {"sessions"})


def test_name_of_an_environment_is_one_segment_of_the_path():
    assert Address("a/b ?#%\u00fc").path("tools") == "/a%2Fb%20%3F%23%25%C3%BC/tools"


@pytest.mark.parametrize("value", ["a\nb", "a\r\nx-other: 1", "caf\u00e9", "\x00"])
def test_header_that_can_not_be_sent_is_refused(value):
    with pytest.raises(ValueError, match="header"):
        operations.ping(value)


def test_operation_with_a_secret_does_not_show_it_in_a_path():
    operation = operations.create(HERE, "s", Episode(split="t", index=0), secrets_header="abc")
    assert dict(operation.headers)[b"x-secrets"] == b"abc"
    assert operation.name == "POST /create"


@pytest.mark.parametrize(
    ("operation", "answer", "value"),
    [
        (operations.list_environments(), ["a", "b"], ["a", "b"]),
        (operations.list_environments(), {"environments": [{"name": "a"}]}, ["a"]),
        (operations.version(), {"version": "1.2"}, "1.2"),
        (operations.version(), {"version": 7}, None),
        (operations.version(), [], None),
        (operations.splits(HERE), ["a", {"name": "b", "type": "odd"}], [Split(name="a"), Split(name="b", type="odd")]),
        (operations.splits(HERE), {"splits": ["a"]}, [Split(name="a")]),
        (operations.num_tasks(HERE, "t"), {"num_tasks": 0}, 0),
        (
            operations.task(HERE, "t", 2),
            {"task": {"x": 1}, "env_name": "ECHO"},
            Task(environment="echo", spec={"x": 1}, split="t", index=2),
        ),
        (operations.task(HERE, "t", -1), {"task": {}}, Task(environment="echo", spec={}, split="t", index=None)),
        (
            operations.task_range(HERE, "t", 5, None),
            {"tasks": [{}, {"b": 1}]},
            [
                Task(environment="echo", spec={}, split="t", index=5),
                Task(environment="echo", spec={"b": 1}, split="t", index=6),
            ],
        ),
        (operations.tasks(HERE, "t"), [{}], [Task(environment="echo", spec={}, split="t", index=0)]),
        (operations.create_session(), {"sid": "abc"}, "abc"),
        (operations.prompt(HERE, "s"), "plain", [TextBlock(text="plain")]),
        (operations.prompt(HERE, "s"), {"blocks": [{"type": "text", "text": "a"}]}, [TextBlock(text="a")]),
        (operations.prompt(HERE, "s"), [], []),
        (operations.create(HERE, "s", Episode(split="t", index=0)), "anything", None),
        (operations.call(HERE, "s", "say", {}), {"ok": True, "output": {}}, ToolOutput()),
        (operations.call(HERE, "s", "say", {}), {"ok": None, "output": {}, "error": None}, ToolOutput()),
        (
            operations.call(HERE, "s", "say", {}),
            {"output": {"blocks": None, "reward": "0.5", "finished": None, "new": 1}},
            ToolOutput(reward=0.5),
        ),
    ],
)
def test_answer_is_read(operation, answer, value):
    assert operation.parse(answer) == value


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        (operations.list_environments(), {"detail": "x"}),
        (operations.list_environments(), [None]),
        (operations.list_environments(), [""]),
        (operations.list_environments(), [".."]),
        (operations.splits(HERE), {"detail": "x"}),
        (operations.splits(HERE), [7]),
        (operations.tools(HERE, limits=LIMITS), "x"),
        (operations.tools(HERE, limits=LIMITS), {"tools": [{"description": "nameless"}]}),
        (operations.tasks(HERE, "t"), {"env_name": "echo"}),
        (operations.tasks(HERE, "t"), {"tasks": ["text"]}),
        (operations.num_tasks(HERE, "t"), {"num_tasks": -1}),
        (operations.num_tasks(HERE, "t"), {"num_tasks": True}),
        (operations.num_tasks(HERE, "t"), {"num_tasks": "7"}),
        (operations.num_tasks(HERE, "t"), 7),
        (operations.task(HERE, "t", 0), {"task": None}),
        (operations.create_session(), {}),
        (operations.create_session(), {"sid": ""}),
        (operations.create_session(), {"sid": 7}),
        (operations.create_session(), {"sid": "a\nb"}),
        (operations.create_session(), {"sid": "\u00fc"}),
        (operations.create_session(), {"sid": "x" * 257}),
        (operations.prompt(HERE, "s"), {"text": "x"}),
        (operations.messages(HERE, "s"), [{"blocks": []}]),
        (operations.call(HERE, "s", "say", {}), {}),
        (operations.call(HERE, "s", "say", {}), {"ok": None, "error": None}),
        (operations.call(HERE, "s", "say", {}), []),
        (operations.call(HERE, "s", "say", {}), {"ok": True}),
        (operations.call(HERE, "s", "say", {}), {"ok": True, "output": "text"}),
        (operations.score_group(HERE, "s", []), {"scores": [{"reward": 1}]}),
        (operations.required_secrets("o/n"), {}),
    ],
)
def test_answer_that_breaks_the_standard_is_a_value_error(operation, answer):
    with pytest.raises(ValueError, match=r"\w"):
        operation.parse(answer)


@pytest.mark.parametrize(
    ("answer", "reason", "detail"),
    [
        ({"ok": False, "error": "no", "reason": "not_found"}, "not_found", "no"),
        ({"ok": False, "error": "no", "reason": "a word of tomorrow"}, "a word of tomorrow", "no"),
        ({"ok": False, "error": "no"}, None, "no"),
        ({"ok": False, "error": "no", "reason": 7}, None, "no"),
        ({"ok": False}, None, ""),
        ({"error": "no"}, None, "no"),
        ({"ok": None, "error": "no"}, None, "no"),
    ],
)
def test_refusal_keeps_the_servers_own_word(answer, reason, detail):
    with pytest.raises(ToolRejected) as caught:
        operations.call(HERE, "s", "say", {}).parse(answer)
    assert (caught.value.reason, caught.value.detail, caught.value.tool) == (reason, detail, "say")


def test_too_many_tools_name_the_limit():
    with pytest.raises(LimitExceeded) as caught:
        operations.tools(HERE, limits=Limits(tools=2)).parse({"tools": [{"name": str(i)} for i in range(3)]})
    assert caught.value.limit == "tools"


def test_what_a_stream_raised_is_an_error_of_its_operation():
    assert isinstance(operations.call(HERE, "s", "say", {}).make_error("x"), ToolFailed)
    assert isinstance(operations.score_group(HERE, "s", []).make_error("x"), ToolFailed)
    assert isinstance(operations.create_session().make_error("x"), ProtocolError)
