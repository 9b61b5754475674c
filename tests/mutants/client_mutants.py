"""Faults of `ors_client`: its judgement, its I/O, and a session's life."""

from .catalogue import module

_CALL = "reliability/exactly_once -k asyncio-call"
_RETRY = module("ors_client/_protocol/retry", "client/retry", _CALL, "reliability/resume", "reliability/load")
_STREAM = module("ors_client/_protocol/stream", "client/stream", "reliability/resume", _CALL)
_JSON = module("ors_client/_protocol/json", "client/json", "client/session")
_RESPONSES = module("ors_client/_protocol/responses", "client/operations", "client/session")
_OPERATIONS = module("ors_client/_protocol/operations", "client/operations", "client/session")

PROTOCOL = (
    _RETRY.mutant(
        "call is repeated",
        "if not self._operation.idempotent:",
        "if False:",
        "A call that may have run is sent again, and the environment is stepped twice.",
        _CALL,
    ),
    _RETRY.mutant(
        "refusal counts as delivery",
        "delivered=False, status=status",
        "delivered=True, status=status",
        "A call that a full server refused ends in `OutcomeUnknown`.",
    ),
    _RETRY.mutant(
        "starting backend is not recognised",
        '.lower() == "starting"',
        '.lower() == "started"',
        "The first calls on a cold backend fail.",
        _CALL,
    ),
    _RETRY.mutant(
        "502 is final",
        "frozenset({502, 503, 504,",
        "frozenset({503, 504,",
        "A list that is read through a restarting proxy fails at once.",
        "reliability/exactly_once -k asyncio-list_environments",
        "reliability/exactly_once",
    ),
    _RETRY.mutant(
        "500 of the catalogue is final",
        'status == 500 and operation.host == "api"',
        'status == 500 and operation.host == "sessions"',
        "An environment's own error is asked for again and again.",
        _CALL,
        "platform/rollouts",
    ),
    _RETRY.mutant(
        "410 is no lost session",
        "gone = status == 410 or (",
        "gone = status == 411 or (",
        "A session that a gateway ended reads as a `StatusError`, and goes on.",
        "conformance/session_life",
        "reliability/exactly_once",
    ),
    _RETRY.mutant(
        "progress is not counted",
        "self._fruitless = self._waits = 0",
        "self._waits = 0",
        "A long result over a bad link is given up although it gets on.",
    ),
    _RETRY.mutant(
        "one attempt more",
        "self._fruitless >= self._policy.attempts",
        "self._fruitless > self._policy.attempts",
        "`RetryPolicy.attempts` is not what it says.",
    ),
    _RETRY.mutant(
        "waiting has no end",
        "if now + delay < self._waiting_since + self._timeouts.start_up:",
        "if True:",
        "A full server is asked for ever.",
        "reliability/load -k ever",
    ),
    _RETRY.mutant(
        "Retry-After is not kept",
        "wait = max(asked, self._policy.first_delay)",
        "wait = min(asked, self._policy.first_delay)",
        "A server that asks for patience is hammered.",
    ),
    _RETRY.mutant(
        "Retry-After of days is kept",
        "too_long = asked >= self._timeouts.start_up",
        "too_long = False",
        "A server lets its client sleep for days.",
    ),
    _RETRY.mutant(
        "Retry-After is read on our clock",
        "(_timestamp(sent) if sent else now)",
        "now",
        "A wait is hours too long where the server's clock is wrong.",
    ),
    _RETRY.mutant(
        "back-off does not grow",
        "2.0 ** min(nth - 1, 30)",
        "2.0 ** 0",
        "A server in trouble is asked at one pace.",
        "client/retry",
        "client/session -k pace",
    ),
    _RETRY.mutant(
        "401 has no class of its own",
        "{401: AuthenticationError, ",
        "{",
        "`except AuthenticationError` misses a wrong key.",
        "platform/catalogue -k refused_key",
        "conformance/split_layout -k key",
    ),
    _STREAM.mutant(
        "chunks survive their connection",
        "self._chunks: list[str] = []",
        'self._chunks: list[str] = getattr(self, "_chunks", [])',
        "A resumed result has its beginning twice.",
    ),
    _STREAM.mutant(
        "forgotten run raised",
        "forgotten = self._resuming and self._alone and",
        "forgotten = False and",
        "A lost result reads as the tool's own failure, and the model is blamed.",
    ),
    _STREAM.mutant(
        "tool's words are a forgotten run",
        "forgotten = self._resuming and self._alone and",
        "forgotten = self._resuming and",
        "A tool's own failure reads as a lost result.",
    ),
    _STREAM.mutant(
        "result has no limit",
        "if self._size > self._limits.result_bytes:",
        "if False:",
        "A server can fill the memory.",
    ),
    _STREAM.mutant(
        "events have no limit",
        "if self._events > self._limits.events:",
        "if False:",
        "A server can keep a call busy for ever.",
    ),
    _STREAM.mutant(
        "run changes its id",
        "if self.task_id is not None and task_id != self.task_id:",
        "if False:",
        "The result of another call is taken for this one's.",
    ),
    _STREAM.mutant(
        "last piece is dropped",
        'case "end":\n                self._keep(data)\n',
        'case "end":\n',
        "Every result lacks its end.",
    ),
    _JSON.mutant("NaN is sent", "allow_nan=False", "allow_nan=True", "A server is sent what is no JSON."),
    _JSON.mutant(
        "keys may be numbers",
        "if not isinstance(key, str):",
        "if False:",
        "An argument's key is silently changed into another.",
    ),
    _JSON.mutant(
        "nesting has no limit",
        "if depth > limits.schema_depth:",
        "if False:",
        "Deep JSON ends in a `RecursionError` somewhere else.",
        "client/json",
        "reliability/limits",
    ),
    _JSON.mutant(
        "surrogates stay",
        "return _without_surrogates(value) if escaped else value",
        "return value",
        "A tokenizer raises on a tool's output, and the run ends.",
    ),
    _JSON.mutant(
        "422 shows its input",
        """{where}: {item.get('msg', '')}""",
        """{where}: {item}""",
        "An error message shows the secret that was refused.",
        "client/json",
        "conformance/secret_delivery",
    ),
    _RESPONSES.mutant(
        "refused call is a result",
        "if ok or (ok is None and output is not None):",
        "if ok or output is not None:",
        "A rejection that has an output counts as a step.",
        "client/operations",
        "conformance/tool_refusals",
    ),
    _RESPONSES.mutant(
        "dots are a name",
        'value in {"", ".", ".."}',
        'value in {""}',
        "A server's name for an environment leads out of its own paths.",
    ),
    _RESPONSES.mutant(
        "scores may be too few",
        "if len(found) != count:",
        "if False:",
        "A rollout gets another one's score.",
        "client/operations",
        "conformance/conversations",
    ),
    _RESPONSES.mutant(
        "indices start at zero",
        "first + offset if first >= 0 else None",
        "offset if first >= 0 else None",
        "Tasks from the middle of a split carry the indices of others.",
        "client/operations",
        "conformance/task_lists",
    ),
    _OPERATIONS.mutant(
        "constructor runs twice",
        "secrets_header=secrets_header),\n        idempotent=False,",
        "secrets_header=secrets_header),\n        idempotent=True,",
        "A slow constructor is started a second time, and the session fails.",
        "reliability/lifetime -k lost_create_reply",
        "reliability/exactly_once -k asyncio-create",
        "conformance/session_opening",
    ),
    _OPERATIONS.mutant(
        "name is not quoted",
        "quote(environment, safe='')",
        "environment",
        "An environment with a slash or a blank in its name is not reached.",
    ),
    _OPERATIONS.mutant(
        "range is one task short",
        'body["stop"] = stop',
        'body["stop"] = stop - 1',
        "The last of the tasks that were asked for is missing.",
        "client/operations",
        "conformance/task_lists",
    ),
    _OPERATIONS.mutant(
        "toolset is not sent",
        'body["toolset_name"] = episode.toolset',
        'body["toolset_name"] = None',
        "The model gets the wrong tools.",
        "client/operations",
        "conformance/session_opening -k toolset",
        "platform/catalogue -k toolset",
    ),
)

_URLS = module("ors_client/_http/urls", "client/urls", "client/credentials", "conformance/split_layout")
_CREDENTIALS = module("ors_client/_http/credentials", "client/credentials", "conformance/secret_delivery")
_REDACTION = module("ors_client/_http/redaction", "client/credentials", "conformance/secret_delivery")
_SSE = module("ors_client/_http/sse", "client/sse", "conformance/result_texts")
_BACKENDS = module("ors_client/_http/backends", _CALL, "reliability/processes", "reliability/exactly_once")
_TRANSPORT = module(
    "ors_client/_http/transport",
    "client/transport",
    "client/session",
    _CALL,
    "reliability/limits",
    "reliability/resume",
)
_DEADLINE = module("ors_client/_http/deadline", "client/deadline", "reliability/time", "client/session")
_CANCELLATION = module("ors_client/_http/cancellation", "reliability/cancellation", "reliability/lifetime")

HTTP = (
    _URLS.mutant(
        "redirect leaves the origin",
        "if target != _origin(here):",
        "if False:",
        "The key goes to another host.",
    ),
    _URLS.mutant(
        "redirect leaves the prefix",
        "if _home(there, layout) is None:",
        "if False:",
        "The key goes to another program on the same host.",
    ),
    _URLS.mutant(
        "variable captures a client",
        "value if value and _belongs_to(given, value) else given",
        "value or given",
        "A client whose URL was given talks to another server.",
    ),
    _URLS.mutant(
        "host that ends alike belongs",
        'other.endswith(f".{host}")',
        "other.endswith(host)",
        "`evilserver.com` passes for a part of `server.com`.",
    ),
    _URLS.mutant(
        "password is shown",
        """_USER_INFO.sub(lambda found: f"{found[1] or ''}***@", url)""",
        "url",
        "A refused URL shows its password in the log.",
    ),
    _CREDENTIALS.mutant(
        "key goes to any server",
        '.strip() if target.catalogue else ""',
        ".strip()",
        "A stranger's server gets the catalogue's key.",
    ),
    _CREDENTIALS.mutant(
        "key keeps its newline",
        'environ.get("OPENREWARD_API_KEY", "").strip()',
        'environ.get("OPENREWARD_API_KEY", "")',
        "A key that was read from a file is refused.",
    ),
    _CREDENTIALS.mutant(
        "secret is for every host",
        "if unbound:",
        "if False:",
        "The catalogue gets a secret without knowing where it may go.",
        "client/credentials",
        "platform/catalogue",
    ),
    _REDACTION.mutant(
        "base64 is not looked for",
        "if cores or cut_off or _ENCODED_JSON in text:",
        "if False:",
        "An error shows a key in base64.",
    ),
    _REDACTION.mutant(
        "cut value is shown",
        "if cut := _cut_off(text, form):",
        "if cut := 0:",
        "Half a key shows at the end of an excerpt.",
    ),
    _REDACTION.mutant(
        "spelling of HTML is not looked for",
        "html.escape(value), ",
        "",
        "A key with a quote in it shows in a proxy's page.",
    ),
    _SSE.mutant(
        "byte order mark is text",
        'text = text.removeprefix("\\ufeff")',
        'text = text.removeprefix("")',
        "A stream of a server that begins with a mark loses its first event.",
    ),
    _BACKENDS.mutant(
        "idle connections live long",
        "IDLE_SECONDS = 4.0",
        "IDLE_SECONDS = 60.0",
        "A call goes out on a connection that the server is just closing, and is lost.",
        "reliability/processes -k idle",
    ),
    _BACKENDS.mutant(
        "refused connection counts as delivery",
        "aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError",
        "aiohttp.ConnectionTimeoutError",
        "A call to a server that restarts ends in `OutcomeUnknown`.",
    ),
    _BACKENDS.mutant(
        "library follows redirects",
        "allow_redirects=False",
        "allow_redirects=True",
        "The key goes to another host.",
        "conformance/addresses",
        "reliability/exactly_once -k redirect",
    ),
    _TRANSPORT.mutant(
        "call is resumed without its id",
        "if stream is not None and stream.task_id is not None and body is not None:",
        "if False:",
        "A call whose connection is lost runs a second time.",
        "reliability/resume",
    ),
    _TRANSPORT.mutant(
        "cut stream was not delivered",
        'FailedAttempt("the stream ended before its result", delivered=True)',
        'FailedAttempt("the stream ended before its result", delivered=False)',
        "A call whose connection is lost at its beginning runs a second time.",
        _CALL,
    ),
    _TRANSPORT.mutant(
        "redirects have no end",
        "range(self.limits.redirects + 1)",
        "range(10**9)",
        "A server sends its client in circles.",
        _CALL,
        "reliability/limits",
    ),
    _TRANSPORT.mutant(
        "page is an answer",
        'kind != "text/html"',
        'kind != "text/htm"',
        "A proxy's page for people keeps a session that is gone.",
        "client/session -k page",
    ),
    _TRANSPORT.mutant(
        "key goes with every request",
        "self._signed if operation.authenticated else self._anonymous",
        "self._signed",
        "A request that needs no key carries it.",
        "platform/catalogue",
        "platform/rollouts",
        "client/operations",
    ),
    _TRANSPORT.mutant(
        "connection is not looked at before a call",
        "await loop.poll_io()",
        "pass",
        "After a training step, a call goes out on a connection that was closed meanwhile, and is lost.",
        "reliability/processes -k connection",
    ),
    _TRANSPORT.mutant(
        "errors are not redacted",
        "return self.redactor.redact(text)",
        "return text",
        "An error shows the secret that a server echoes.",
        "conformance/secret_delivery -k shouts",
    ),
    _TRANSPORT.mutant(
        "silence has no limit",
        "silent = self.last_heard + self._silence",
        "silent = self.last_heard + math.inf",
        "A call hangs on a server that died without closing its connection.",
        "reliability/exactly_once -k asyncio-call",
        "reliability/limits",
    ),
    _TRANSPORT.mutant(
        "answer has no limit",
        "if len(body) > limit:",
        "if False:",
        "A server can fill the memory.",
        "reliability/limits -k too_much",
    ),
    _TRANSPORT.mutant(
        "reply is not waited for",
        "grace=self.timeouts.close\n",
        "grace=0.0\n",
        "A session whose creation is cancelled is left on the server.",
        "reliability/cancellation -k outlives",
        "reliability/cancellation",
    ),
    _DEADLINE.mutant(
        "blocked loop uses up the limit",
        "        if now < self._deadline:",
        "        if now >= self._deadline:\n            self.scope.cancel()\n        if True:",
        "A call that succeeded during a training step is given up.",
        "reliability/time",
    ),
    _DEADLINE.mutant(
        "nearer deadline is not set",
        "if deadline < self._due",
        "if False and deadline < self._due",
        "A limit fires too late.",
        "client/deadline",
        "reliability/limits",
    ),
    _CANCELLATION.mutant(
        "cancelled caller waits for nothing",
        "scope.deadline = anyio.current_time() + grace",
        "scope.cancel()",
        "A session whose creation is cancelled is left on the server.",
    ),
    _CANCELLATION.mutant(
        "work is not shielded",
        "scope = anyio.CancelScope(shield=True)",
        "scope = anyio.CancelScope(shield=False)",
        "A cancelled episode's session is not deleted.",
    ),
)

_LIFE = ("client/session", "conformance/session_life", "reliability/lifetime", "reliability/exactly_once")
_KEEPALIVE = module("ors_client/_lifecycle/keepalive", "client/keepalive", "reliability/keepalive", *_LIFE)
_LIMITER = module("ors_client/_lifecycle/limiter", "reliability/load", "client/session")
_SETUP = module(
    "ors_client/_lifecycle/setup", "conformance/session_opening", "client/session", "conformance/old_servers"
)
_SERVER = module(
    "ors_client/_lifecycle/server", "client/environment", "conformance/environment_choice", "conformance/split_layout"
)
_DISCOVERY = module("ors_client/_lifecycle/discovery", "conformance/split_layout", "platform/conditions")
_CREATION = module("ors_client/_lifecycle/creation", "reliability/lifetime", "conformance/session_opening", *_LIFE)

LIFECYCLE = (
    _KEEPALIVE.mutant(
        "one failed ping loses a session",
        "_FAILURES = 3",
        "_FAILURES = 1",
        "A program that was stopped for a minute loses its sessions.",
    ),
    _KEEPALIVE.mutant(
        "tolerance is not kept",
        "if tracked.failures >= _FAILURES and silent >= self.policy.tolerance:",
        "if tracked.failures >= _FAILURES:",
        "A short outage costs sessions that are still there.",
        "reliability/keepalive -k dropped_pings",
    ),
    _KEEPALIVE.mutant(
        "loss is not told",
        "        if on_lost is not None:\n            on_lost(reason)",
        "        del on_lost",
        "The running call of a lost session waits for its own limit.",
        "conformance/session_life -k finds_the_session_lost",
    ),
    _KEEPALIVE.mutant(
        "failed pings are not counted",
        "tracked.failures += 1",
        "tracked.failures += 0",
        "A server that died keeps its sessions open for the client.",
        "reliability/keepalive -k tolerance",
    ),
    _KEEPALIVE.mutant(
        "late constructor's session stays",
        "_DELETE_LATER = (3.0, 10.0, 30.0)",
        "_DELETE_LATER = ()",
        "An episode whose constructor outlasts its request is left on the server.",
        "reliability/lifetime -k constructor",
    ),
    _KEEPALIVE.mutant(
        "deletion is tried once",
        "for delay in _DELETE_AGAIN:",
        "for delay in _DELETE_AGAIN[:1]:",
        "A server that restarts keeps an episode for good.",
        "reliability/lifetime -k repeated",
    ),
    _KEEPALIVE.mutant(
        "pings are not spread",
        "* _GOLDEN % 1.0",
        "* 0.0",
        "A thousand sessions are pinged in one moment.",
    ),
    _KEEPALIVE.mutant(
        "id is not given back",
        "if split or tracked.refused or not tracked.create_sent:",
        "if tracked.refused or not tracked.create_sent:",
        "The catalogue's account runs out of sessions.",
        "conformance/split_layout -k given_back",
    ),
    _KEEPALIVE.mutant(
        "closing does not look again",
        "while tracked.create_pending:",
        "while False:",
        "An opening that is cancelled just before the client closes is left on the server.",
        "conformance/session_life -k not_waited_for",
        "reliability/cancellation",
    ),
    _KEEPALIVE.mutant(
        "proxy's 404 is a missing route",
        "return tracked.deployment not in self._pinged and is_missing_route(error)",
        "return is_missing_route(error)",
        "After a proxy's restart, sessions are pinged no more and end.",
        "conformance/framework_servers -k kept_alive",
    ),
    _LIMITER.mutant(
        "permit is not given back",
        "            self._source.release(self)",
        "            pass",
        "After `max_sessions` sessions no further one opens.",
    ),
    _LIMITER.mutant(
        "queue that moves times out",
        "deadline.reschedule(until)",
        "pass",
        "A long queue fails although it moves.",
        "client/session -k queue",
    ),
    _SETUP.mutant(
        "prompt that raises fails the setup",
        "            if second.status == 500:\n",
        "            if True:\n",
        "An environment whose prompt raises can't be used at all.",
        "conformance/session_opening -k prompt_that_raises",
    ),
    _SETUP.mutant(
        "setup is not waited for",
        "        if not self._ready:\n",
        "        if False:\n",
        "A slow setup becomes a call of unknown outcome.",
        "conformance/session_opening -k first_call",
    ),
    _SERVER.mutant(
        "only environment needs its name",
        "if len(available) == 1:",
        "if False:",
        "A server with one environment is not reached without a name.",
        "conformance/environment_choice -k only_environment",
    ),
    _SERVER.mutant(
        "case of a name counts",
        "name.lower() == wanted.lower()",
        "name == wanted",
        "`EchoEnvironment` does not reach `echoenvironment`.",
    ),
    _SERVER.mutant(
        "missing route is asked for again",
        "        self.missing.add(route)\n",
        "",
        "Every session asks for what an old server does not have.",
        "conformance/tool_lists -k missing",
        "conformance/task_lists -k missing",
    ),
    _SERVER.mutant(
        "hidden route is missing",
        "if route in self._present or not is_missing_route(error):",
        "if not is_missing_route(error):",
        "After a proxy's restart, sessions get the prompt in place of their conversation.",
        "conformance/framework_servers -k hides",
    ),
    _DISCOVERY.mutant(
        "idle id is kept",
        "if known.idle:",
        "if False:",
        "An account's place is taken for as long as the client lives.",
        "conformance/split_layout -k looks_around",
    ),
    _SERVER.mutant(
        "demand for an id is forgotten",
        "self._demands_session = True",
        "self._demands_session = False",
        "Each question to such a server costs two requests.",
        "conformance/request_counts -k plain_name",
    ),
    _CREATION.mutant(
        "episode that may have begun is left",
        "reason = error.reason\n                server.keepalive.delete_later(tracked)",
        "reason = error.reason",
        "An episode whose reply was lost stays on the server.",
        "reliability/lifetime -k lost_create_reply",
    ),
    _CREATION.mutant(
        "refused id is left",
        "await remove(server, tracked)\n                raise",
        "raise",
        "Each refused task leaves a session id on the server.",
        "conformance/session_opening -k given_back",
    ),
    _CREATION.mutant(
        "failed setup is a status",
        "return SetupFailed(error.detail, url=error.url, session_id=error.session_id)",
        "return error",
        "`except SetupFailed` misses a constructor that raised.",
        "conformance/session_opening -k constructor",
    ),
    _CREATION.mutant(
        "failed deletion is given up",
        "if not confirmed:",
        "if False:",
        "An episode whose deletion failed stays on the server.",
        "reliability/lifetime -k repeated",
    ),
    _CREATION.mutant(
        "idle ids take the last place",
        "on_capacity_error=self._server.release_idle_sessions",
        "on_capacity_error=None",
        "An account with one place can't open a session after looking around.",
        "platform/conditions -k looking_around",
    ),
)

_SESSION = module("ors_client/_session", "client/session", "conformance/tool_refusals", "conformance/session_life")

SESSION = (
    _SESSION.mutant(
        "finished episode is stepped",
        "self._finished = output.finished",
        "self._finished = False",
        "A server that does not refuse it steps an episode that is over.",
    ),
    _SESSION.mutant(
        "calls overtake each other",
        "async with self._turn:\n                at_turn",
        "async with anyio.Lock():\n                at_turn",
        "Two calls of one episode run at once.",
        "conformance/session_life -k one_after_another",
    ),
)

_LOG = module("ors_client/_shared/episode_log", "client/episode_log", "bridge/rollout", "bridge/record")

SHARED = (
    _LOG.mutant(
        "broken episode is unscored",
        '        if self.failure is not None:\n            return f"failed',
        '        if self.failure is None:\n            return f"failed',
        "The record does not tell what broke an episode.",
    ),
    _LOG.mutant(
        "late answer counts",
        "        if self._log.is_over:\n            return False",
        "        if False:\n            return False",
        "An answer that comes after the end changes the reward.",
    ),
    _LOG.mutant(
        "words are told twice",
        "        log.said = None\n",
        "",
        "The record repeats the model's words at each further call.",
        "client/episode_log",
        "cli/run",
        "bridge/record_lines",
    ),
)

MUTANTS = (*PROTOCOL, *HTTP, *LIFECYCLE, *SESSION, *SHARED)
