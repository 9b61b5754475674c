"""A server that repeats the client's key wherever it can: no message, log, record or metric of a training shows it.

What a server sends as content, as the words of a prompt, a result or a task, is the environment's and stays as it is.
"""

import json
import logging

import pytest
from hostile_server import HostileServer, answer, stream
from training import END, IGNORED, call, make_trainer

from trl_bridge import OpenRewardSpec

KEY = 'sk-Te"st/+%77\\x-4321'
# As it is, as in an address, as in JSON, and in base64.
SPELLINGS = (KEY, "sk-Te%22st%2F%2B%2577%5Cx-4321", json.dumps(KEY)[1:-1], "c2stVGUic3QvKyU3N1x4LTQzMjE=")
WORD = " ".join(SPELLINGS)
TOOL = {"name": "go", "description": WORD, "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}}}
TASK = {"id": WORD, WORD: WORD}

CALLS = {
    "raised": stream(("task_id", "t1"), ("error", WORD)),
    "raised with its id": stream(("task_id", WORD), ("error", "x" * 190 + WORD)),
    "rejected": stream(("task_id", "t1"), ("end", json.dumps({"ok": False, "error": WORD, "reason": WORD}))),
    "no standard": stream(("task_id", "t1"), ("end", json.dumps({WORD: WORD}))),
    "odd event": stream((WORD, WORD)),
    "odd type": answer(b"[]", kind=f"application/{WORD}"),
    **{f"status {status}": answer({"detail": WORD}, status=status) for status in (400, 401, 404, 410, 422, 500)},
}


def echoing(*calls):
    """Make a server that echoes the key, and answers calls in turn."""
    return HostileServer(
        splits=lambda _: [answer([{"name": "train", "type": "train"}])],
        num_tasks=lambda _: [answer({"num_tasks": 2})],
        task_range=lambda _: [answer({"tasks": [TASK, TASK]})],
        tasks=lambda _: [answer({"tasks": [TASK, TASK]})],
        task=lambda _: [answer({"task": TASK})],
        tools=lambda _: [answer({"tools": [TOOL]})],
        task_tools=lambda _: [answer({"tools": [TOOL]})],
        prompt=lambda _: [answer([{"type": "text", "text": "Go."}, {"type": WORD, "text": WORD}])],
        create_session=lambda number: [answer({"sid": f"s{number}"})],
        call=lambda number: [calls[number % len(calls)]],
        ping=lambda _: [answer({"detail": WORD}, status=500)],
        delete=lambda _: [answer({"detail": WORD}, status=400)],
    )


def shown(texts):
    """Return the texts that have a part of the key in them, in any spelling and case."""
    parts = {word[start : start + 10].lower() for word in SPELLINGS for start in range(len(word) - 9)}
    return [text for text in texts if any(part in text.lower() for part in parts)]


pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]


@pytest.fixture
def logged():
    """Every message of our loggers."""
    messages, handler = [], logging.Handler(logging.DEBUG)
    handler.emit = lambda record: messages.append(record.getMessage())
    loggers = [logging.getLogger(name) for name in ("ors_client", "trl_bridge")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield messages
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.mark.parametrize("kind", CALLS)
def test_key_that_a_failing_call_echoes_reaches_neither_model_nor_record_nor_log(make_spec, logged, tmp_path, kind):
    path = tmp_path / "episodes.jsonl"
    with echoing(CALLS[kind]) as server:
        spec = make_spec(server.url, api_key=KEY, record=path, num_tasks=2)
        environment = spec.environment_factory()
        environment.reset(task_index=0)
        try:
            told = str(environment.go(x="a"))
        except Exception as error:  # noqa: BLE001 - its words are what TRL shows the model
            told = f"{error!r} {error}"
        state = [environment.status, environment.last_output, environment.reward]
        texts = [told, *map(str, state), repr(environment), repr(spec)]
        spec.close()
    recorded = path.read_text()
    assert "***" in recorded
    assert shown([*texts, *logged, recorded]) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")
def test_key_that_a_server_echoes_through_a_training_is_in_no_metric_message_log_or_record(
    logged, tmp_path, capfd, recwarn
):
    path = tmp_path / "episodes.jsonl"
    with (
        echoing(*CALLS.values()) as server,
        OpenRewardSpec(server.url, api_key=KEY, record=path, num_tasks=2) as spec,
    ):
        policy = lambda text: END if "tool_response" in text else call("go", x="a")  # noqa: E731 - read where it is used
        trainer = make_trainer(tmp_path, spec, policy=policy)
        trainer.train()
        metrics = json.dumps(trainer.state.log_history)
        texts = [repr(spec), metrics, *(str(warning.message) for warning in recwarn)]
    assert "environment/" in metrics
    printed = capfd.readouterr()
    assert shown([*texts, *logged, path.read_text(), printed.out, printed.err]) == []
