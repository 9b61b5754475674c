"""Features of an episode: opening it, its prompt, calls and their results, faults on the way, and its end."""

import json
from typing import Any

import anyio
from conformance.waiting import eventually

from fixtures.environments import awkward
from fixtures.environments.images import png
from fixtures.proxy import CutAfterEvent, CutInsideEvent, ResetAfterForward, Rule
from ors_client import (
    AsyncClient,
    AsyncSession,
    ImageBlock,
    KeepalivePolicy,
    OutcomeUnknown,
    SessionLost,
    SetupFailed,
    StatusError,
    TaskRef,
    ToolFailed,
    ToolRejected,
)

from .trial import FIRST, Absent, Feature, Trial


async def session_by_index(trial: Trial) -> None:
    """The task that its split and index name, in the environment that was meant."""
    async with trial.session("beta", TaskRef("train", 4)) as session:
        assert (await session.call_tool("ask")).text == "beta: beta-train-4"


async def session_by_spec(trial: Trial) -> None:
    """A task of the caller's own making."""
    async with trial.session("beta", {"id": "made up"}) as session:
        assert (await session.get_prompt())[0].text == "beta: made up"


async def call_tool(trial: Trial) -> None:
    """Text, reward and the end of the episode."""
    async with trial.session("echoenvironment") as session:
        wrong = await session.call_tool("echo", {"text": "good bye"})
        right = await session.call_tool("echo", {"text": "hello"})
    assert (wrong.text, wrong.reward, wrong.finished) == ("no match (got 'good bye')", 0.0, False)
    assert (right.text, right.reward, right.finished) == ("match", 1.0, True)


async def awkward_results(trial: Trial) -> None:
    """Blanks, separators and boundaries arrive to the letter."""
    expected: list[tuple[str, dict[str, int], str]] = [
        ("spaces", {"count": 100_000}, " " * 100_000),
        ("weird", {"count": 20_000}, awkward.weird_text(20_000)),
        ("exact", {"json_length": 4096}, awkward.exact_text(4096)),
        ("exact", {"json_length": 4097}, awkward.exact_text(4097)),
        ("backslash_n", {}, awkward.backslash_n_text()),
        ("html", {}, awkward.html_text()),
        ("blank", {}, ""),
    ]
    async with trial.session("awkwardenvironment") as session:
        for tool, arguments, text in expected:
            assert (await session.call_tool(tool, arguments)).text == text, tool
        assert (await session.call_tool("nothing")).blocks == []


async def images(trial: Trial) -> None:
    """Pictures of the prompt and of results, byte for byte."""
    async with trial.session("imagesenvironment") as session:
        output = await session.call_tool("paint", {"red": 1, "green": 2, "blue": 3})
        blocks = [*await session.get_prompt(), *output.blocks]
    assert [b.decode() for b in blocks if isinstance(b, ImageBlock)] == [png(255, 0, 0), png(1, 2, 3)]


async def rewards(trial: Trial) -> None:
    """No reward is not zero, and what is not a number is none."""
    async with trial.session("failingenvironment") as session:
        for tool, reward in (("int_reward", 1.0), ("null_reward", None), ("nan_reward", None)):
            assert (await session.call_tool(tool)).reward == reward


async def messages(trial: Trial) -> str | None:
    """The conversation that a task begins with."""
    async with trial.session("chatenvironment") as session:
        conversation = await session.get_messages()
    if trial.missed("/messages"):
        assert [(message.role, message.text) for message in conversation] == [("user", "Answer with 'Paris'.")]
        return "the prompt as one user turn"
    assert [message.role for message in conversation] == ["system", "user", "assistant", "user"]
    assert [block.type for block in conversation[2].blocks] == ["reasoning", "text", "tool_call"]
    return None


async def secrets(trial: Trial) -> None:
    """They reach the environment, and only it."""
    async with trial.session("secretsenvironment", secrets={"K": "sesame"}) as session:
        assert json.loads((await session.call_tool("reveal")).text) == {"K": "sesame"}
    for request in trial.proxy.requests:
        assert request.path == "/create" or not (request.header("x-secrets") or b"sesame" in request.body)


async def toolset(trial: Trial) -> None:
    """A set of ready-made tools is asked for by name."""
    try:
        async with trial.session("counterenvironment", toolset="codex") as session:
            assert (await session.call_tool("step")).text == "1"
            listed = {tool.name for tool in await session.list_tools()}
    except StatusError as error:
        if error.status == 422 and "toolset_name" in error.detail:
            raise Absent from error
        raise
    assert trial.proxy.find("POST", "/create")[0].json()["toolset_name"] == "codex"
    if trial.server.kind == "openreward":  # ours takes the name and has no tools to add
        assert "bash" in listed


async def resume(trial: Trial) -> None:
    """A call whose stream breaks, before its result and within it, is resumed and not run again."""
    trial.proxy.add(Rule("POST", "/call", CutAfterEvent("task_id")))
    trial.proxy.add(Rule("POST", "/call", CutInsideEvent("chunk", nth=2)))
    async with trial.session("awkwardenvironment") as session:
        output = await session.call_tool("weird", {"count": 20_000})
        assert output.text == awkward.weird_text(20_000)
        assert trial.executions(session, "weird") == 1
    assert trial.proxy.count("POST", "/call") == 3


async def lost_answer(trial: Trial) -> None:
    """A call whose answer was lost is not sent again, and the caller is told."""
    trial.proxy.add(Rule("POST", "/call", ResetAfterForward(wait_for="headers")))
    async with trial.session("counterenvironment") as session:
        error = await _raised(session.call_tool("step"), OutcomeUnknown)
        assert error is not None
        assert (await session.call_tool("step")).text == "2"
    assert trial.proxy.count("POST", "/call") == 2


async def slow_setup(trial: Trial) -> str | None:
    """A call waits for a setup that takes longer than a request may, and runs once."""
    async with trial.session("slowenvironment", {"id": "slow", "setup_seconds": trial.setup_seconds}) as session:
        assert (await session.call_tool("count")).text == "1"
        assert trial.executions(session, "count") == 1
    told = any(request.upstream_status == 503 for request in trial.proxy.find("GET", "/prompt"))
    return None if told else "the server is silent until it is ready, instead of 503"


async def failed_setup(trial: Trial) -> None:
    """A setup that raised is told in the environment's words, by the prompt and by a call."""
    for use in (AsyncSession.get_prompt, lambda session: session.call_tool("step", {"reward": 1.0})):
        async with trial.session("failingenvironment", {"raises": "setup", "message": "no disk"}) as session:
            error = await _raised(use(session), SetupFailed)
            assert "no disk" in error.detail


async def failed_constructor(trial: Trial) -> None:
    """So is a constructor that raised, wherever the server notices."""

    async def begin() -> None:
        async with trial.session("failingenvironment", {"raises": "constructor", "message": "no disk"}) as session:
            await session.get_prompt()

    error = await _raised(begin(), SetupFailed)
    assert "no disk" in error.detail


async def refusals(trial: Trial) -> str | None:
    """A call of no tool, or with wrong arguments, is refused with a reason, and costs the session nothing."""
    reasons = []
    async with trial.session("echoenvironment") as session:
        for tool, arguments in (("nosuch", {}), ("echo", {"wrong": 1})):
            error = await _raised(session.call_tool(tool, arguments), ToolRejected)
            assert error.detail
            reasons.append(error.reason)
        assert (await session.call_tool("echo", {"text": "hello"})).reward == 1.0
    if reasons == [None, None]:
        return "the server's text without a reason"
    assert reasons == ["not_found", "input_validation"]
    return None


async def tool_failure(trial: Trial) -> None:
    """What a tool raised arrives word for word, and the session goes on."""
    text = "two lines\n  and blanks"
    async with trial.session("failingenvironment") as session:
        assert (await _raised(session.call_tool("boom", {"message": text}), ToolFailed)).detail == text
        assert (await session.call_tool("step", {"reward": 0.5})).reward == 0.5


async def finished_episode(trial: Trial) -> None:
    """After the end a call is refused, without a request."""
    async with trial.session("failingenvironment") as session:
        await session.call_tool("finish", {"reward": 0.75})
        error = await _raised(session.call_tool("step", {"reward": 1.0}), ToolRejected)
    assert error.reason == "episode_finished"
    assert trial.proxy.count("POST", "/call") == 1


async def end_elsewhere(trial: Trial) -> None:
    """An end that only the server knows of is the same refusal."""
    async with trial.session("failingenvironment") as session:
        await session.get_prompt()
        await trial.raw(
            "POST",
            "/failingenvironment/call",
            sid=session.session_id,
            json={"name": "finish", "input": {"reward": 1.0}},
        )
        try:
            await session.call_tool("step", {"reward": 0.5})
        except ToolRejected as error:
            assert error.reason == "episode_finished"  # noqa: PT017 - not to be rejected is another outcome
        else:
            assert trial.executions(session, "step") == 1
            raise Absent("it runs the call")


async def keepalive(trial: Trial) -> None:
    """An open session is pinged, during its calls too, and the server knows it by its pings."""
    async with (
        AsyncClient(trial.proxy.url, keepalive=KeepalivePolicy(interval=0.2)) as client,
        client.environment("slowenvironment").session(FIRST) as session,
    ):
        await session.call_tool("wait", {"seconds": 1.0})
        pings = await trial.proxy.wait_for_async("POST", "/ping", 3)
        assert {ping.header("x-session-id") for ping in pings} == {session.session_id}
        await eventually(lambda: [ping.upstream_status for ping in trial.proxy.find("POST", "/ping")[:3]] == [200] * 3)


async def lost_session(trial: Trial) -> None:
    """A session that the server has deleted is told as lost."""
    async with trial.session("counterenvironment") as session:
        await session.call_tool("step")
        await trial.raw("POST", "/delete", sid=session.session_id)
        await _raised(session.call_tool("step"), SessionLost)


async def delete(trial: Trial) -> None:
    """Leaving a session leaves nothing on the server."""
    async with trial.session("counterenvironment") as session:
        await session.call_tool("step")
        assert session.session_id in trial.server.journal.live()
    assert session.session_id not in trial.server.journal.live()


async def cancellation(trial: Trial) -> None:
    """Nor does a call that is cancelled."""
    session = trial.session("slowenvironment")

    async def episode() -> None:
        async with session:
            await session.call_tool("wait", {"seconds": 60})

    async with anyio.create_task_group() as group:
        group.start_soon(episode)
        await trial.proxy.wait_for_async("POST", "/call")
        group.cancel_scope.cancel()
    await eventually(lambda: session.session_id not in trial.server.journal.live())


async def bridge(trial: Trial) -> None:
    """TRL's three slots: the dataset, an environment that is reset and called, and the reward."""
    from trl_bridge import OpenRewardSpec

    def train() -> None:
        with OpenRewardSpec(trial.proxy.url, env_name="echoenvironment", num_tasks=3) as spec:
            row: dict[str, Any] = spec.train_dataset[1]
            environment = spec.environment_factory()
            assert "text='world'" in environment.reset(**row)
            assert "match" in environment.echo(text="world")
            assert (environment.reward, environment.status) == (1.0, "scored")
            environment._close()

    await anyio.to_thread.run_sync(train)


async def _raised(call: Any, kind: type[Any]) -> Any:
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, and nothing was raised.")


FEATURES = (
    Feature("session by split and index", session_by_index),
    Feature("session by task specification", session_by_spec),
    Feature("call: text, reward, finished", call_tool),
    Feature("awkward results to the letter", awkward_results),
    Feature("images", images),
    Feature("null and NaN rewards", rewards),
    Feature("messages", messages, since=157),
    Feature("secrets", secrets),
    Feature("toolset", toolset, since=105),
    Feature("a cut stream is resumed, one run", resume),
    Feature("a lost answer is not sent again", lost_answer),
    Feature("a call waits for a slow setup", slow_setup, since=156),
    Feature("a failed setup is told", failed_setup),
    Feature("a failed constructor is told", failed_constructor),
    Feature("reason of a refused call", refusals, since=132),
    Feature("a tool's exception, word for word", tool_failure),
    Feature("no call after the end", finished_episode),
    Feature("the server's own guard after the end", end_elsewhere, since=162),
    Feature("keepalive", keepalive),
    Feature("a lost session is told", lost_session),
    Feature("leaving deletes the session", delete),
    Feature("cancelling deletes the session", cancellation),
    Feature("TRL bridge: dataset, reset, call, reward", bridge),
)
