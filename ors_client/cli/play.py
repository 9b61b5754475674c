"""The command `ors play`: one episode, played by a person or from a script."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from ors_client import JSONValue, Session, TaskRef, TerminalToolSpec, ToolError, ToolOutput, ToolSpec

from .arguments import Argument, read_arguments, signature
from .block_printer import BlockPrinter
from .command import INTERRUPTED, PROBLEMS
from .listing import IMAGES, ImagesOption
from .options import (
    EPISODE_TIMEOUT,
    Misuse,
    SecretHostsOption,
    SecretOption,
    ServerOptions,
    SplitOption,
    TaskOption,
    choose_split,
    read_secrets,
)
from .output import err, one_line, out, printable, show, show_error, show_json_line, show_note
from .script import Call, Script, ScriptResult, format_lines

_LINE = 72  # characters of a description beside its tool
_DESCRIPTION = 400  # of a tool that was chosen
_NAME = 40  # of a tool's name above a question
_FEW = 6  # tools that are shown with what they take before the first question
_FINAL, _QUIT = "m", "q"


def play(
    options: ServerOptions,
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
    """Play an episode: see the prompt, call tools, see the reward. Ctrl-C ends it and leaves nothing behind.

    The exit status of a script is 0 when every call that was made had a result, 1 when one came back with an error.
    """
    if options.as_json and script is None:
        raise Misuse("--json plays a script: give the calls with --script FILE.")
    client = options.client(EPISODE_TIMEOUT)
    try:
        with Script.open(script) as source, client:
            environment = client.environment(options.env, variant=options.variant)
            reference = TaskRef(choose_split(environment, split), task)
            with environment.session(reference, secrets=read_secrets(options, secret, secret_hosts)) as session:
                episode = _PlayedEpisode(session, None if options.as_json else BlockPrinter(images))
                episode.begin()
                if source is None:
                    result = None
                    _play_by_hand(episode)
                else:
                    result = _play_script(source, episode)
            episode.end(result)
    except KeyboardInterrupt:
        left = client.leaked_sessions
        err().print()  # the terminal shows ^C after the question
        show_note("interrupted; the session was deleted" if not left else "interrupted; the session may still be open")
        return INTERRUPTED
    if result is None:
        return 0
    if not options.as_json:
        _show_script_result(result, options)
    return PROBLEMS if result.errors else 0


# --- An episode ------------------------------------------------------------------------------------------------------


class _PlayedEpisode:
    """A session under way, shown to a person by a printer, or as lines of JSON without one."""

    def __init__(self, session: Session, printer: BlockPrinter | None) -> None:
        self.session = session
        self.rewards: list[float] = []
        self._calls = 0
        self._printer = printer

    def begin(self) -> None:
        with err().status("waiting for the environment to be set up"):
            blocks = self.session.get_prompt()
        if self._printer is None:
            show_json_line({"prompt": blocks})
        else:
            self._printer.blocks(blocks)

    def step(self, call: Call) -> bool:
        """Make a call; return whether it had a result."""
        self._calls += 1
        tool = call.tool
        if call.message is not None:
            final = self.session.terminal_tool()
            tool = final.name if final is not None else "message"
        shown = call.arguments if call.message is None else call.message
        if self._printer is not None:
            self._printer.call(tool, shown)
        try:
            if call.message is None:
                output = self.session.call_tool(tool, call.arguments)
            else:
                output = self.session.call_terminal_tool(call.message)
        except ToolError as error:
            self._show_error(tool, shown, error)
            return False
        self._show_output(tool, shown, output)
        return True

    def end(self, result: ScriptResult | None) -> None:
        summary: dict[str, Any] = {
            "finished": self.session.finished,
            "reward": self.rewards[-1] if self.rewards else None,
            "rewards": self.rewards,
            "calls": self._calls,
        }
        if result is not None:
            summary |= {"lines_with_errors": result.errors, "lines_not_played": result.unplayed}
        if self._printer is None:
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

    def _show_output(self, tool: str, shown: object, output: ToolOutput) -> None:
        if output.reward is not None:
            self.rewards.append(output.reward)
        if self._printer is None:
            show_json_line({"tool": tool, "arguments": shown, "output": output})
        else:
            self._printer.output(output)

    def _show_error(self, tool: str, shown: object, error: ToolError) -> None:
        if self._printer is None:
            show_json_line({"tool": tool, "arguments": shown, "error": error.detail, "kind": type(error).__name__})
        else:
            self._printer.error(f"{type(error).__name__}: {error.detail}")


# --- From a script ---------------------------------------------------------------------------------------------------


def _play_script(script: Script, episode: _PlayedEpisode) -> ScriptResult:
    result = ScriptResult()
    for number, call in script.calls():
        result.calls += 1
        if not episode.step(call):
            result.errors.append(number)
        if episode.session.finished:
            result.unplayed, result.more = script.skip_rest()
            break
    return result


def _show_script_result(result: ScriptResult, options: ServerOptions) -> None:
    """Say what a reader of the calls might miss."""
    if result.unplayed:
        unplayed = result.unplayed
        where = format_lines(unplayed[:1] if result.more else unplayed)
        count = f"{'more than ' * result.more}{len(unplayed)} calls were" if len(unplayed) > 1 else "1 call was"
        show_note(f"the episode was over before {where} of the script; {count} not made")
    if result.errors:
        env = "" if options.env is None else f" --env {options.env}"
        share = f"{len(result.errors)} of {result.calls}" if result.calls > 1 else "the only"
        calls = "calls" if result.calls > 1 else "call"
        show_error(
            f"The server answered {share} {calls} with an error: {format_lines(result.errors)} of the script.",
            [f"See the tools and what they take: ors tools {options.url}{env}"],
        )


# --- By a person -----------------------------------------------------------------------------------------------------


def _play_by_hand(episode: _PlayedEpisode) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport] - it gives input() a history
    tools, final = episode.session.list_tools(), episode.session.terminal_tool()
    if len(tools) <= _FEW:
        _show_menu(tools, final)  # more of them would scroll the prompt away
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


def _show_names(tools: list[ToolSpec], final: TerminalToolSpec | None) -> None:
    """Show what can be chosen in as few lines as there are, above each question."""
    named = [(str(number), tool.name) for number, tool in enumerate(tools, start=1)]
    named += [(_FINAL, final.name)] if final is not None else []
    line = Text("\n")
    for key, name in [*named, (_QUIT, "quit"), ("?", "what they take")]:
        line.append(key, "bold cyan").append(f"\u00a0{one_line(name, _NAME)}  ")
    out().print(line)


def _show_entry(key: str, name: str, description: str, takes: str) -> None:
    console = out()
    line = Text.assemble((f"{key:>3}  ", "bold cyan"), (printable(name), "bold"), f"  {one_line(description, _LINE)}")
    console.print(line, no_wrap=True, overflow="ellipsis", soft_wrap=False)
    if takes:
        show(Padding(Text(printable(takes), style="dim"), (0, 0, 0, 5), expand=False))


def _ask_call(tools: list[ToolSpec], final: TerminalToolSpec | None) -> Call | None:
    """Ask until a tool is chosen and its arguments are given; `None` is to leave."""
    while True:
        _show_names(tools, final)
        answer = input("tool: ").strip()
        named = next((tool for tool in tools if tool.name == answer), None)
        if named is None and answer.isdecimal() and 1 <= int(answer) <= len(tools):
            named = tools[int(answer) - 1]
        try:
            if named is not None:
                return Call(named.name, _ask_arguments(named))
            if final is not None and answer in {_FINAL, final.name}:
                return Call(message="" if final.arg is None else _ask_message(final.arg))
        except EOFError:
            out().print()  # back to the tools; where there is no more to read, that ends
            continue
        if answer in {_QUIT, "quit", "exit"}:
            return None
        if answer == "?":
            _show_menu(tools, final)
        elif answer:
            out().print(Text(f"There is no tool {printable(answer)!r}.", style="red"))


def _ask_message(name: str) -> str:
    message = Argument(name, types=("string",), label="the final message", required=True)
    return str(_ask_argument(message)[0])


def _ask_arguments(tool: ToolSpec) -> dict[str, Any]:
    if tool.description:
        out().print(Text(f"  {one_line(tool.description, _DESCRIPTION)}", style="dim"))
    given: dict[str, Any] = {}
    for argument in read_arguments(tool):
        answered = _ask_argument(argument)
        if answered:
            given[argument.name] = answered[0]
    return given


def _ask_argument(argument: Argument) -> list[JSONValue]:
    """Ask until there is a value; an empty list is an optional argument that was left out."""
    default = "" if argument.default is None else f"; default {argument.default}"
    input_format = _input_format(argument)
    takes = input_format if argument.required else f"{input_format}, optional{default}"
    note = f"  {one_line(argument.description, _LINE)}" if argument.description else ""
    if note:
        out().print(Text(note, style="dim"))
    while True:
        text = input(f"  {printable(argument.name)} ({printable(argument.label)}{printable(takes)}): ")
        if not text and not argument.required:
            return []
        if not text and "string" in argument.types:
            out().print(
                Text('  It is required. An empty text is written "". Ctrl-D goes back to the tools.', style="red")
            )
            continue
        try:
            return [argument.read(text)]
        except ValueError as error:
            out().print(Text(f"  {printable(error)} Ctrl-D goes back to the tools.", style="red"))


def _input_format(argument: Argument) -> str:
    bounds = f", {argument.bounds}" * bool(argument.bounds)
    if not argument.choices:
        return bounds + ", as JSON" * ("json" in argument.types)
    numbered = len(argument.choices) > 1 and not any(isinstance(choice, int | float) for choice in argument.choices)
    return f"{bounds}; or 1-{len(argument.choices)}" * numbered
