"""The mutants: faults that a hasty change could put into the product, each with the tests that should notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_CLIENT, _RELIABILITY, _CONFORMANCE, _BRIDGE = "tests/client", "tests/reliability", "tests/conformance", "tests/bridge"


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Args:
        name: `folder/module: what is wrong`.
        old: What stands there, exactly once.
        new: What is put in its place.
        breaks: What a user would meet.
        tests: What should notice, the likeliest first.
    """

    name: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    def path(self, tree: Path) -> Path:
        """Return the file that it changes."""
        return tree / f"{self.name.partition(':')[0]}.py"

    def fits(self, tree: Path) -> bool:
        """Tell whether what it changes stands there once."""
        path = self.path(tree)
        return path.exists() and path.read_text(encoding="utf-8").count(self.old) == 1

    def apply(self, tree: Path) -> None:
        """Change the file."""
        path = self.path(tree)
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")


def _in(folder: str, *files: str) -> tuple[str, ...]:
    return tuple(f"{folder}/test_{file}.py" for file in files)


_RETRY = "ors_client/_protocol/retry"
_STREAM = "ors_client/_protocol/stream"
_JSON = "ors_client/_protocol/json"
_RESPONSES = "ors_client/_protocol/responses"
_OPERATIONS = "ors_client/_protocol/operations"
_URLS = "ors_client/_http/urls"
_CREDENTIALS = "ors_client/_http/credentials"
_REDACTION = "ors_client/_http/redaction"
_POOL = "ors_client/_http/pool"
_BACKENDS = "ors_client/_http/backends"
_LOG = "ors_client/_shared/episode_log"
_SCORING = "trl_bridge/_scoring"
_EPISODE = "trl_bridge/_rollout/episode"
_TOOLS = "trl_bridge/_chat/tools"

_FAULTS = tuple(
    f"{_RELIABILITY}/test_exactly_once.py::test_fault[asyncio-{endpoint}]"
    for endpoint in ("call", "prompt", "create", "create_session", "delete")
)
_JUDGEMENT = (*_in(_CLIENT, "retry", "stream", "json", "operations"), *_FAULTS, *_in(_RELIABILITY, "resume"))
_WIRE = (*_in(_CLIENT, "transport", "session", "environment", "client"), *_FAULTS, *_in(_RELIABILITY, "limits"))
_ADDRESSES = (*_in(_CLIENT, "urls", "credentials", "client"), *_in(_CONFORMANCE, "split_layout", "addresses"))
_LIFE = (
    *_in(_CLIENT, "keepalive", "session", "client", "environment"),
    *_FAULTS,
    *_in(_RELIABILITY, "lifetime", "keepalive", "cancellation", "processes"),
    *_in(_CONFORMANCE, "session_life", "session_opening", "environment_choice", "secret_delivery"),
)

MUTANTS: tuple[Mutant, ...] = (
    # --- judgement ---------------------------------------------------------------------------------------------------
    Mutant(
        f"{_RETRY}: a call that may have run is repeated",
        "if not self._operation.idempotent:",
        "if False:",
        "a tool runs twice",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: 429 counts as delivered",
        "delivered=False, status=status",
        "delivered=True, status=status",
        "a full server costs the call",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: a starting backend is a gateway's failure",
        '== "starting"',
        '== "started"',
        "the first episodes on a cold backend fail",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: 502 is no gateway's failure",
        "frozenset({502, 503, 504,",
        "frozenset({503, 504,",
        "reading through a restarting proxy fails at once",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: 410 is no lost session",
        "gone = status == 410 or (",
        "gone = status == 411 or (",
        "an expired session reads as a status error",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: progress is not counted",
        "self._fruitless = self._waits = 0",
        "self._waits = 0",
        "a long result over many connections is given up",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: one attempt more",
        "self._fruitless >= self._policy.attempts",
        "self._fruitless > self._policy.attempts",
        "`RetryPolicy.attempts` is not what it says",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: waiting has no end",
        "if now + wait < self._waiting_since + self._timeouts.start_up:",
        "if True:",
        "a full server is asked for ever",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: Retry-After is not kept",
        "wait = max(asked, policy.first_delay)",
        "wait = policy.first_delay",
        "a server that asks for patience is hammered",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: back-off does not grow",
        "2.0 ** min(nth - 1, 30)",
        "2.0 ** 0",
        "retries come at one pace",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_RETRY}: back-off has no bound",
        "delay = min(policy.max_delay, policy.first_delay",
        "delay = max(policy.max_delay, policy.first_delay",
        "the first retry waits for `max_delay`",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_STREAM}: partial chunks stay over connections",
        "        self._chunks: list[str] = []\n",
        '        self._chunks: list[str] = getattr(self, "_chunks", [])\n',
        "a resumed result holds its beginning twice",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_STREAM}: an error ends as a result",
        "self._finish(Forgotten() if forgotten else Raised(data))",
        "self._finish(End(data))",
        "a tool that raised looks like a broken answer",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_STREAM}: a forgotten run is a raised one",
        "forgotten = self._resuming and self._alone and data == _FORGOTTEN",
        "forgotten = False",
        "a lost result reads as the tool's own error",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_STREAM}: a run may change its id",
        "if self.task_id is not None and task_id != self.task_id:",
        "if False:",
        "a confused proxy's result is taken",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_STREAM}: a result has no limit",
        "if self._size > self._limits.result_bytes:",
        "if False:",
        "a server can fill the memory",
        (*_JUDGEMENT, *_in(_RELIABILITY, "limits")),
    ),
    Mutant(
        f"{_STREAM}: events have no limit",
        "if self._events > self._limits.events:",
        "if False:",
        "a server can keep the client busy for ever",
        _JUDGEMENT,
    ),
    Mutant(f"{_JSON}: NaN is sent", "allow_nan=False", "allow_nan=True", "a server gets what is no JSON", _JUDGEMENT),
    Mutant(
        f"{_JSON}: keys may be numbers",
        "if not isinstance(key, str):",
        "if False:",
        "a key is silently changed",
        _JUDGEMENT,
    ),
    Mutant(
        f"{_JSON}: depth has no limit",
        "if depth > limits.schema_depth:",
        "if False:",
        "deep JSON ends in a RecursionError somewhere else",
        (*_JUDGEMENT, *_in(_RELIABILITY, "limits")),
    ),
    Mutant(
        f"{_JSON}: a 422 shows its input",
        'str(item.get("msg", ""))',
        "str(item)",
        "an error shows a secret",
        (*_JUDGEMENT, *_in(_CLIENT, "transport", "session"), *_in(_CONFORMANCE, "secret_delivery")),
    ),
    Mutant(
        f"{_RESPONSES}: a negative count passes",
        "or count < 0:",
        "or False:",
        "a split of -5 tasks",
        (*_in(_CLIENT, "operations"), *_WIRE),
    ),
    Mutant(
        f"{_RESPONSES}: a refused call is a result",
        "if ok or (ok is None and output is not None):",
        "if output is not None or ok:",
        "a rejection with an output counts as a step",
        (*_in(_CLIENT, "operations"), *_WIRE, *_in(_CONFORMANCE, "tool_refusals")),
    ),
    Mutant(
        f"{_RESPONSES}: a session's id is not checked",
        "not 0 < len(found) <= _LONGEST_ID",
        "False",
        "an endless id becomes a header",
        (*_in(_CLIENT, "operations"), *_WIRE),
    ),
    Mutant(
        f"{_RESPONSES}: dots are a name",
        'value in {"", ".", ".."}',
        'value in {""}',
        "a server's name leads out of its own paths",
        (*_in(_CLIENT, "operations"), *_WIRE),
    ),
    Mutant(
        f"{_RESPONSES}: scores may be too few",
        "if len(found) != count:",
        "if False:",
        "a rollout gets another one's score",
        (*_in(_CLIENT, "operations"), *_WIRE, *_in(_CONFORMANCE, "conversations")),
    ),
    Mutant(
        f"{_OPERATIONS}: names are not quoted",
        "/{quote(environment, safe='')}/{endpoint}",
        "/{environment}/{endpoint}",
        "an environment with a slash in its name is not reached",
        (*_in(_CLIENT, "operations"), *_in(_CONFORMANCE, "addresses")),
    ),
    # --- I/O ---------------------------------------------------------------------------------------------------------
    Mutant(
        f"{_URLS}: redirects leave the origin",
        "if target != _origin(here):",
        "if False:",
        "the key goes to another host",
        (*_in(_CLIENT, "urls", "transport"), *_FAULTS),
    ),
    Mutant(
        f"{_URLS}: variables capture a client",
        "value if value and _belongs_to(given, value) else given",
        "value or given",
        "a client with a URL talks to another server",
        _ADDRESSES,
    ),
    Mutant(
        f"{_URLS}: user names in URLs pass",
        "if parsed.userinfo:",
        "if False:",
        "a password stands in every log line",
        _ADDRESSES,
    ),
    Mutant(
        f"{_CREDENTIALS}: the environment's key goes everywhere",
        'if target.catalogue else ""',
        'if True else ""',
        "a stranger's server gets the key",
        _ADDRESSES,
    ),
    Mutant(
        f"{_CREDENTIALS}: a secret goes to all hosts",
        "if unbound:",
        "if False:",
        "a secret may leave to any host",
        (*_in(_CLIENT, "credentials"), "tests/platform/test_catalogue.py"),
    ),
    Mutant(
        f"{_REDACTION}: base64 is not looked for",
        "if cores or cut_off or _ENCODED_JSON in sought.text:",
        "if False:",
        "a key shows in base64",
        _in(_CLIENT, "credentials"),
    ),
    Mutant(
        f"{_REDACTION}: a cut key is shown",
        "if cut := _cut_off(text, form, end):",
        "if cut := 0:",
        "half a key shows at the end of an excerpt",
        _in(_CLIENT, "credentials"),
    ),
    Mutant(
        f"{_REDACTION}: HTML's spelling is not looked for",
        "html.escape(value), repr",
        "repr",
        "a key shows in a page",
        _in(_CLIENT, "credentials"),
    ),
    Mutant(
        f"{_BACKENDS}: idle connections are kept for long",
        "IDLE_SECONDS = 4.0",
        "IDLE_SECONDS = 60.0",
        "a call is lost on a connection that the server closed",
        (*_in(_CLIENT, "transport"), *_in(_RELIABILITY, "processes", "keepalive")),
    ),
    Mutant(
        f"{_BACKENDS}: a refused connection counts as delivered",
        "return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout",
        "return isinstance(error, httpx.ConnectTimeout",
        "a call to a server that is down is `OutcomeUnknown`",
        (f"{_RELIABILITY}/test_exactly_once.py::test_fault[trio-call]",),  # asyncio has another library
    ),
    Mutant(
        f"{_BACKENDS}: redirects are followed by the library",
        "allow_redirects=False",
        "allow_redirects=True",
        "the key goes to another host",
        (*_FAULTS, *_in(_CLIENT, "transport", "urls")),
    ),
    Mutant(
        f"{_POOL}: another loop may use the connections",
        "if bound is not None and not bound.is_closed():",
        "if False:",
        "a client in two loops hangs",
        (*_in(_CLIENT, "client", "session", "proxies"), *_in(_RELIABILITY, "processes")),
    ),
    Mutant(
        "ors_client/_http/transport: redirects have no end",
        "range(self.limits.redirects + 1)",
        "range(10**9)",
        "a server sends the client in circles",
        _WIRE,
    ),
    Mutant(
        "ors_client/_http/transport: a page for people is an answer",
        'kind != "text/html"',
        'kind != "text/htm"',
        "a proxy's page confirms a deletion",
        _WIRE,
    ),
    Mutant(
        "ors_client/_http/transport: the key goes with every request",
        "self._signed if operation.authenticated else self._anonymous",
        "self._signed",
        "a request that needs no key carries it",
        (
            *_in(_CLIENT, "transport", "operations"),
            "tests/platform/test_uploaded_episodes.py",
            "tests/platform/test_catalogue.py",
        ),
    ),
    Mutant(
        "ors_client/_http/backends: a call may go on a connection that is closing",
        "return not protocol.should_close and not _is_readable(transport)",
        "return True",
        "a blocked loop loses the next call",
        _in(_RELIABILITY, "surplus", "processes", "time"),
    ),
    Mutant(
        "ors_client/_http/backends: a call may go on a TLS connection that is closing",
        "return protocol.is_connected() and not protocol.should_close",
        "return True",
        "a blocked loop loses the next call",
        _in(_RELIABILITY, "tls"),
    ),
    Mutant(
        "ors_client/_http/cancellation: a cancelled caller waits for nothing",
        "scope.deadline = anyio.current_time() + grace",
        "scope.cancel()",
        "a session is made and nobody knows it",
        (*_in(_RELIABILITY, "cancellation", "lifetime"), *_in(_CLIENT, "session")),
    ),
    # --- a session's life --------------------------------------------------------------------------------------------
    Mutant(
        "ors_client/_lifecycle/keepalive: one failed ping loses a session",
        "_FAILURES = 3",
        "_FAILURES = 0",
        "a stall costs all sessions",
        _LIFE,
    ),
    Mutant(
        "ors_client/_lifecycle/keepalive: a lost session is not told",
        "        if on_lost is not None:\n            on_lost(reason)",
        "        del on_lost",
        "a lost session's call waits for its limit",
        _LIFE,
    ),
    Mutant(
        "ors_client/_lifecycle/keepalive: failed pings are not counted",
        "tracked.failures += 1",
        "tracked.failures += 0",
        "a dead server keeps sessions alive",
        _LIFE,
    ),
    Mutant(
        "ors_client/_lifecycle/deletion: a late constructor's session stays",
        "_DELETE_LATER = (3.0, 10.0, 30.0)",
        "_DELETE_LATER = ()",
        "an environment with a slow constructor is left behind",
        _LIFE,
    ),
    Mutant(
        "ors_client/_lifecycle/keepalive: pings are not spread",
        "* _GOLDEN % 1.0",
        "* 0.0",
        "all sessions are pinged in one moment",
        _LIFE,
    ),
    Mutant(
        "ors_client/_lifecycle/limiter: permits are not given back",
        "            limiter.release(self)",
        "            pass",
        "`max_sessions` sessions, and then none",
        (*_in(_CLIENT, "session", "client"), *_LIFE),
    ),
    Mutant(
        "ors_client/_lifecycle/limiter: a queue that moves times out",
        "deadline.reschedule(until)",
        "pass",
        "a long queue fails although it moves",
        (*_in(_CLIENT, "session", "client"), *_LIFE),
    ),
    Mutant(
        "ors_client/_lifecycle/setup: a prompt that raises fails the setup",
        "            if second.status == 500:\n",
        "            if True:\n",
        "an environment whose prompt raises can't be used",
        _LIFE,
    ),
    Mutant(
        "ors_client/_lifecycle/setup: setup is not waited for",
        "        if not self._ready:\n",
        "        if False:\n",
        "a slow setup becomes a lost call",
        _LIFE,
    ),
    Mutant(
        "ors_client/_lifecycle/server: the only environment needs its name",
        "if len(available) == 1:",
        "if False:",
        "a one-environment server is not reached without a name",
        _LIFE,
    ),
    Mutant(
        "ors_client/_lifecycle/server: both ways for secrets, always",
        "self._takes_body_secrets = await self.version() is None",
        "await self.version()",
        "openreward answers 422 to a session with secrets",
        _LIFE,
    ),
    Mutant(
        "ors_client/_lifecycle/server: a missing route is asked again",
        "        self.missing.add(route)\n",
        "",
        "every session asks for what is not there",
        (*_in(_CONFORMANCE, "request_counts", "framework_servers", "session_life"), *_LIFE),
    ),
    Mutant(
        "ors_client/_session: a finished episode is stepped",
        "        if self._finished:\n",
        "        if False:\n",
        "ors-sdk steps an episode that is over",
        _LIFE,
    ),
    Mutant(
        "ors_client/_session: calls run at once",
        "            async with self._turn:\n                at_turn",
        "            if True:\n                at_turn",
        "two calls of an episode overtake each other",
        _LIFE,
    ),
    # --- the log of an episode, and the bridge -----------------------------------------------------------------------
    Mutant(
        f"{_LOG}: a failure is scored",
        '        if self.failure is not None:\n            return f"failed',
        '        if self.failure is None:\n            return f"failed',
        "a broken episode reads as an unscored one",
        (*_in(_CLIENT, "episode_log"), *_in(_BRIDGE, "rollout", "record")),
    ),
    Mutant(
        f"{_LOG}: an ended episode goes on",
        "        if self._log.is_over:\n            return False",
        "        if False:\n            return False",
        "an answer that comes too late changes the reward",
        (*_in(_CLIENT, "episode_log"), *_in(_BRIDGE, "rollout", "record")),
    ),
    Mutant(
        f"{_LOG}: a call's words stand in the next one too",
        "        log.said = None\n",
        "",
        "a record tells the model's words twice",
        (*_in(_CLIENT, "episode_log"), "tests/cli/test_run.py", "tests/bridge/test_record_lines.py"),
    ),
    Mutant(
        f"{_SCORING}: a failed rollout keeps its reward",
        'if failed and self.on_failure == "unscored":',
        "if False:",
        "infrastructure failures teach the model",
        _in(_BRIDGE, "scoring", "rollout", "rewards"),
    ),
    Mutant(
        f"{_SCORING}: the first reward counts",
        "return seen[-1]",
        "return seen[0]",
        "the last reward is not the one that counts",
        _in(_BRIDGE, "scoring", "rollout", "rewards"),
    ),
    Mutant(
        f"{_SCORING}: a null reward erases an earlier one",
        "seen = [reward for reward in rewards if reward is not None and is_usable(reward)]",
        "seen = [reward for reward in rewards[-1:] if reward is not None and is_usable(reward)]",
        "an unscored last call loses the score",
        _in(_BRIDGE, "scoring", "rollout", "rewards"),
    ),
    Mutant(
        f"{_EPISODE}: a failed opening is not tried again",
        "prompt = await self._begin(without=self._server)",
        "raise",
        "one bad server ends rollouts",
        _in(_BRIDGE, "failures", "servers", "rollout"),
    ),
    Mutant(
        f"{_EPISODE}: a failure raises",
        "return self._break(entry, Failure(type(error).__name__, error.message))",
        "raise",
        "a lost session ends the training",
        _in(_BRIDGE, "failures", "rollout", "servers"),
    ),
    Mutant(
        f"{_EPISODE}: calls have no budget",
        "len(log.calls) >= settings.max_calls",
        "False",
        "`max_calls` is not kept",
        _in(_BRIDGE, "rollout", "spec"),
    ),
    Mutant(
        f"{_EPISODE}: a finished episode stays open",
        "        if output.finished:\n            self.end()",
        "        if False:\n            self.end()",
        "sessions stay until the rewards",
        _in(_BRIDGE, "rollout", "record"),
    ),
    Mutant(
        "trl_bridge/_rollout/slot: a prefetched episode of another task is taken",
        "ready.episode.task != task or ",
        "",
        "a rollout plays another row's task",
        _in(_BRIDGE, "rollout", "look_ahead", "concurrency"),
    ),
    Mutant(
        "trl_bridge/_rollout/slot: an eager answer is not used",
        "        if self._dispatched:\n",
        "        if False:\n",
        "a tool runs twice",
        _in(_BRIDGE, "rollout", "concurrency"),
    ),
    Mutant(
        f"{_TOOLS}: left-out arguments are sent",
        "_with_positional(self, args, kwargs))",
        '{**dict.fromkeys(self["function"]["parameters"].get("properties", {})), **kwargs})',
        "a tool gets nulls that nobody gave",
        _in(_BRIDGE, "tools", "rollout"),
    ),
    Mutant(
        f"{_TOOLS}: two tools are equal if their schemas are",
        "return self is other",
        "return dict(self) == other",
        "TRL takes one tool for another",
        _in(_BRIDGE, "tools", "concurrency"),
    ),
    Mutant(
        "trl_bridge/_datasets/tasks: a task without an index gets a row",
        "        if task.index is None:\n",
        "        if False:\n",
        "a row that names no task",
        _in(_BRIDGE, "dataset"),
    ),
    Mutant(
        "trl_bridge/_datasets/tasks: keys may hijack columns",
        "if key and key not in RESERVED_COLUMNS and _column(key) == key",
        "if key and _column(key) == key",
        "a key named `prompt` replaces the prompt",
        _in(_BRIDGE, "dataset"),
    ),
    Mutant(
        "trl_bridge/_settings: a row without an index is task 0",
        "        if index is None:\n",
        "        if index is None:\n            index = 0\n        if index is None:\n",
        "all rollouts train on one task",
        _in(_BRIDGE, "rollout", "spec", "dataset"),
    ),
    Mutant(
        "trl_bridge/_runtime/failure_rate: failures never end a run",
        "if kinds.total() > self._allowed * WINDOW:",
        "if False:",
        "a run without a server goes on",
        _in(_BRIDGE, "failures"),
    ),
    Mutant(
        "trl_bridge/_trainer/rewards: sessions are kept after the rewards",
        "            slot.release()\n    if prompts is None",
        "            pass\n    if prompts is None",
        "the last batch's sessions stay",
        _in(_BRIDGE, "rewards", "trl_compat"),
    ),
    Mutant(
        "trl_bridge/_trainer/rewards: both rewards are added",
        "if any(map(owns_reward, environments)):",
        "if False:",
        "a reward counts twice",
        _in(_BRIDGE, "rewards", "spec"),
    ),
    Mutant(
        "trl_bridge/_trainer/concurrency: calls are started twice",
        "if self._seen.get(rollout) is not message:",
        "if True:",
        "a tool runs twice",
        _in(_BRIDGE, "concurrency", "fidelity"),
    ),
    Mutant(
        "trl_bridge/_trainer/concurrency: resets wait for each other",
        "slot.prefetch(row, ready=",
        "(lambda *_, **__: None)(row, ready=",
        "a batch's setups run one after the other",
        _in(_BRIDGE, "concurrency", "look_ahead"),
    ),
)
