"""Conversations to go on with, answers that a terminal tool takes, and groups that an environment scores."""

import re

import pytest
from servers import serve
from training import END, IGNORED, call, make_trainer

from fixtures.proxy import FaultProxy, Rule, Status
from ors_client import (
    Message,
    ReasoningBlock,
    RetryPolicy,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from ors_client.record import read
from trl_bridge import MultiEnvironmentSpec, OpenRewardSpec
from trl_bridge._chat.conversation import final_answer, from_chat, to_chat

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

CHAT = "chatenvironment"
FAST = RetryPolicy(attempts=1, first_delay=0.01, max_delay=0.05)


@pytest.fixture(params=["ours", "openreward"])
def chat_server(request):
    """The servers that speak of conversations, terminal tools and groups."""
    return request.getfixturevalue(request.param)


def said(text):
    return [{"role": "assistant", "content": text}]


def called(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


# --- Conversations

HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {
        "role": "assistant",
        "content": "Hello; one moment.",
        "reasoning_content": "A greeting.",
        "tool_calls": [called("note", note="greeted")],
    },
    {"role": "tool", "name": "note", "content": "noted"},
    {"role": "user", "content": "Answer with 'Paris'."},
]


def test_conversation_of_a_task_stands_in_its_row_with_every_turn(make_spec, chat_server):
    spec = make_spec(chat_server.url, env_name=CHAT, prompts="messages")
    first, second = spec.train_dataset["prompt"]
    assert first == HISTORY
    assert second[-1] == {"role": "user", "content": "Answer with '4'."}


def test_reset_adds_nothing_to_a_conversation_in_the_row(make_spec, chat_server):
    spec = make_spec(chat_server.url, env_name=CHAT, prompts="messages")
    environment = spec.environment_factory()
    assert environment.reset(**spec.train_dataset[0]) is None
    assert environment.note(note="still there") == "noted: still there"


def test_server_without_conversations_gives_its_prompt_as_a_users_turn(make_spec, ors_sdk):
    spec = make_spec(ors_sdk.url, env_name="echoenvironment", prompts="messages", num_tasks=1)
    assert spec.train_dataset["prompt"][0] == [
        {"role": "user", "content": "Call the `echo` tool with text='hello' to win."}
    ]


def test_past_calls_in_a_conversation_carry_the_names_that_the_model_calls_tools_by():
    messages = [
        Message(role="assistant", blocks=[ToolCallBlock(id="c1", name="file-read", input={"path": "a"})]),
        Message(role="user", blocks=[ToolResultBlock(tool_call_id="c1", blocks=[TextBlock(text="text")])]),
    ]
    chat = to_chat(messages, aliases={"file-read": "file_read"}, images=False)
    assert chat == [
        {"role": "assistant", "content": "", "tool_calls": [called("file_read", path="a")]},
        {"role": "tool", "name": "file_read", "content": "text"},
    ]
    assert from_chat(chat, names={"file_read": "file-read"})[0].blocks[0].name == "file-read"


def test_conversation_comes_back_as_it_was():
    messages = from_chat(HISTORY, names={})
    assert [message.role for message in messages] == ["system", "user", "assistant", "user", "user"]
    assert messages[2].blocks == [
        ReasoningBlock(text="A greeting."),
        TextBlock(text="Hello; one moment."),
        ToolCallBlock(id="call_1", name="note", input={"note": "greeted"}),
    ]
    assert messages[3].blocks == [ToolResultBlock(tool_call_id="call_1", blocks=[TextBlock(text="noted")])]
    assert to_chat(messages, aliases={}, images=False) == HISTORY


def test_arguments_that_are_no_object_are_shown_to_the_judge_all_the_same():
    call = {"function": {"name": "note", "arguments": ["x"]}}
    (message,) = from_chat([{"role": "assistant", "content": "", "tool_calls": [call]}], names={})
    assert message.blocks[0].input == {"arguments": ["x"]}


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), nested(600), nested(900)], ids=["nan", "inf", 600, 900])
def test_arguments_that_can_not_be_sent_are_shown_to_the_judge_as_text(value):
    call = {"function": {"name": "note", "arguments": {"note": value}}}
    (message,) = from_chat([{"role": "assistant", "content": "", "tool_calls": [call]}], names={})
    assert isinstance(message.blocks[0].input["arguments"], str)


# --- The terminal tool


def test_final_message_is_scored_by_the_terminal_tool(make_spec, chat_server, tmp_path):
    spec = make_spec(chat_server.url, env_name=CHAT, terminal_tool=True, record=tmp_path / "record")
    right, wrong = spec.environment_factory(), spec.environment_factory()
    for environment in (right, wrong):
        environment.reset(task_index=0)
    rewards = spec.reward_funcs(environments=[right, wrong], completions=[said("It is Paris."), said("London")])
    assert rewards == [1.0, 0.0]
    assert (right.status, right.finished, right.last_output) == ("scored", True, "right")
    for environment in (right, wrong):
        environment._close()  # its line is written in the background
    episodes = read(tmp_path / "record")
    calls = [(call.tool, call.arguments["text"], call.reward) for each in episodes for call in each.calls]
    assert sorted(calls) == [("submit", "It is Paris.", 1.0), ("submit", "London", 0.0)]


def test_rollout_that_ends_in_a_call_has_no_final_message(make_spec, ours):
    spec = make_spec(ours.url, env_name=CHAT, terminal_tool=True)
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    completion = [{"role": "assistant", "content": "Paris", "tool_calls": [called("note", note="x")]}]
    assert spec.reward_funcs(environments=[environment], completions=[completion]) == [None]
    assert environment.status == "unscored"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (said("Paris"), "Paris"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "Paris"}]}], "Paris"),
        (said(""), ""),
        ([{"role": "tool", "name": "note", "content": "noted"}], None),
        ([], None),
        ("Paris", None),
    ],
)
def test_final_answer_is_the_text_of_a_last_message_without_calls(completion, answer):
    assert final_answer(completion) == answer


def test_terminal_tool_is_not_used_unless_asked_for(make_spec, ours):
    spec = make_spec(ours.url, env_name=CHAT)
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    assert spec.reward_funcs(environments=[environment], completions=[said("Paris")]) == [None]


def test_finished_episode_gets_no_answer(make_spec, ours):
    spec = make_spec(ours.url, env_name="failingenvironment", terminal_tool=True)
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    environment.finish(reward=0.5)
    assert spec.reward_funcs(environments=[environment], completions=[said("Paris")]) == [0.5]
    assert len(environment.rewards) == 1


def test_answer_that_the_infrastructure_loses_leaves_the_rollout_out(make_spec, ours):
    with FaultProxy(ours.url) as proxy:
        spec = make_spec(proxy.url, env_name=CHAT, terminal_tool=True, retry=FAST)
        environment = spec.environment_factory()
        environment.reset(task_index=0)
        proxy.add(Rule("POST", "/call", Status(502), times=None))
        assert spec.reward_funcs(environments=[environment], completions=[said("Paris")]) == [None]
        assert environment.status == "failed: OutcomeUnknown"
        spec.close()


def test_environment_without_a_terminal_tool_is_an_error_that_says_so(make_spec, ours):
    spec = make_spec(ours.url, env_name="echoenvironment", terminal_tool=True)
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    with pytest.raises(ValueError, match="this environment has none"):
        spec.reward_funcs(environments=[environment], completions=[said("hello")])


def test_terminal_tool_without_the_completions_is_an_error_that_says_so(make_spec, ours):
    spec = make_spec(ours.url, env_name=CHAT, terminal_tool=True)
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    with pytest.raises(ValueError, match="needs the completions"):
        spec.reward_funcs(environments=[environment])


@pytest.mark.parametrize("option", ["terminal_tool", "group_scoring"])
def test_what_needs_the_conversation_does_not_go_with_owned_rewards(option):
    with pytest.raises(ValueError, match=f"{option}=True.*owns_reward"):
        OpenRewardSpec("http://127.0.0.1:1", owns_reward=True, **{option: True})


# --- Groups


def score(spec, environments, prompts, completions, **more):
    _, group_reward = spec.reward_funcs
    return group_reward(prompts=prompts, completions=completions, environments=environments, **more)


def test_rollouts_of_one_task_are_scored_beside_each_other(make_spec, chat_server, eventually):
    spec = make_spec(chat_server.url, env_name=CHAT, group_scoring=True)
    environments = [spec.environment_factory() for _ in range(4)]
    for environment, index in zip(environments, (0, 0, 1, 1), strict=True):
        environment.reset(task_index=index)
    prompts = [[{"role": "user", "content": "Q"}]] * 4
    completions = [said("a" * 900), said("a"), said("b"), said("b")]
    longest, shorter, *equal = score(spec, environments, prompts, completions)
    assert longest == 1.0 > shorter
    assert equal == [1.0, 1.0]  # the long answer was not in their group
    spec.close()
    eventually(lambda: chat_server.live() == [])


def test_whole_conversations_are_scored_calls_and_results_included(make_spec, chat_server):
    spec = make_spec(chat_server.url, env_name=CHAT, group_scoring=True)
    environments = [spec.environment_factory() for _ in range(2)]
    for environment in environments:
        environment.reset(task_index=0)
    noted = [
        {"role": "assistant", "content": "", "tool_calls": [called("note", note="x" * 900)]},
        {"role": "tool", "name": "note", "content": "noted"},
        *said("Paris"),
    ]
    with_call, without = score(spec, environments, [HISTORY] * 2, [noted, said("Paris")])
    assert with_call == 1.0 > without


def test_broken_rollout_is_shown_to_no_judge(make_spec, ours):
    spec = make_spec(ours.url, env_name="failingenvironment", group_scoring=True, retry=FAST)
    sound, broken = make_spec(ours.url, env_name=CHAT, group_scoring=True), spec
    environments = [sound.environment_factory(), broken.environment_factory()]
    environments[0].reset(task_index=0)
    environments[1].reset(task_index=2)  # whose setup raises
    assert environments[1].status.startswith("failed")
    prompts = [[{"role": "user", "content": "Q"}]] * 2
    assert score(sound, environments, prompts, [said("a"), said("a" * 900)]) == [1.0, None]


def test_group_whose_scoring_fails_is_left_to_the_other_rewards(make_spec, ours, caplog):
    with FaultProxy(ours.url) as proxy:
        spec = make_spec(proxy.url, env_name=CHAT, group_scoring=True, retry=FAST)
        environments = [spec.environment_factory() for _ in range(2)]
        for environment in environments:
            environment.reset(task_index=0)
        proxy.add(Rule("POST", "/score_group", Status(502), times=None))
        logged = {}
        rewards = score(spec, environments, [[]] * 2, [said("a"), said("b")], log_metric=logged.__setitem__)
        assert rewards == [None, None]
        assert logged == {"environment/group_scoring_failed": 1.0}
        assert "not scored beside each other" in caplog.text
        spec.close()


def test_environment_that_scores_no_groups_is_an_error_that_says_so(make_spec, ours):
    spec = make_spec(ours.url, env_name="echoenvironment", group_scoring=True)
    environment = spec.environment_factory()
    environment.reset(task_index=0)
    with pytest.raises(ValueError, match="does not score groups"):
        score(spec, [environment], [[]], [said("a")])


def test_reward_functions_are_a_list_that_may_be_added_to(make_spec, ours):
    spec = make_spec(ours.url, env_name=CHAT, group_scoring=True)
    spec.reward_funcs.append(None)  # as TRL does
    assert len(spec.reward_funcs) == 2
    other = make_spec(ours.url, env_name="echoenvironment")
    assert len(MultiEnvironmentSpec({"echo": other, "chat": spec}).reward_funcs) == 2


# --- All of it in a run


def answer(text):
    """Take a note, then answer: at length on the first tasks of a batch, which the judge likes."""
    word = re.findall(r"Answer with '(\w+)'", text)[-1]
    if text.count("<tool_response>") < 2:
        return call("note", note="thinking") + END
    return f"It is {word}." + END


@pytest.mark.slow
def test_trainer_uses_conversations_answers_and_groups_at_once(tmp_path, eventually):
    with (
        serve("openreward", "--env", "chat") as server,
        OpenRewardSpec(
            server.url, prompts="messages", terminal_tool=True, group_scoring=True, record=tmp_path / "record"
        ) as spec,
    ):
        trainer = make_trainer(tmp_path, spec, policy=answer, arguments={"reward_weights": [1.0, 0.5]})
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "reward" in entry]
        eventually(lambda: server.live() == [])
    episodes = list(read(tmp_path / "record"))  # whole once the spec is closed
    assert [step["rewards/environment_reward/mean"] for step in steps] == [1.0, 1.0]
    assert [step["rewards/group_reward/mean"] for step in steps] == [1.0, 1.0]
    assert [step["reward"] for step in steps] == [1.5, 1.5]
    assert {tuple(call.tool for call in episode.calls) for episode in episodes} == {("note", "submit")}
    assert {episode.status for episode in episodes} == {"scored"}
