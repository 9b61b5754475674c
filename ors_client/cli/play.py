"""The command `ors play`: one episode, played by a person or from a script."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import typer
from rich.padding import Padding
from rich.text import Text

from ors_client import JSONValue, Session, TaskRef, TerminalToolSpec, ToolError, ToolOutput, ToolSpec

from .arguments import Argument, read_arguments, signature
from .command import (
    INTERRUPTED,
    PLAYERS_PATIENCE,
    Misuse,
    SecretHostsOption,
    SecretOption,
    SplitOption,
    Target,
    TaskOption,
    choose_split,
    read_secrets,
)
from .look import IMAGES, ImagesOption
from .output import err, one_line, out, plain, show, show_json_line, show_note
from .transcript import Reader

_LINE = 72  # characters of a description beside its tool
_FINAL, _QUIT = "m", "q"


def play(
    target: Target,
    *,
    split: SplitOption = None,
    task: TaskOption = 0,
    script: Annotated[
        str | None,
        typer.Option(
            "--script",
            metavar="FILE",
            help='Make these calls instead of asking: {"tool": ..., "arguments": {...}} a line; - is stdin.',
        ),
    ] = None,
    images: ImagesOption = IMAGES,
    secret: SecretOption = None,
    secret_hosts: SecretHostsOption = None,
) -> int:
    """Play an episode: see the prompt, call tools, see the reward. Ctrl-C ends it and leaves nothing behind."""
    if target.as_json and script is None:
        raise Misuse("--json plays a script: give the calls with --script FILE.")
    client = target.client(PLAYERS_PATIENCE)
    try:
        with _opened(script) as source, client:
            environment = client.environment(target.env, variant=target.variant)
            place = TaskRef(choose_split(environment, split), task)
            with environment.session(place, secrets=read_secrets(target, secret, secret_hosts)) as session:
                episode = _Episode(session, None if target.as_json else Reader(images))
                episode.begin()
                if source is None:
                    _ask(episode)
                else:
                    _follow(source, episode)
            episode.end()
    except KeyboardInterrupt:
        left = client.leaked_sessions
        err().print()  # the terminal shows ^C after the question
        show_note("interrupted; the session was deleted" if not left else "interrupted; the session may still be open")
        return INTERRUPTED
    return 0


# --- An episode ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A tool with its arguments, or the final message for the terminal tool."""

    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    message: str | None = None


class _Episode:
    """A session under way, told to a person through a reader, or as lines of JSON without one."""

    def __init__(self, session: Session, reader: Reader | None) -> None:
        self.session = session
        self.rewards: list[float] = []
        self._calls = 0
        self._reader = reader

    def begin(self) -> None:
        with err().status("waiting for the environment to be set up"):
            blocks = self.session.get_prompt()
        if self._reader is None:
            show_json_line({"prompt": blocks})
        else:
            self._reader.blocks(blocks)

    def step(self, call: _Call) -> None:
        self._calls += 1
        tool = call.tool
        if call.message is not None:
            final = self.session.terminal_tool()
            tool = final.name if final is not None else "message"
        shown = call.arguments if call.message is None else call.message
        if self._reader is not None:
            self._reader.call(tool, shown)
        try:
            if call.message is None:
                output = self.session.call_tool(tool, call.arguments)
            else:
                output = self.session.call_terminal_tool(call.message)
        except ToolError as error:
            self._refused(tool, shown, error)
        else:
            self._came_back(tool, shown, output)

    def end(self) -> None:
        summary: dict[str, Any] = {
            "finished": self.session.finished,
            "reward": self.rewards[-1] if self.rewards else None,
            "rewards": self.rewards,
            "calls": self._calls,
        }
        if self._reader is None:
            show_json_line(summary)
            return
        state = "The episode is over" if self.session.finished else "Left before the end"
        calls = "1 call" if self._calls == 1 else f"{self._calls} calls"
        if not self.rewards:
            reward = "nothing was scored"
        else:
            total = f", {sum(self.rewards):g} in all" if len(self.rewards) > 1 else ""
            reward = f"reward {self.rewards[-1]:g}{total}"
        out().print(Text(f"{state} after {calls}: {reward}.", style="bold"))

    def _came_back(self, tool: str, shown: object, output: ToolOutput) -> None:
        if output.reward is not None:
            self.rewards.append(output.reward)
        if self._reader is None:
            show_json_line({"tool": tool, "arguments": shown, "output": output})
        else:
            self._reader.output(output)

    def _refused(self, tool: str, shown: object, error: ToolError) -> None:
        if self._reader is None:
            show_json_line({"tool": tool, "arguments": shown, "error": error.detail, "kind": type(error).__name__})
        else:
            self._reader.refusal(f"{type(error).__name__}: {error.detail}")


# --- From a script ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(script: str | None) -> Generator[BinaryIO | None]:
    if script is None or script == "-":
        yield None if script is None else sys.stdin.buffer
        return
    try:
        file = Path(script).open("rb")  # noqa: SIM115 - closed below; only opening it may fail as misuse
    except OSError as error:
        raise Misuse(f"The script {script!r} can't be read: {error.strerror}.") from None
    with file:
        yield file


def _follow(source: BinaryIO, episode: _Episode) -> None:
    for call in _calls(source):
        if episode.session.finished:
            return
        episode.step(call)


def _calls(source: BinaryIO) -> Iterator[_Call]:
    for number, line in enumerate(source, start=1):
        if line.strip():
            yield _read_call(line, number)


def _read_call(line: bytes, number: int) -> _Call:
    form = 'a line is {"tool": NAME, "arguments": {...}}, or {"message": TEXT} for the terminal tool'
    try:
        value: object = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise Misuse(f"Line {number} of the script is not UTF-8; save it as that.") from None
    except ValueError as error:
        raise Misuse(f"Line {number} of the script is not JSON ({error}); {form}.") from None
    call = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if isinstance(call.get("message"), str):
        return _Call(message=call["message"])
    arguments: object = call.get("arguments") or {}
    if not isinstance(call.get("tool"), str) or not isinstance(arguments, dict):
        raise Misuse(f"Line {number} of the script is no call; {form}.")
    return _Call(call["tool"], cast("dict[str, Any]", arguments))


# --- By a person -----------------------------------------------------------------------------------------------------


def _ask(episode: _Episode) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport] - it gives input() a history
    tools, final = episode.session.list_tools(), episode.session.terminal_tool()
    _show_menu(tools, final)
    while not episode.session.finished:
        try:
            call = _ask_call(tools, final)
        except EOFError:  # Ctrl-D
            out().print()
            return
        if call is None:
            return
        episode.step(call)


def _show_menu(tools: list[ToolSpec], final: TerminalToolSpec | None) -> None:
    out().print()
    for number, tool in enumerate(tools, start=1):
        _show_entry(str(number), tool.name, tool.description, ", ".join(signature(tool)))
    if final is not None:
        _show_entry(_FINAL, final.name, final.description, f"{final.arg}: the final message" if final.arg else "")
    _show_entry(_QUIT, "quit", "", "")


def _show_entry(key: str, name: str, description: str, takes: str) -> None:
    console = out()
    line = Text.assemble((f"{key:>3}  ", "bold cyan"), (plain(name), "bold"), f"  {one_line(description, _LINE)}")
    console.print(line, no_wrap=True, overflow="ellipsis", soft_wrap=False)
    if takes:
        show(Padding(Text(plain(takes), style="dim"), (0, 0, 0, 5), expand=False))


def _ask_call(tools: list[ToolSpec], final: TerminalToolSpec | None) -> _Call | None:
    """Ask until a tool is chosen and its arguments are given; `None` is to leave."""
    keys = f"1-{len(tools)}, " if tools else ""
    keys += f"{_FINAL}, " if final is not None else ""
    while True:
        answer = input(f"\ntool ({keys}{_QUIT}; ? for the menu): ").strip()
        named = next((tool for tool in tools if tool.name == answer), None)
        if named is None and answer.isdecimal() and 1 <= int(answer) <= len(tools):
            named = tools[int(answer) - 1]
        if named is not None:
            return _Call(named.name, _ask_arguments(named))
        if final is not None and answer in {_FINAL, final.name}:
            return _Call(message="" if final.arg is None else input(f"  {plain(final.arg)}: "))
        if answer in {_QUIT, "quit", "exit"}:
            return None
        if answer == "?":
            _show_menu(tools, final)
        elif answer:
            out().print(Text(f"There is no {plain(answer)!r} here.", style="red"))


def _ask_arguments(tool: ToolSpec) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for argument in read_arguments(tool):
        answered = _ask_argument(argument)
        if answered:
            given[argument.name] = answered[0]
    return given


def _ask_argument(argument: Argument) -> list[JSONValue]:
    """Ask until there is a value; an empty list is an optional argument that was left out."""
    default = "" if argument.default is None else f"; default {argument.default}"
    form = ", as JSON" * ("json" in argument.types and not argument.choices)
    left_out = form if argument.required else f"{form}, optional{default}"
    note = f"  {one_line(argument.description, _LINE)}" if argument.description else ""
    if note:
        out().print(Text(note, style="dim"))
    while True:
        text = input(f"  {plain(argument.name)} ({plain(argument.label)}{plain(left_out)}): ")
        if not text and not argument.required:
            return []
        try:
            return [argument.read(text)]
        except ValueError as error:
            out().print(Text(f"  {plain(error)}", style="red"))
