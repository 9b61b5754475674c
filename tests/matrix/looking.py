"""Features of looking around: environments, splits, tasks and tools, before any episode and at the beginning of one."""

from fixtures.environments import load
from ors_client import GroupCandidate, Message, Split, TextBlock

from .trial import Absent, Feature, Trial


async def list_environments(trial: Trial) -> None:
    """All of them, in the server's order."""
    assert await trial.client.list_environments() == [environment.wire_name() for environment in load("all")]


async def choose_environment(trial: Trial) -> None:
    """One that is not the first answers under its own name."""
    assert await trial.client.environment("Beta").name() == "beta"
    assert {tool.name for tool in await trial.client.environment("Beta").list_tools()} == {"ask", "beta_only"}


async def list_splits(trial: Trial) -> str | None:
    """Names and types, also of a split whose name does not tell its type."""
    splits = await trial.client.environment("gamma").list_splits()
    assert [split.name for split in splits] == ["validation", "hard", "holdout"]
    if not any(split.type for split in splits):
        return "names without types"
    assert splits[1:] == [Split(name="hard", type="validation"), Split(name="holdout", type="test")]
    return None


async def count_tasks(trial: Trial) -> None:
    """Without a list of them, too."""
    assert await trial.client.environment("alpha").num_tasks("train") == 70
    assert await trial.client.environment("indexed").num_tasks("train") == 12


async def get_task(trial: Trial) -> None:
    """By index, from either end."""
    environment = trial.client.environment("beta")
    third, last = await environment.get_task("train", 2), await environment.get_task("train", -1)
    assert (third.environment, third.index, third.spec["id"]) == ("beta", 2, "beta-train-2")
    assert last.spec["id"] == "beta-train-9"


async def list_tasks(trial: Trial) -> None:
    """All tasks of a split, numbered."""
    tasks = await trial.client.environment("alpha").list_tasks("train")
    assert [(task.index, task.spec["number"]) for task in tasks] == [(index, index) for index in range(70)]


async def list_task_range(trial: Trial) -> str | None:
    """A part of a split, resolved like a slice."""
    environment = trial.client.environment("alpha")
    assert [task.spec["number"] for task in await environment.list_tasks("train", 60, 100)] == list(range(60, 70))
    assert [task.index for task in await environment.list_tasks("train", -2)] == [68, 69]
    return "cut from the whole list" if trial.missed("/task_range") else None


async def list_indexed_tasks(trial: Trial) -> str | None:
    """All tasks of an environment that has no list of them."""
    tasks = await trial.client.environment("indexed").list_tasks("train")
    assert [task.spec["number"] for task in tasks] == list(range(12))
    return "asked for one by one" if trial.missed("/task_range") else None


async def list_tools(trial: Trial) -> None:
    """Names, descriptions and schemas to the letter, whatever their names."""
    (environment,) = load("schemas")
    ours = {tool.name: tool.spec for tool in environment.tools().values() if tool.shared and not tool.terminal}
    theirs = {tool.name: tool for tool in await trial.client.environment(environment.wire_name()).list_tools()}
    assert set(theirs) == set(ours)
    for name, tool in theirs.items():
        assert (tool.description, tool.input_schema) == (ours[name].description, ours[name].input_schema)


async def task_tools(trial: Trial) -> str | None:
    """A task's own tools are listed beside the shared ones, and can be called."""
    async with trial.session("tasktoolsenvironment", {"id": "box3", "box": 3}) as session:
        listed = {tool.name for tool in await session.list_tools()}
        assert (await session.call_tool("open_3", {"key": "3"})).reward == 1.0
    if trial.missed("/task_tools"):
        assert "look" in listed
        return "the environment's tools"
    assert listed == {"look", "open_3", "shortcut"}
    return None


async def terminal_tool(trial: Trial) -> None:
    """The tool that takes the final answer is told apart from the others, and takes it."""
    async with trial.session("chatenvironment") as session:
        assert [tool.name for tool in await session.list_tools()] == ["note"]
        tool = await session.terminal_tool()
        if tool is None:
            await _refuse_if_described(trial, "terminal_tool")
        assert (tool.name, tool.arg) == ("submit", "text")
        output = await session.call_terminal_tool("It is Paris.")
    assert (output.text, output.reward, output.finished) == ("right", 1.0, True)


async def group_scoring(trial: Trial) -> None:
    """Candidates are scored beside each other, in their order."""
    async with trial.session("chatenvironment") as session:
        if not await session.supports_score_group():
            await _refuse_if_described(trial, "supports_score_group")
        answers = [Message(role="assistant", blocks=[TextBlock(text=text)]) for text in ("4", "Paris, of course")]
        scores = await session.score_group([GroupCandidate(messages=[answer]) for answer in answers])
    assert 0 < scores[0].reward < scores[1].reward == 1.0


async def _refuse_if_described(trial: Trial, field: str) -> None:
    described = (await trial.raw("GET", "/chatenvironment/tools")).json()
    assert isinstance(described, list) or not described.get(field), "the server tells of it, the client does not"
    raise Absent


FEATURES = (
    Feature("list of environments", list_environments),
    Feature("an environment by name, among several", choose_environment),
    Feature("splits", list_splits, since=50),
    Feature("number of tasks", count_tasks),
    Feature("task by index", get_task),
    Feature("all tasks", list_tasks),
    Feature("a range of tasks", list_task_range, since=70),
    Feature("tasks of an index-based environment", list_indexed_tasks, since=70),
    Feature("tools and their schemas", list_tools),
    Feature("tools of a task", task_tools, since=70),
    Feature("terminal tool", terminal_tool, since=141),
    Feature("group scoring", group_scoring, since=157),
)
