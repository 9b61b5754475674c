"""A record as a server: what clients of the standard get from it, ours and the SDK's."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys

import anyio
import httpx
import pytest
from servers import ROOT, eventually
from terminal import Terminal

from ors_client import AsyncClient, StatusError, TaskRef, TerminalToolSpec, ToolFailed, ToolRejected, ToolSpec
from ors_client.record import CallRecord, EpisodeRecord, RecordWriter, ToolsRecord
from ors_client.replay import Replay, Script, read_tools
from ors_client.replay._router import ReplayRequest, Router

WON = CallRecord(tool="echo", arguments={"text": "hello"}, output="match", reward=1.0, finished=True, seconds=0.1)
LOST = CallRecord(tool="echo", arguments={"text": "no"}, output="no match", reward=0.0, seconds=0.1)


def episode(*calls, index=0, **fields):
    plain = {"environment": "echoenvironment", "split": "train", "session_id": "s", "prompt": "Say hello."}
    return EpisodeRecord(**plain | {"index": index, "calls": list(calls), "status": "scored"} | fields)


def replayed(episodes, play, **settings):
    """Replay episodes to `play`, which gets our client's environment and the replay."""

    async def work():
        async with Replay(Script(episodes, **settings)) as replay, AsyncClient(replay.url) as client:
            with anyio.fail_after(30):
                return await play(client.environment(), replay)

    return anyio.run(work)


def answers(episodes, *calls, index=0, **settings):
    """Return what calls of one session come back with, errors included."""

    async def play(environment, replay):
        del replay
        async with environment.session(TaskRef("train", index)) as session:
            return [await _outcome(session, *call) for call in calls]

    return replayed(episodes, play, **settings)


async def _outcome(session, tool, arguments):
    try:
        return await session.call_tool(tool, arguments)
    except (ToolRejected, ToolFailed) as error:
        return error


# --- Answers ---------------------------------------------------------------------------------------------------------


def test_replayed_call_comes_back_as_it_was_recorded():
    lost, won = answers([episode(LOST, WON)], ("echo", {"text": "no"}), ("echo", {"text": "hello"}))
    assert (lost.text, lost.reward, lost.finished) == ("no match", 0.0, False)
    assert (won.text, won.reward, won.finished) == ("match", 1.0, True)


@pytest.mark.parametrize("index", [-1, -3])
def test_task_that_was_counted_from_the_end_is_replayed(index):
    episodes = [episode(LOST, index=5, prompt="Another."), episode(WON, index=index)]
    assert [won.text for won in answers(episodes, ("echo", {"text": "hello"}), index=index)] == ["match"]

    async def play(environment, replay):
        del replay
        return await environment.num_tasks("train"), len(await environment.list_tasks("train"))

    assert replayed(episodes, play) == (2, 2)


def test_replayed_prompt_is_the_recorded_one():
    async def play(environment, replay):
        del replay
        async with environment.session(TaskRef("train", 0)) as session:
            return await session.get_prompt(), await session.get_messages()

    prompt, messages = replayed([episode()], play)
    assert [block.text for block in prompt] == ["Say hello."]
    assert [message.role for message in messages] == ["user"]


def test_replayed_images_and_metadata_are_those_of_the_record():
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    call = CallRecord(tool="look", output="", blocks=[image], metadata={"seen": 1})
    (output,) = answers([episode(call)], ("look", {}))
    assert (output.images[0].data, output.metadata) == ("aGk=", {"seen": 1})


def test_episodes_that_begin_with_the_same_image_hold_it_once():
    begun = [{"role": "user", "blocks": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]}]
    recorded = [episode(LOST, messages=json.loads(json.dumps(begun))) for _ in range(2)]
    other = episode(LOST, messages=[{"role": "user", "blocks": []}])
    first, second, third = Script([*recorded, other]).environments["echoenvironment"].episodes["train", 0]
    assert first.messages == begun
    assert first.messages is second.messages
    assert third.messages == other.messages


def test_call_that_is_not_in_the_record_is_refused_and_told_what_is():
    (error,) = answers([episode(LOST, WON)], ("echo", {"text": "other"}))
    assert (type(error), error.reason) == (ToolRejected, "not_recorded")
    assert error.detail == (
        'Not in the record: call 1 of task 0 in \'train\' is echo({"text": "no"}) there, not echo({"text": "other"}).'
    )


def test_refused_call_leaves_the_episode_where_it_was():
    refused, lost = answers([episode(LOST)], ("echo", {"text": "other"}), ("echo", {"text": "no"}))
    assert isinstance(refused, ToolRejected)
    assert lost.text == "no match"


def test_call_after_the_last_recorded_one_is_refused():
    _, error = answers([episode(LOST)], ("echo", {"text": "no"}), ("echo", {"text": "no"}))
    assert "is the end of the episode there" in error.detail


def test_calls_are_matched_in_their_order():
    (error,) = answers([episode(LOST, WON)], ("echo", {"text": "hello"}))
    assert isinstance(error, ToolRejected)


def test_number_matches_whether_it_was_written_as_integer_or_not():
    (output,) = answers([episode(CallRecord(tool="add", arguments={"n": 1}, output="2"))], ("add", {"n": 1.0}))
    assert output.text == "2"


def test_session_follows_the_episode_that_its_calls_match():
    episodes = [episode(LOST), episode(WON)]
    for call, text in ((("echo", {"text": "hello"}), "match"), (("echo", {"text": "no"}), "no match")):
        (output,) = answers(episodes, call)
        assert output.text == text


def test_session_stays_in_its_episode():
    recorded = [
        episode(CallRecord(tool=way, output=""), CallRecord(tool="look", output=f"seen from {way}"))
        for way in ("left", "right")
    ]
    _, seen = answers(recorded, ("right", {}), ("look", {}))
    assert seen.text == "seen from right"


def test_sessions_of_a_task_that_call_alike_get_its_episodes_in_turn():
    recorded = [episode(LOST.model_copy(update={"reward": reward})) for reward in (0.25, 0.5)]

    async def play(environment, replay):
        del replay
        rewards = []
        for _ in range(3):
            async with environment.session(TaskRef("train", 0)) as session:
                rewards.append((await session.call_tool("echo", {"text": "no"})).reward)
        return rewards

    assert replayed(recorded, play) == [0.25, 0.5, 0.25]


def test_recorded_errors_come_back_as_errors():
    failed = CallRecord(tool="boom", error="bang\nagain", kind="ToolFailed")
    rejected = CallRecord(tool="nope", error="no such tool", kind="ToolRejected")
    first, second = answers([episode(failed, rejected)], ("boom", {}), ("nope", {}))
    assert (type(first), first.detail) == (ToolFailed, "bang\nagain")
    assert (type(second), second.detail) == (ToolRejected, "no such tool")


def test_answer_that_was_lost_then_is_not_made_up_now():
    lost = CallRecord(tool="echo", error="The connection was lost.")
    (error,) = answers([episode(lost, status="failed: OutcomeUnknown")], ("echo", {}))
    assert (type(error), error.reason) == (ToolRejected, "not_recorded")


def test_long_answer_with_every_kind_of_line_end_is_whole():
    text = "a b\u2028c\u0085d\r\ne\\n " * 2000
    (output,) = answers([episode(CallRecord(tool="echo", output=text))], ("echo", {}))
    assert output.text == text


# --- Discovery -------------------------------------------------------------------------------------------------------


def test_listed_tasks_are_those_of_the_record_and_each_index_keeps_its_task():
    async def play(environment, replay):
        del replay

        async def prompt(task):
            async with environment.session(task) as session:
                return (await session.get_prompt())[0].text

        tasks = await environment.list_tasks("train")
        listed = [await prompt(task) for task in tasks]
        by_place = [await prompt(TaskRef("train", index)) for index in range(await environment.num_tasks("train"))]
        by_index = [await prompt(TaskRef("train", index)) for index in (2, 3, 9, -1)]
        ranged = [task.spec["index"] for task in await environment.list_tasks("train", 1, 3)]
        assert (await environment.get_task("train", 9)).spec == {"split": "train", "index": 9}
        with pytest.raises(StatusError, match="Task 4 of split 'train' is not in the record, which has: 2, 3, 9"):
            await prompt(TaskRef("train", 4))
        return listed, by_place, by_index, ranged

    recorded = [episode(index=index, prompt=str(index)) for index in (9, 2, 3)]
    listed = ["3", "9", "2"]
    assert replayed(recorded, play) == (listed, listed, ["2", "3", "9", "2"], [9, 2])


def test_specifications_come_back_as_the_record_has_them():
    async def play(environment, replay):
        del replay
        tasks = await environment.list_tasks("train")
        async with environment.session(tasks[1]) as session:
            return [task.spec for task in tasks], (await session.get_prompt())[0].text

    recorded = [episode(), episode(index=1, spec={"question": "6 x 7"}, prompt="b")]
    assert replayed(recorded, play) == ([{"split": "train", "index": 0}, {"question": "6 x 7"}], "b")


def test_tools_are_made_from_the_calls():
    async def play(environment, replay):
        del replay
        return await environment.list_tools()

    calls = [LOST, CallRecord(tool="add", arguments={"a": 1}), CallRecord(tool="add", arguments={"a": 1.5, "b": [1]})]
    echo, add = replayed([episode(*calls)], play)
    assert echo.input_schema["required"] == ["text"]
    assert add.input_schema["properties"] == {"a": {"type": ["integer", "number"]}, "b": {"type": "array"}}
    assert add.input_schema["required"] == ["a"]


def test_tools_that_are_given_are_served_with_the_terminal_tool():
    given = {"tools": [{"name": "echo", "description": "Say."}], "terminal_tool": {"name": "submit", "arg": "text"}}

    async def play(environment, replay):
        del replay
        async with environment.session(TaskRef("train", 0)) as session:
            output = await session.call_terminal_tool("Paris")
            return (await session.list_tools())[0].description, output.text

    call = CallRecord(tool="submit", arguments={"text": "Paris"}, output="right")
    assert replayed([episode(call)], play, tools=read_tools(json.dumps(given))) == ("Say.", "right")


def test_tools_of_the_record_are_served_with_the_terminal_tool():
    async def play(environment, replay):
        del replay
        return await environment.describe_tools()

    first = ToolsRecord(
        tools=[ToolSpec(name="echo", description="Say.")], terminal_tool=TerminalToolSpec(name="submit")
    )
    second = ToolsRecord(tools=[ToolSpec(name="look"), ToolSpec(name="echo")])
    episodes = [episode().model_copy(update={"tools": tools}) for tools in (first, second)]
    served = replayed(episodes, play)
    assert [(tool.name, tool.description) for tool in served.tools] == [("echo", "Say."), ("look", "")]
    assert served.terminal_tool.name == "submit"


def test_several_environments_of_a_record_are_served():
    async def work():
        script = Script([episode(prompt="one"), episode(environment="owner/Other", prompt="two")])
        async with Replay(script) as replay, AsyncClient(replay.url) as client:
            names = await client.list_environments()
            async with client.environment("other").session(TaskRef("train", 0)) as session:
                return names, (await session.get_prompt())[0].text

    assert anyio.run(work) == (["echoenvironment", "other"], "two")


def test_deleted_sessions_are_gone():
    async def play(environment, replay):
        async with environment.session(TaskRef("train", 0)):
            during = replay.sessions
        return during, replay.sessions

    assert replayed([episode()], play) == (1, 0)


# --- Sessions that nobody ends ---------------------------------------------------------------------------------------


def test_session_that_nobody_uses_is_ended_and_answered_as_one():
    async def work():
        async with (
            Replay(Script([episode(LOST)]), session_timeout=0.2) as replay,
            httpx.AsyncClient(base_url=replay.url, trust_env=False, headers={"X-Session-ID": "x"}) as raw,
        ):
            body = {"env_name": "echoenvironment", "split": "train", "index": 0}
            assert (await raw.post("/create", json=body)).status_code == 200
            with anyio.fail_after(30):
                while replay.sessions:  # noqa: ASYNC110 - nothing tells of the end
                    await anyio.sleep(0.02)
            call = {"name": "echo", "input": {"text": "no"}}
            ended = [
                await raw.post("/ping"),
                await raw.get("/echoenvironment/prompt"),
                await raw.post("/echoenvironment/call", json=call),
            ]
            assert (await raw.post("/delete")).status_code == 200
            return [(answer.status_code, answer.json()["detail"]) for answer in ended]

    assert anyio.run(work) == [(404, "Active environment not found")] * 3


USES = {
    "ping": ("POST", "/ping", b""),
    "prompt": ("GET", "/echoenvironment/prompt", b""),
    "messages": ("GET", "/echoenvironment/messages", b""),
    "task_tools": ("GET", "/echoenvironment/task_tools", b""),
    "call": ("POST", "/echoenvironment/call", b'{"name": "echo", "input": {}}'),
}


def open_session(router, session_id, now):
    body = b'{"env_name": "echoenvironment", "split": "train", "index": 0}'
    created = router.respond(ReplayRequest("POST", "/create", {"x-session-id": session_id}, body), now=now)
    assert created.status == 200


@pytest.mark.parametrize("way", USES)
def test_session_that_is_used_or_pinged_lives_on(way):
    router = Router(Script([episode(LOST)]))
    open_session(router, "used", 0)
    open_session(router, "forgotten", 0)
    method, path, body = USES[way]
    asked = ReplayRequest(method, path, {"x-session-id": "used"}, body)
    assert [router.respond(asked, now=now).status for now in (800, 1600, 2400)] == [200, 200, 200]
    assert router.sessions(now=2400) == 1
    assert router.respond(asked, now=3301).status == 404


def test_sessions_of_clients_that_crash_do_not_pile_up():
    router = Router(Script([episode()]))
    most = 0
    for second in range(5000):
        open_session(router, str(second), second)
        most = max(most, router.sessions(now=second))
    assert most == 901


# --- The wire --------------------------------------------------------------------------------------------------------

REFUSALS = [
    ("GET", "/echoenvironment/prompt", {}, None, 400, "X-Session-ID header is required"),
    ("GET", "/echoenvironment/prompt", {"X-Session-ID": "x"}, None, 404, "Active environment not found"),
    ("POST", "/ping", {"X-Session-ID": "x"}, None, 404, "Active environment not found"),
    ("GET", "/echoenvironment/none", {}, None, 404, "Not Found"),
    ("GET", "/create_session", {}, None, 405, "Method Not Allowed"),
    ("POST", "/create", {"X-Session-ID": "x"}, {"env_name": "none"}, 404, "unknown environment 'none'"),
    ("POST", "/create", {"X-Session-ID": "x"}, [], 422, "the body is no JSON object"),
    ("POST", "/echoenvironment/num_tasks", {}, {"split": "none"}, 400, "Invalid split"),
]


@pytest.mark.parametrize("case", REFUSALS)
def test_request_that_makes_no_sense_is_refused_as_by_the_official_servers(case):
    method, path, headers, body, status, detail = case

    async def play(environment, replay):
        del environment
        async with httpx.AsyncClient(base_url=replay.url, trust_env=False) as client:
            return await client.request(method, path, headers=headers, json=body)

    response = replayed([episode()], play)
    assert (response.status_code, response.json()) == (status, {"detail": detail})


@pytest.mark.parametrize("depth", [201, 3000, 100_000])
@pytest.mark.parametrize("path", ["/echoenvironment/call", "/create", "/echoenvironment/tasks"])
def test_body_that_is_nested_too_deeply_is_refused(path, depth):
    router = Router(Script([episode(LOST)]))
    open_session(router, "x", 0)
    deep = b"[" * (depth - 1) + b"]" * (depth - 1)
    body = b'{"name": "echo", "input": {"a": %b}}' % deep if path.endswith("call") else b'{"task_spec": %b}' % deep
    answer = router.respond(ReplayRequest("POST", path, {"x-session-id": "x"}, body), now=0)
    assert (answer.status, answer.value) == (422, {"detail": "the body is nested more than 200 levels deep"})


def test_call_that_is_nested_as_deeply_as_is_read_is_answered_like_any_other():
    deep = []
    for _ in range(197):
        deep = [deep]
    refused, lost = answers([episode(LOST)], ("echo", {"text": deep}), ("echo", {"text": "no"}))
    assert (type(refused), refused.reason, lost.text) == (ToolRejected, "not_recorded", "no match")


def test_path_without_an_environment_is_sent_on_to_the_first():
    async def play(environment, replay):
        del environment
        async with httpx.AsyncClient(base_url=replay.url, trust_env=False) as client:
            return await client.get("/tools?x=1")

    response = replayed([episode()], play)
    assert (response.status_code, response.headers["location"]) == (308, "/echoenvironment/tools?x=1")


def test_result_can_be_asked_for_again_by_its_task_id():
    async def play(environment, replay):
        async with (
            environment.session(TaskRef("train", 0)) as session,
            httpx.AsyncClient(
                base_url=replay.url, trust_env=False, headers={"X-Session-ID": session.session_id}
            ) as raw,
        ):
            body = {"name": "echo", "input": {"text": "no"}}
            first = (await raw.post("/echoenvironment/call", json=body)).text
            task_id = re.search(r"data: (\w{32})", first)[1]
            again = (await raw.post("/echoenvironment/call", json={**body, "task_id": task_id})).text
            unknown = (await raw.post("/echoenvironment/call", json={**body, "task_id": "x"})).text
            return first, again, unknown

    first, again, unknown = replayed([episode(LOST)], play)
    assert first == again
    assert unknown == "event: error\r\ndata: unknown task_id\r\n\r\n"


def test_connection_that_speaks_no_http_does_not_disturb_the_others(caplog):
    async def play(environment, replay):
        host, port = replay.url.removeprefix("http://").split(":")
        for noise in (
            b"\x16\x03\x01\x02\x00\r\n\r\n",
            b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
            b"POST /create HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnot a size\r\n",
        ):
            async with await anyio.connect_tcp(host, int(port)) as stream:
                await stream.send(noise)
                assert b" 400 " in (await stream.receive()).split(b"\r\n")[0]
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(b"POST /create HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        return await environment.num_tasks("train")

    assert replayed([episode()], play) == 1
    assert caplog.messages == []


def test_large_head_is_taken_and_a_body_without_end_is_not():
    async def endless():
        for _ in range(65):
            yield b" " * 2**20

    async def play(environment, replay):
        del environment
        async with httpx.AsyncClient(base_url=replay.url, trust_env=False) as client:
            secret = {"X-Secrets": "x" * 500_000}
            return [
                (await client.get("/health", headers=secret)).status_code,
                (await client.post("/create", content=endless(), headers={"X-Session-ID": "x"})).status_code,
            ]

    assert replayed([episode()], play) == [200, 413]


def test_replay_that_is_closed_ends_its_streams_and_connections():
    slow = CallRecord(tool="echo", arguments={}, output="match", seconds=3600.0)

    async def work():
        before = asyncio.all_tasks()
        async with httpx.AsyncClient(trust_env=False, headers={"X-Session-ID": "x"}) as raw:
            async with Replay(Script([episode(slow)]), pace=1.0) as replay:
                raw.base_url = replay.url
                await raw.post("/create", json={"env_name": "echoenvironment", "split": "train", "index": 0})
                call = raw.build_request("POST", "/echoenvironment/call", json={"name": "echo", "input": {}})
                stream = await raw.send(call, stream=True)
            with pytest.raises(httpx.RemoteProtocolError):
                await stream.aread()
            with pytest.raises(httpx.ConnectError):
                await raw.get("/health")
        for task in asyncio.all_tasks() - before:
            await asyncio.wait_for(asyncio.wait([task]), 30)

    anyio.run(work)


def test_importing_the_replay_imports_no_server():
    command = "import sys, ors_client.replay; sys.exit('aiohttp.web' in sys.modules)"
    subprocess.run([sys.executable, "-c", command], cwd=ROOT, check=True, timeout=90)


# --- The command, and other clients ----------------------------------------------------------------------------------

_SDK = """
import os, sys
os.environ["OPENREWARD_API_URL"] = os.environ["OPENREWARD_SESSION_URL"] = sys.argv[1]
import openreward

client = openreward.OpenReward(api_key="not-a-key")
env = client.environments.get("echoenvironment")
print(env.num_tasks("train"), [tool.name for tool in env.list_tools()])
with env.session(task=env.get_task("train", 0)) as session:
    print(session.get_prompt()[0].text)
    try:
        session.call_tool("echo", {"text": "other"})
    except Exception as error:
        print("refused:", error)
    print(session.call_tool("echo", {"text": "no"}).reward)
    output = session.call_tool("echo", {"text": "hello"})
    print(output.blocks[0].text, output.reward, output.finished)
client.close()
"""


@pytest.fixture
def record(tmp_path):
    writer = RecordWriter(tmp_path / "a.jsonl")
    writer.append(episode(LOST, WON))
    return tmp_path / "a.jsonl"


@pytest.mark.slow
def test_replay_serves_the_sdks_client_until_it_is_interrupted(record):
    with Terminal("replay", str(record), "--port", "0") as terminal:
        terminal.expect("replaying 1 episodes of 1 tasks\n")
        terminal.expect("listening on ")
        terminal.expect("\n")
        url = re.search(r"listening on (\S+)", terminal.said)[1]
        command = [sys.executable, "-c", _SDK, url]
        said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=90).stdout
        os.kill(terminal.pid, signal.SIGINT)
        assert terminal.status() == 0
    lines = said.splitlines()
    assert lines[:2] == ["1 ['echo']", "Say hello."]
    assert lines[2].startswith("refused: ")
    assert "Not in the record" in lines[2]
    assert lines[3:] == ["0.0", "match 1.0 True"]


def test_replay_ends_sessions_after_the_seconds_that_it_is_given(record):
    with Terminal("replay", str(record), "--port", "0", "--session-timeout", "0.01") as terminal:
        terminal.expect("listening on ")
        terminal.expect("\n")
        url = re.search(r"listening on (\S+)", terminal.said)[1]
        with httpx.Client(base_url=url, trust_env=False, headers={"X-Session-ID": "x"}) as raw:
            body = {"env_name": "echoenvironment", "split": "train", "index": 0}
            assert raw.post("/create", json=body).status_code == 200
            eventually(lambda: raw.post("/ping").status_code != 200)  # each ping comes later than the session lives


def test_replay_of_what_a_run_recorded_gives_the_same_rewards(ors, echo_server, tmp_path):
    from models import model_server

    with model_server() as model:
        base = ("--model", "right", "--base-url", model.url, "-n", 2, "--json")
        first = json.loads(ors("run", echo_server.url, *base, "--record", tmp_path / "a.jsonl").stdout)
        with Terminal("replay", str(tmp_path / "a.jsonl"), "--port", "0") as terminal:
            terminal.expect("listening on ")
            terminal.expect("\n")
            url = re.search(r"listening on (\S+)", terminal.said)[1]
            second = json.loads(ors("run", url, *base, "--record", tmp_path / "b.jsonl").stdout)
    assert (first["mean_reward"], second["mean_reward"]) == (1.0, 1.0)
    assert second["statuses"] == {"scored": 2}


def test_bridge_trains_on_a_replay_of_its_own_record(echo_server, tmp_path):
    from trl_bridge import OpenRewardSpec

    def rewards(url, record=None):
        with OpenRewardSpec(url, num_tasks=2, record=record) as spec:
            environments = [spec.environment_factory() for _ in spec.train_dataset]
            for environment, row in zip(environments, spec.train_dataset, strict=True):
                environment.reset(**row)
                environment.echo(text="hello")
            return spec.reward_funcs(environments=environments, prompts=[], completions=[])

    first = rewards(echo_server.url, tmp_path / "a.jsonl")
    with Terminal("replay", str(tmp_path / "a.jsonl"), "--port", "0") as terminal:
        terminal.expect("listening on ")
        terminal.expect("\n")
        second = rewards(re.search(r"listening on (\S+)", terminal.said)[1])
    assert first == second == [1.0, 0.0]


def test_every_client_of_a_record_that_begins_late_finds_only_what_it_can_open(ors, echo_server, tmp_path):
    from models import model_server

    from trl_bridge import OpenRewardSpec

    with model_server() as model:
        base = ("--model", "right", "--base-url", model.url, "--json")
        ors("run", echo_server.url, *base, "--start", 2, "-n", 2, "--record", tmp_path / "a.jsonl")
        specs = json.loads(ors("tasks", echo_server.url, "--start", 2, "--stop", 4, "--json").stdout)
        with Terminal("replay", str(tmp_path / "a.jsonl"), "--port", "0") as terminal:
            terminal.expect("index 0 opens task 2")
            terminal.expect("listening on ")
            terminal.expect("\n")
            url = re.search(r"listening on (\S+)", terminal.said)[1]
            assert ors("check", url).exit_code == 0
            again = json.loads(ors("run", url, *base, "--record", tmp_path / "b.jsonl").stdout)
            listed = json.loads(ors("tasks", url, "--json").stdout)
            with OpenRewardSpec(url) as spec:
                environments = [spec.environment_factory() for _ in spec.train_dataset]
                for environment, row in zip(environments, spec.train_dataset, strict=True):
                    environment.reset(**row)
                statuses = [environment.status for environment in environments]
    assert (again["statuses"], again["mean_reward"]) == ({"scored": 2}, 1.0)
    assert [task["spec"] for task in listed] == [task["spec"] for task in specs]
    assert statuses == ["unscored", "unscored"]


def test_replay_of_a_record_without_episodes_is_misuse(ors, tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    result = ors("replay", tmp_path / "a.jsonl")
    assert (result.exit_code, "holds no episode" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "written", ["{", "[" * 100_000, '[{"name": "x", "input_schema": ' + '{"a":' * 300 + "1" + "}" * 300 + "}]"]
)
def test_replay_with_tools_that_are_none_is_misuse(ors, record, tmp_path, written):
    (tmp_path / "tools.json").write_text(written)
    result = ors("replay", record, "--tools", tmp_path / "tools.json")
    assert (result.exit_code, "can't be read" in result.stderr) == (2, True)
