"""Every error keeps its type, message and fields wherever it travels, and says what happened in one line."""

import copy
import importlib
import multiprocessing
import pickle
import pkgutil

import anyio
import httpx
import pytest

import ors_client
from ors_client import _errors, formats
from ors_client._environment import TaskMissing
from ors_client._errors import (
    AuthenticationError,
    BillingError,
    CapacityError,
    ClientStateError,
    DeadlineExceeded,
    EnvironmentNotFound,
    LimitExceeded,
    ORSError,
    OutcomeUnknown,
    ProtocolError,
    ResultLost,
    SessionLost,
    SetupFailed,
    StatusError,
    ToolError,
    ToolFailed,
    ToolRejected,
    TransportError,
    is_web_page,
    one_line,
)
from ors_client._http.transport import BodySecretsRefused, RetryLater
from ors_client.cli.hints import hints_for
from ors_client.cli.options import ServerOptions
from ors_client.evaluation import ChatModel, ConversationRefused, ModelError, ModelRefused, WorkerDied

WHERE = {"url": "http://h:1/echo/call", "session_id": "s-1"}

# One way to build each class, with every field set. `test_table_of_errors_is_complete` catches a class without one.
MAKERS = {
    ORSError: lambda: ORSError("Something happened.", **WHERE),
    TransportError: lambda: TransportError("POST /echo/call", reason="reset", attempts=3, **WHERE),
    RetryLater: lambda: RetryLater("POST /ping", reason="HTTP 503", **WHERE),
    OutcomeUnknown: lambda: OutcomeUnknown("Tool 'echo'", reason="reset", attempts=1, **WHERE),
    ResultLost: lambda: ResultLost("Tool 'echo'", reason="unknown task_id", attempts=2, **WHERE),
    DeadlineExceeded: lambda: DeadlineExceeded("Tool 'echo'", limit="call", seconds=1.5, **WHERE),
    StatusError: lambda: StatusError("POST /echo/call", status=500, detail="ValueError: x\ny", **WHERE),
    ModelError: lambda: ModelError("No reply", status=503, url=WHERE["url"]),
    ConversationRefused: lambda: ConversationRefused("Too long", fault="context", status=400, url=WHERE["url"]),
    ModelRefused: lambda: ModelRefused("A wrong key", status=401, url=WHERE["url"]),
    WorkerDied: lambda: WorkerDied("No worker is left.", url=WHERE["url"]),
    BodySecretsRefused: lambda: BodySecretsRefused("POST /create", status=422, detail="extra", **WHERE),
    AuthenticationError: lambda: AuthenticationError("GET /tools", status=401, detail="no key", **WHERE),
    BillingError: lambda: BillingError("GET /tools", status=402, detail="no credit", **WHERE),
    CapacityError: lambda: CapacityError("POST /create", status=429, detail="full", retry_after=2.5, **WHERE),
    ProtocolError: lambda: ProtocolError("A page came instead of a stream", excerpt="<html>\n", **WHERE),
    LimitExceeded: lambda: LimitExceeded("A result is too long", limit="result_bytes", maximum=10, **WHERE),
    EnvironmentNotFound: lambda: EnvironmentNotFound("seta", available=["echo", "math"], url="http://h:1"),
    ClientStateError: lambda: ClientStateError("The client is closed.", **WHERE),
    SetupFailed: lambda: SetupFailed("ValueError: no\ndisk", **WHERE),
    SessionLost: lambda: SessionLost("s-1", reason="ping answered 404", url="http://h:1"),
    ToolError: lambda: ToolError("echo", detail="x\ny", **WHERE),
    ToolRejected: lambda: ToolRejected("echo", detail="bad\narguments", reason="input_validation", **WHERE),
    TaskMissing: lambda: TaskMissing("There is no task 7.", **WHERE),
    ToolFailed: lambda: ToolFailed("echo", detail="ValueError: x\n  y", **WHERE),
}


def classes(kind=ORSError):
    return {kind}.union(*map(classes, kind.__subclasses__()))


def facts(error):
    return type(error), str(error), error.args, vars(error)


def raise_one(name):
    raise next(make() for kind, make in MAKERS.items() if kind.__name__ == name)


def test_table_of_errors_is_complete():
    for module in pkgutil.iter_modules(ors_client.__path__):
        importlib.import_module(f"ors_client.{module.name}")
    assert {kind for kind in classes() if kind.__module__.startswith("ors_client")} == set(MAKERS)


def test_tree_in_the_docstring_names_every_class():
    tree = _errors.__doc__.split("\n\n")[1]
    assert all(
        f" {kind.__name__} " in f" {tree} ".replace("\n", " ") for kind in MAKERS if kind.__module__ == _errors.__name__
    )


@pytest.mark.parametrize("make", MAKERS.values(), ids=lambda make: type(make()).__name__)
def test_table_sets_every_field(make):
    # A field left at None would round-trip whatever happens to it.
    assert None not in [value for name, value in vars(make()).items() if name != "session_id"]


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle{protocol}": lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own bytes
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize("kind", MAKERS)
def test_error_keeps_type_message_and_fields(kind, duplicate):
    error = MAKERS[kind]()
    twin = duplicate(error)
    assert twin is not error
    assert facts(twin) == facts(error)


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES.keys())
def test_error_keeps_its_notes(duplicate):
    error = MAKERS[ToolFailed]()
    error.add_note("while scoring")
    assert duplicate(error).__notes__ == ["while scoring"]


def test_error_of_a_caller_s_subclass_survives_pickling():
    error = Derived("echo", "extra")
    assert facts(pickle.loads(pickle.dumps(error))) == facts(error)  # noqa: S301 - our own bytes


class Derived(ToolFailed):
    """With a signature of its own, as a caller may write one."""

    def __init__(self, tool, extra):
        super().__init__(tool, detail="x")
        self.extra = extra


def test_every_error_crosses_a_spawned_pool():
    # An exception that does not unpickle kills the pool's result thread, and `get` waits for ever.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = {kind: pool.apply_async(raise_one, (kind.__name__,)) for kind in MAKERS}
        for kind, result in results.items():
            with pytest.raises(kind) as caught:
                result.get(timeout=60)
            assert type(caught.value) is kind
            expected = MAKERS[kind]()
            assert (str(caught.value), vars(caught.value)) == (str(expected), vars(expected))


@pytest.mark.parametrize("kind", MAKERS)
def test_message_is_one_line_that_says_where(kind):
    message = str(MAKERS[kind]())
    assert "\n" not in message
    assert "http://h:1" in message
    assert kind in {EnvironmentNotFound, ModelError, ConversationRefused, ModelRefused, WorkerDied} or "s-1" in message


@pytest.mark.parametrize("kind", MAKERS)
def test_text_of_an_error_is_its_message(kind):
    error = MAKERS[kind]()
    assert str(error) == error.message


def test_repr_is_the_class_and_its_message_alone():
    assert repr(ORSError("It broke.")) == "ORSError('It broke.')"


@pytest.mark.parametrize("kind", [ToolError, ToolRejected, ToolFailed])
def test_text_for_a_model_is_the_server_s_own_and_never_empty(kind):
    assert kind("echo", detail="No.\nNever.").text == "No.\nNever."
    assert kind("echo", detail="").text == "The tool 'echo' failed without a word."


@pytest.mark.parametrize("kind", [ToolError, ToolRejected, ToolFailed])
@pytest.mark.parametrize("detail", ["No.", ""])
def test_result_for_a_model_is_the_error_s_text_alone(kind, detail):
    error = kind("echo", detail=detail)
    result = formats.tool_result(formats.ToolCall("echo"), error)
    assert [block.text for block in result.blocks] == [error.text]


@pytest.mark.parametrize(
    ("body", "page"),
    [
        ("<html>", True),
        (" \r\n\ufeff\n<!DOCTYPE html>\n<html>", True),
        ("<?xml version='1.0'?><html>", True),
        ("<!-- served by -->\n<html>", True),
        ("<HTML lang=en>", True),
        ("<Task 5> is not there", False),
        ("<html-lint>: failed", False),
        ("{}", False),
        ("", False),
    ],
)
def test_web_page_is_told_from_other_text_in_angle_brackets(body, page):
    assert is_web_page(body) is page
    error = ProtocolError("The answer is no JSON", excerpt=body)
    assert ("Is this a login page" in str(error)) is page
    hints = hints_for(error, ServerOptions("http://127.0.0.1:1"))
    assert any("A web page answers there" in hint for hint in hints) is page

    async def ask():
        peer = httpx.MockTransport(lambda _: httpx.Response(200, text=body))
        async with ChatModel("any", "http://127.0.0.1:1/v1", transport=peer) as model:
            await model.ask({"messages": []})

    with pytest.raises(ModelError) as caught:
        anyio.run(ask)
    assert isinstance(caught.value, ModelRefused) is page


def test_page_is_looked_for_in_time_that_grows_with_the_blanks_before_it():
    # With their square it would be the better part of an hour.
    assert not is_web_page(" \n" * 2**19 + "x")


@pytest.mark.parametrize(
    ("status", "detail", "astray"),
    [
        (404, "Not Found", True),
        (404, "<html>nothing here</html>", True),
        (405, "Method Not Allowed", True),
        (404, "Deployment not found", False),
        (500, "Not Found", False),
    ],
)
def test_status_of_a_web_framework_s_own_asks_for_the_url(status, detail, astray):
    assert ("the URL of an ORS server" in str(StatusError("GET /tools", status=status, detail=detail))) is astray


@pytest.mark.parametrize(
    ("kind", "field", "expected"),
    [
        (StatusError, "detail", "ValueError: x\ny"),
        (SetupFailed, "detail", "ValueError: no\ndisk"),
        (ToolFailed, "detail", "ValueError: x\n  y"),
        (ToolRejected, "reason", "input_validation"),
        (CapacityError, "retry_after", 2.5),
        (SessionLost, "session_id", "s-1"),
        (DeadlineExceeded, "limit", "call"),
        (DeadlineExceeded, "seconds", 1.5),
        (LimitExceeded, "limit", "result_bytes"),
        (EnvironmentNotFound, "available", ["echo", "math"]),
    ],
)
def test_field_holds_the_fact_word_for_word(kind, field, expected):
    assert getattr(MAKERS[kind](), field) == expected


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (OutcomeUnknown, "not repeated"),
        (ResultLost, "result is gone"),
        (TransportError, "3 attempts"),
        (DeadlineExceeded, "call=1.5 seconds"),
        (DeadlineExceeded, "turn off its buffering of answers"),
        (AuthenticationError, "api_key"),
        (LimitExceeded, "Limits.result_bytes"),
        (EnvironmentNotFound, "'seta'; this server has: 'echo', 'math'"),
        (SessionLost, "open a new one"),
        (SetupFailed, "no disk. See its log"),
        (ToolRejected, "'echo' was rejected: bad arguments"),
    ],
)
def test_message_says_what_happened_or_what_to_do(kind, said):
    assert said in str(MAKERS[kind]())


def test_message_of_a_servers_own_exception_says_where_to_look():
    error = StatusError("GET /prompt", status=500, detail="KeyError: 'x'")
    assert (
        error.message
        == "GET /prompt was answered with HTTP 500: KeyError: 'x'. Something raised on the server; see its log."
    )


def test_error_is_placed_once_by_whoever_knows_the_place():
    placed = LimitExceeded("A result is too long", limit="result_bytes", maximum=10).at(**WHERE)
    assert facts(placed) == facts(MAKERS[LimitExceeded]())
    assert facts(placed.at(url="http://elsewhere", session_id="s-2")) == facts(placed)


def test_error_hides_a_secret_in_its_message_and_in_its_fields():
    error = ToolFailed("echo", detail="token hunter2 is wrong").at(
        **WHERE, show=lambda text: text.replace("hunter2", "***")
    )
    assert "hunter2" not in str(error)
    assert error.detail == "token *** is wrong"


def test_dots_of_a_servers_text_survive_in_the_message():
    error = StatusError("GET /prompt", status=500, detail="no such file: ../../etc")
    assert "../../etc." in str(error)


def test_message_holds_no_control_characters():
    assert str(ToolFailed("echo", detail="\x1b[31mred\u202e")).isprintable()


def test_missing_name_on_a_server_with_several_environments_lists_them():
    assert "name one of: 'echo', 'math'" in str(EnvironmentNotFound(None, available=["echo", "math"]))


def test_long_text_of_a_server_is_shortened_in_the_message_only():
    error = ToolFailed("echo", detail="x" * 10_000)
    assert len(str(error)) < 400
    assert error.detail == "x" * 10_000


def test_long_list_of_environments_is_shortened_in_the_message_only():
    names = [f"environment{number}" for number in range(10_000)]
    error = EnvironmentNotFound("echo", available=names)
    assert len(str(error)) < 1_200
    assert error.available == names


def test_deadline_is_a_timeout_and_misuse_a_runtime_error():
    assert issubclass(DeadlineExceeded, TimeoutError)
    assert issubclass(ClientStateError, RuntimeError)


@pytest.mark.parametrize(
    ("text", "line"),
    [("a\r\n  b\tc ", "a b c"), ("", ""), ("x" * 200, "x" * 200), ("x" * 201, "x" * 200 + "... (201 characters)")],
)
def test_one_line_folds_and_shortens(text, line):
    assert one_line(text) == line
