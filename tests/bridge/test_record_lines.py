"""The lines of a record, byte for byte but for times and ids: `record_lines.json` has an episode of each kind.

Lines of settings have versions and addresses, and are left out. With `ORS_WRITE_LINES=1` in the environment the file is
written anew.
"""

import json
import os
import re
from pathlib import Path

import anyio
import pytest
from models import model_server

from fixtures.proxy import Rule, Status
from ors_client import AsyncClient, RetryPolicy
from ors_client.evaluation import Budget, ChatModel, evaluate
from trl_bridge._rollout.episode import OVER, ToolCallError

GOLDEN = Path(__file__).with_name("record_lines.json")
LINES = json.loads(GOLDEN.read_text(encoding="utf-8"))
FAST = RetryPolicy(attempts=2, first_delay=0.01, max_delay=0.05)
KEY = "a-key-that-nobody-sees"
NUMBER = re.compile(r'("(?:seconds|queued|setup|connecting|server|opening|model|tools)":)([0-9.e-]+)')
CHANGING = (
    (r"http://127\.0\.0\.1:\d+", "http://server"),
    (r"pydantic\.dev/[0-9.]+/", "pydantic.dev/<version>/"),
    (r'("data":")[^"]*', r"\1<image>"),  # compressed by whichever zlib is there
    (r"call_[0-9a-f]{12}", "call_<id>"),
    (r"\b[0-9a-f]{32}\b", "<hash>"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>"),
    (r'("started":")[^"]*', r"\1<time>"),
)


def normalised(path):
    text = path.read_text(encoding="utf-8")
    for pattern, standard in CHANGING:
        text = re.sub(pattern, standard, text)
    return [line for line in NUMBER.sub(rounding, text).splitlines() if not line.startswith('{"type":"run"')]


def check(path, player, kind):
    if os.environ.get("ORS_WRITE_LINES"):
        LINES[player][kind] = normalised(path)
        GOLDEN.write_text(json.dumps(LINES, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert normalised(path) == LINES[player][kind]


def rounding(found):
    """Tell how a number was written, which no clock decides."""
    number = float(found[2])
    return f"{found[1]}<{'microseconds' if number == round(number, 6) else 'unrounded'}>"


# --- Training


def play_to_the_end(environment):
    environment.reset(task_index=0)
    for text in ("wrong", KEY, "hello", "after the end"):
        environment.echo(text=text)


def look_at_images(environment):
    environment.reset(task_index=0)
    environment.look()
    environment.gallery()


def be_refused(environment):
    environment.reset(task_index=0)
    environment.null_reward()
    for tool, arguments in (
        (environment.boom, {"message": "it broke"}),
        (environment.step, {"reward": "much"}),
        (environment.step, {"reward": float("nan")}),
        (environment.lone_surrogate, {}),
    ):
        with pytest.raises(ToolCallError):
            tool(**arguments)
    environment.step(reward=0.5)


def step_three_times(environment):
    environment.reset(task_index=0)
    for reward in (0.25, 0.5, 0.75):
        environment.step(reward=reward)


def wait_too_long(environment):
    environment.reset(task_index=0)
    environment.count()
    environment.wait(seconds=60)


def open_what_breaks(environment):
    environment.reset(task_index=2)


def interrupt(environment, proxy):
    environment.reset(task_index=0)
    wait = next(tool for tool in environment._tools if tool.name == "wait")
    environment._slot.dispatch(wait, {"seconds": 60})
    environment._slot.dispatch(wait, {"seconds": 60})
    first, second = [future for *_, future in environment._slot._dispatched]
    proxy.wait_for("POST", "/call", timeout=30)
    first.cancel()
    assert second.result(30) == OVER


def submit(environment):
    environment.reset(task_index=0)
    environment.note(note="Paris?")
    environment._slot.answer("It is Paris.").result(30)


def open_ahead(environment):
    slot = environment._slot
    slot.open_ahead({"task_index": 1}).discard().result(30)
    slot.prefetch({"task_index": 2})
    ready = slot.open_ahead({"task_index": 0})
    ready.prompt.result(30)
    assert ready.claim()
    slot.prefetch({"task_index": 0}, ready=ready)
    environment.reset(task_index=0)
    environment.echo(text="hello")


TRAINED = {
    "scored": ("echo", play_to_the_end, {}),
    "unscored, with images": ("images", look_at_images, {}),
    "unscored, without images": ("images", look_at_images, {"record_images": False}),
    "refused calls": ("failing", be_refused, {}),
    "cut: calls": ("failing", step_three_times, {"max_calls": 2}),
    "cut: characters": ("failing", step_three_times, {"max_episode_chars": 10}),
    "cut: seconds": ("slow", wait_too_long, {"episode_timeout": 2.0}),
    "failed opening": ("failing", open_what_breaks, {}),
    "failed call": ("failing", step_three_times, {}),
    "interrupted call": ("slow", interrupt, {}),
    "conversation and last answer": ("chat", submit, {"prompts": "messages", "terminal_tool": True}),
    "opened ahead": ("echo", open_ahead, {}),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_line_of_training_is_what_it_was(make_spec, proxy, tmp_path, kind):
    name, play, options = TRAINED[kind]
    if kind == "failed call":
        proxy.add(Rule("POST", "/call", Status(502), times=None))
    spec = make_spec(
        proxy.url,
        env_name=f"{name}environment",
        task_tools_discovery_index=0,
        api_key=KEY,
        retry=FAST,
        record=tmp_path / "record",
        **options,
    )
    environment = spec.environment_factory()
    play(environment, *([proxy] if play is interrupt else []))
    environment._close()
    check(tmp_path / "record", "training", kind)


# --- Evaluation

EVALUATED = {
    "scored": ("right", "echo", {}),
    "cut: turns": ("wrong", "echo", {"turns": 2}),
    "cut: seconds": ("slow", "echo", {"seconds": 0.5}),
    "arguments that are no JSON": ("garbled", "echo", {}),
    "failed model": ("fading", "echo", {}),
    "failed opening": ("right", "failing", {}),
    "failed call": ("right", "echo", {}),
    "unscored, with images": ("right", "images", {}),
    "conversation and last answer": ("right", "chat", {}),
}


@pytest.fixture(scope="module")
def model():
    with model_server() as server:
        yield server


@pytest.mark.parametrize("kind", EVALUATED)
def test_line_of_evaluation_is_what_it_was(model, proxy, tmp_path, kind):
    player, name, budget = EVALUATED[kind]
    if kind == "failed call":
        proxy.add(Rule("POST", "/call", Status(502), times=None))

    async def play():
        async with (
            AsyncClient(proxy.url, retry=FAST) as client,
            ChatModel(player, model.url, api_key=KEY, attempts=1) as chat,
        ):
            environment = client.environment(f"{name}environment")
            task = (await environment.list_tasks("train"))[2 if kind == "failed opening" else 0]
            await evaluate(
                environment, [task], chat, record=tmp_path / "record", budget=Budget(**budget), target="a server"
            )

    anyio.run(play)
    check(tmp_path / "record", "evaluation", kind)
