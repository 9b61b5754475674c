"""Faults of `trl_bridge`: what a rollout is worth, what the model sees, and what the trainer is helped with."""

from .catalogue import module

_SCORING = module("trl_bridge/_scoring", "bridge/scoring", "bridge/rewards")
_SETTINGS = module("trl_bridge/_settings", "bridge/spec", "bridge/rollout")
_EPISODE = module("trl_bridge/_rollout/episode", "bridge/rollout", "bridge/record", "bridge/servers")
_SLOT = module("trl_bridge/_rollout/slot", "bridge/rollout", "bridge/look_ahead")
_CONCURRENCY = module("trl_bridge/_trainer/concurrency", "bridge/concurrency", "bridge/multi")
_PREFETCH = module("trl_bridge/_trainer/prefetch", "bridge/look_ahead")
_GROUPS = module("trl_bridge/_trainer/group_scoring", "bridge/protocol")
_REWARDS = module("trl_bridge/_trainer/rewards", "bridge/rewards", "bridge/trl_compat")
_RATE = module("trl_bridge/_runtime/failure_rate", "bridge/failures")
_SERVERS = module("trl_bridge/_runtime/servers", "bridge/servers", "bridge/pool")
_RUNTIME = module("trl_bridge/_runtime/runtime", "bridge/servers", "bridge/spec", "bridge/rollout")
_DISCOVERY = module("trl_bridge/_runtime/discovery", "bridge/spec")
_CONTENT = module("trl_bridge/_chat/content", "bridge/content", "bridge/images")
_CHAT = module("trl_bridge/_chat/conversation", "bridge/protocol")
_TOOLS = module("trl_bridge/_chat/tools", "bridge/tools")
_SCHEMAS = module("trl_bridge/_chat/schemas", "bridge/tools", "bridge/fidelity")
_TASKS = module("trl_bridge/_datasets/tasks", "bridge/dataset", "bridge/spec")
_MULTI = module("trl_bridge/_multi", "bridge/multi")

MUTANTS = (
    _SCORING.mutant(
        "broken rollout is scored",
        'if failed and self.on_failure == "unscored":',
        "if False:",
        "The model learns from what the infrastructure broke.",
    ),
    _SCORING.mutant("first reward counts", "return seen[-1]", "return seen[0]", "An early reward hides the last one."),
    _SCORING.mutant(
        "unscored step is worth zero",
        "seen = [reward for reward in rewards if reward is not None",
        "seen = [reward or 0.0 for reward in rewards if True",
        "A step without a reward erases the score.",
    ),
    _SCORING.mutant(
        "penalty for all",
        "value if finished or failed else value - self.unfinished_penalty",
        "value - self.unfinished_penalty",
        "Rollouts that did finish are punished, too.",
    ),
    _SCORING.mutant("clamp has no top", "min(max(value, low), high)", "max(value, low)", "An outlier decides a batch."),
    _SETTINGS.mutant(
        "task is guessed",
        'index = row.get("task_index")',
        'index = row.get("task_index", 0)',
        "Where the trainer strips columns, every rollout trains on the first task.",
        "bridge/rollout -k without_its_index",
    ),
    _EPISODE.mutant(
        "wrong key is tried again",
        "_FINAL = (AuthenticationError, ",
        "_FINAL = (",
        "Each reset without permission costs two.",
        "bridge/rollout -k without_permission",
    ),
    _EPISODE.mutant(
        "reset is tried once",
        "except (*_FINAL, ClientStateError):",
        "except (*_FINAL, ORSError, ClientStateError):",
        "One lost session costs a rollout.",
        "bridge/rollout -k fails_once",
    ),
    _EPISODE.mutant(
        "one call too many",
        ".calls) >= settings.max_calls",
        ".calls) > settings.max_calls",
        "`max_calls` is not what it says.",
        "bridge/rollout -k out_of_calls",
    ),
    _EPISODE.mutant(
        "characters have no limit",
        " >= settings.max_episode_chars:",
        " >= 10**9:",
        "An episode outgrows the model's context.",
        "bridge/rollout -k out_of_characters",
    ),
    _EPISODE.mutant(
        "session of an ended episode stays",
        "if session is not None and self._server is not None:",
        "if False:",
        "Each rollout leaves a session on the server.",
        "bridge/rollout -k session_is_deleted",
    ),
    _EPISODE.mutant(
        "failed resets are not counted",
        "self.runtime.resets.failed(failure.kind, failure.message)",
        "pass",
        "A run goes on with a server that is gone, and learns nothing.",
        "bridge/rollout -k too_often",
    ),
    _EPISODE.mutant(
        "finished episode goes on",
        ".finished:\n            self.end()",
        ".finished:\n            pass",
        "A call after the end reaches the server.",
        "bridge/rollout -k finished",
    ),
    _EPISODE.mutant(
        "waiting counts",
        "self._start = time.monotonic()  # how long",
        "_ = time.monotonic()  # how long",
        "An episode that was opened ahead has no time left when its rollout comes.",
        "bridge/look_ahead -k begins_when",
    ),
    _SLOT.mutant(
        "answer of another call",
        "if expected is tool and given == kwargs:",
        "if True:",
        "A call gets the answer to another one.",
        "bridge/rollout -k not_foreseen",
    ),
    _SLOT.mutant(
        "episode of another row",
        "ready.episode.task != task or ",
        "",
        "A rollout is scored on another task than its prompt's.",
        "bridge/rollout -k another_row",
    ),
    _SLOT.mutant(
        "reset keeps the last episode",
        "self.release()\n        self.state.now =",
        "self.state.now =",
        "Each reset leaves a session on the server.",
        "bridge/rollout -k next_episode_starts",
    ),
    _CONCURRENCY.mutant(
        "one environment for all rows",
        "[name] += 1",
        "[name] += 0",
        "The episodes of a batch are opened and dropped, and opened again one by one.",
        "bridge/concurrency -k from_the_first_batch",
    ),
    _CONCURRENCY.mutant(
        "calls overtake a user's own function",
        "return  # one of the user's own",
        "continue  # one of the user's own",
        "A call runs before the function that the model called first.",
        "bridge/concurrency -k own_function",
    ),
    _CONCURRENCY.mutant(
        "calls are started twice",
        "if self._seen.get(rollout) is not message:",
        "if True:",
        "The environment is stepped twice for one call.",
        "bridge/concurrency -k plain_one",
    ),
    _PREFETCH.mutant(
        "look_ahead has no limit",
        "if opened[handle] < (handle.settings.look_ahead or 0):",
        "if True:",
        "A whole batch of sessions more is open than was allowed.",
        "bridge/look_ahead -k limit_bounds",
    ),
    _PREFETCH.mutant(
        "lost episode is handed out",
        ".claim():",
        ".claim() or True:",
        "A rollout gets a session that was lost while it stood ready.",
        "bridge/look_ahead -k lost_while",
    ),
    _GROUPS.mutant(
        "judge sees broken rollouts",
        ".failure is None:",
        ".failure is None or True:",
        "The other rollouts are compared with what the infrastructure broke.",
        "bridge/protocol -k no_judge",
    ),
    _GROUPS.mutant(
        "scores go to the wrong rollouts",
        "zip(members, scores, strict=True)",
        "zip(reversed(members), scores, strict=True)",
        "The worst rollout gets the best one's score.",
    ),
    _REWARDS.mutant(
        "sessions stay after the rewards",
        "    for slot in ours:\n        slot.release()\n",
        "",
        "The sessions of a batch stay open while the trainer trains.",
        "bridge/rewards -k release",
    ),
    _REWARDS.mutant(
        "rewards are added up",
        "if any(map(owns_reward, environments)):",
        "if False:",
        "TRL adds the reward to itself.",
        "bridge/rewards -k own_theirs",
    ),
    _RATE.mutant(
        "allowed share stops the run",
        "kinds.total() > self._allowed * WINDOW",
        "kinds.total() >= self._allowed * WINDOW",
        "A run ends although no more resets failed than was allowed.",
    ),
    _RATE.mutant(
        "rate is never forgiven",
        "self._kinds.append(None)\n            self._exceeded = None",
        "self._kinds.append(None)",
        "A run that was caught once ends at each reset.",
    ),
    _SERVERS.mutant(
        "sessions are not spread",
        "server.sessions))",
        "0))",
        "One of several servers has all the work.",
        "bridge/servers -k spread",
    ),
    _SERVERS.mutant(
        "limit of a call is the server's fault",
        "return error.limit in _UNANSWERED",
        "return True",
        "A slow tool takes its server out of service.",
        "bridge/servers -k limit_of_a_call",
    ),
    _RUNTIME.mutant(
        "any server gets the key as a secret",
        " is None and settings.secrets is None and settings.forward_api_key:",
        " is not ... and settings.secrets is None and settings.forward_api_key:",
        "A stranger's server is told the catalogue's key.",
        "bridge/servers -k never_gets_the_key",
    ),
    _RUNTIME.mutant(
        "requests have no limit",
        "if settings.max_concurrency else None",
        "if False else None",
        "A batch overruns the server that `max_concurrency` was to spare.",
        "bridge/servers -k as_many_as_allowed",
    ),
    _RUNTIME.mutant(
        "record shows the key",
        "hide=self._hidden",
        "hide=[] and self._hidden",
        "An episode's record has the key that a server echoed.",
        "bridge/record",
        "bridge/servers",
        "bridge/rollout",
    ),
    _DISCOVERY.mutant(
        "negative index counts from the front",
        "index + total if index < 0 else index for",
        "-index if index < 0 else index for",
        "`indices=[-1]` trains on the second task.",
        "bridge/spec -k indices",
    ),
    _DISCOVERY.mutant(
        "only one task's tools are found",
        "_SAMPLE = 4",
        "_SAMPLE = 2",
        "A tool that some tasks have is unknown to the model.",
        "bridge/spec -k tools",
    ),
    _CONTENT.mutant(
        "cut text is too long",
        "kept = max(0, max_chars - len(_marker(length, length)))",
        "kept = max_chars",
        "An output is longer than `max_output_chars`.",
    ),
    _CONTENT.mutant(
        "surrogates reach the tokenizer",
        'return text.encode(errors="backslashreplace").decode()',
        "return text",
        "A tokenizer raises on a tool's output, and the run ends.",
    ),
    _CONTENT.mutant(
        "images have no limit together",
        "self._spent += size",
        "self._spent += 0",
        "One output of many images fills the memory.",
    ),
    _CHAT.mutant(
        "call is an answer",
        'if last.get("role") != "assistant" or last.get("tool_calls"):',
        'if last.get("role") != "assistant":',
        "A rollout that was cut off in a call is scored as if it had answered.",
        "bridge/protocol -k answer",
    ),
    _TOOLS.mutant(
        "aliases collide",
        "while unique in taken:",
        "while False:",
        "One of two tools can't be called.",
    ),
    _TOOLS.mutant(
        "argument goes out under its spelling",
        "arguments[name if wire in kwargs or wire in arguments else wire] = value",
        "arguments[name] = value",
        "A tool refuses a parameter that it listed.",
    ),
    _TOOLS.mutant(
        "reserved names shadow",
        "or spelt in reserved:",
        "or False:",
        "A tool called `reset` or `reward` breaks the trainer.",
    ),
    _SCHEMAS.mutant(
        "values are taken for schemas",
        "_value(inner, depth - 1) if key in _VALUES else",
        "_value(inner, depth - 1) if key not in _VALUES else",
        "A default that looks like a schema is altered.",
    ),
    _TASKS.mutant(
        "reserved columns are overwritten",
        "if key and key not in RESERVED_COLUMNS and",
        "if key and",
        "A task's `prompt` or `completions` breaks the reward function.",
    ),
    _TASKS.mutant(
        "large whole numbers become floats",
        "_LARGEST_EXACT_FLOAT = 2**53",
        "_LARGEST_EXACT_FLOAT = 2**63",
        "A task's id arrives as another number.",
    ),
    _MULTI.mutant(
        "small share is nothing",
        "max(1, math.floor(share))",
        "math.floor(share)",
        "An environment with a small weight is never trained on.",
    ),
    _MULTI.mutant(
        "order is not the seed's",
        "random.Random(self._seed).shuffle(mixed)",
        "random.shuffle(mixed)",
        "Two runs of one seed differ.",
        "bridge/multi -k same_seed",
    ),
)
