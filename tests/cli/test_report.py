"""The page about a record: what it says, that it only can be read, and that a long record still makes one."""

import base64
import hashlib
import inspect
import json
import math
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.main import get_command

from ors_client import Timeouts
from ors_client.cli.app import app
from ors_client.record import CallRecord, EpisodeRecord, RecordWriter
from ors_client.report import Figures, pass_at, summarise, write_report
from ors_client.report._advice import _ADVICE

START = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>'\"&\u202e\x1b[2J"


def episode(index=0, reward=1.0, **fields):
    call = CallRecord(tool="echo", arguments={"text": "hello"}, output="match", reward=reward, seconds=0.25)
    plain = {
        "environment": "echo",
        "split": "train",
        "index": index,
        "session_id": "s-1",
        "prompt": "Say hello.",
        "calls": [call],
        "rewards": [reward],
        "reward": reward,
        "status": "unscored" if reward is None else "scored",
        "started": START + timedelta(seconds=index),
        "seconds": 1.5,
    }
    return EpisodeRecord(**plain | fields)


@pytest.fixture
def page_of(tmp_path):
    """Write episodes to a record, and return the page about it."""

    def page(*episodes, **options):
        writer = RecordWriter(tmp_path / "a.jsonl")
        for one in episodes:
            writer.append(one)
        write_report(tmp_path / "a.jsonl", tmp_path / "a.html", **options)
        return (tmp_path / "a.html").read_text(encoding="utf-8")

    return page


class Elements(HTMLParser):
    """All elements of a page, its text, and what is open at its end."""

    def __init__(self, page):
        super().__init__()
        self.names, self.attributes, self.texts, self.scripts, self.open = [], [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "img", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        (self.scripts if self.open[-1:] == ["script"] else self.texts).append(text)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


# --- What it says ----------------------------------------------------------------------------------------------------


def test_page_tells_reward_and_coverage(page_of):
    elements = Elements(page_of(episode(0, 1.0), episode(1, 0.0), episode(2, None), episode(3, 0.5)))
    assert "4 episodes" in elements.text
    assert "0.375 mean reward 95 % interval -0.387 to 1.14 1 attempt without a score, counted as 0" in elements.text
    assert "75 % coverage: share scored" in elements.text
    assert elements.names.count("svg") == 2


def test_page_tells_failures_by_kind_with_a_message_of_each(page_of):
    broken = {"reward": None, "status": "failed: OutcomeUnknown", "failure": "The connection was lost."}
    text = Elements(
        page_of(episode(), episode(1, **broken), episode(2, **broken), episode(3, status="cut: calls"))
    ).text
    assert "failed: OutcomeUnknown 2 50 % The first: The connection was lost. Try: Is the server up" in text
    assert "cut: calls 1 25 %" in text
    assert "2 broken by infrastructure" in text


def test_page_compares_environments_and_models_where_they_differ(page_of):
    episodes = [episode(index, float(model == "b"), model=model) for model in "ab" for index in range(2)]
    text = Elements(page_of(*episodes, episode(0, None, model="b", status="failed: SessionLost"))).text
    assert "By model model episodes mean reward pass@1 coverage a 2 0 0 % 100 % mean reward: 95 % interval " in text
    assert "b 3 1 100 % 66.7 % mean reward: 95 % interval 1 to 1, pass@1: 95 % interval 100 % to 100 % " in text
    assert "Hardest tasks task attempts passed mean reward transcripts train/0 a 1 0 0 line 1 train/1 a " in text
    assert "train/1 b reward 1 1 call, 1.5 s" in text
    both = Elements(page_of(episode(environment="chat", model="a"))).text
    assert "environment and model episodes mean reward pass@1 coverage chat a 1 1 100 % 100 % echo a 2" in both


def test_page_about_one_model_in_one_environment_compares_nothing(page_of):
    assert "<h2>By " not in page_of(episode(model="a"), episode(1, model="a"))


def test_episode_that_failed_before_it_knew_its_environment_is_of_the_only_one(page_of):
    broken = episode(1, None, environment=None, session_id=None, status="failed: TransportError")
    assert "<h2>By " not in page_of(episode(), broken)
    text = Elements(page_of(episode(model="a"), broken.model_copy(update={"model": "a"}), episode(model="b"))).text
    # The record goes on with the two episodes from before, of no model.
    assert "coverage ? 2 1 100 % 50 % a 2 1 100 % 50 % b 1 1 100 % 100 % " in text


def test_advice_is_about_the_budget_that_cut_the_episodes(page_of):
    cuts = {"calls": "max_calls=", "characters": "max_episode_chars=", "seconds": "in training episode_timeout="}
    text = Elements(page_of(*(episode(status=f"cut: {kind}") for kind in cuts))).text
    assert all(re.search(rf"cut: {kind} 1 [\d.]+ % Try: [^:]+: [^:]*{cure}", text) for kind, cure in cuts.items())


def test_advice_names_options_and_arguments_that_there_are():
    from trl_bridge import OpenRewardSpec

    told = re.sub(r"--set \w+=\w+", "--set", " ".join(_ADVICE.values()))
    run = get_command(app).commands["run"]
    arguments = {*inspect.signature(OpenRewardSpec).parameters, *inspect.signature(Timeouts).parameters}
    options = set(re.findall(r"--[a-z-]+", told.replace("ors check URL --hold", "")))
    assert options
    assert options <= {option for parameter in run.params for option in parameter.opts}
    named = set(re.findall(r"\b([a-z_]+)=", told))
    assert named
    assert named <= arguments


@pytest.mark.parametrize(("reward", "shown"), [(999.4, "999"), (999.6, "1,000"), (-999.6, "-1,000"), (1e9, "1e+09")])
def test_large_rewards_are_rounded_before_they_are_written(page_of, reward, shown):
    assert f"{shown} mean reward" in Elements(page_of(episode(0, reward))).text


def test_columns_all_have_names(page_of):
    call = CallRecord(tool="echo", seconds=1.0, timing={"server": 0.25})
    page = page_of(*(episode(index, calls=[call]) for index in (0, 0, 1, 1)), episode(status="cut: turns"))
    assert page.count("<table>") == 5
    assert page.count("<th ") + page.count("<th>") > 20
    assert "></th>" not in page


def test_reason_to_show_an_episode_is_not_its_status_again(page_of):
    broken = episode(5, None, status="failed: SessionLost")
    text = Elements(page_of(*(episode(index) for index in range(30)), broken, transcripts=10)).text
    assert "train/5 failed: SessionLost 1 call, 1.5 s line 31" in text


def test_points_of_a_long_record_stand_for_as_many_episodes_each(page_of):
    page = page_of(*(episode(index, float(index == 120)) for index in range(121)))  # threes would leave one over
    assert "each point is the mean of about 3 episodes" in page
    points = re.findall(r'<path class="line" d="([^"]+)"', page)[0].split(" L")
    top = re.findall(r'<line class="grid" [^>]* y1="([\d.]+)"', page)[4]
    assert len(points) == 41
    assert points[-1].split()[1] != top  # the last episode's 1 is one of three


def test_page_about_one_episode_draws_no_curve_of_it(page_of):
    elements = Elements(page_of(episode(seconds=None)))
    assert "svg" not in elements.names
    assert "The only episode. train/0 reward 1 1 call line 1" in elements.text


def test_axis_makes_room_for_large_rewards(page_of):
    page = page_of(episode(0, 0.0), episode(1, 1234567.0))
    end, label = re.findall(r'<text x="(\d+)" [^>]*text-anchor="end">([^<]*)', page)[4]
    assert label == "1,234,567"
    assert int(end) >= 6 * len(label)  # some 6 units a character
    assert "e+" not in page


def test_share_of_nothing_has_no_bar(page_of):
    page = page_of(episode(0, 0.0), episode(0, 0.0))
    assert '<td class="n">0 %</td><td class="b"><span class="bar"></span></td>' in page


def test_duration_just_below_a_second_is_a_second(page_of):
    text = Elements(page_of(episode(calls=[CallRecord(tool="echo", seconds=0.9999)]))).text
    assert "1000 ms" not in text


def test_page_ranks_tools_by_the_time_they_took(page_of):
    slow = CallRecord(tool="compile", seconds=90.0, error="no such file", kind="ToolFailed")
    text = Elements(page_of(episode(), episode(1, calls=[slow]))).text
    assert "compile 1 1 90.0 s 90.0 s 90.0 s 90.0 s echo 1 0 250 ms" in text


def test_page_tells_queue_connect_and_server_time_where_the_record_has_it(page_of):
    call = CallRecord(tool="echo", seconds=1.0, timing={"queued": 0.5, "server": 0.25})
    text = Elements(page_of(episode(calls=[call], timing={"model": 2.0}))).text
    assert "model 2.0 s 2.0 s 2.0 s queued, each call 500 ms 500 ms 500 ms server, each call 250 ms" in text


def test_page_shows_what_was_said_called_and_answered(page_of):
    call = CallRecord(tool="run", arguments={"code": "a\nb"}, output="3", said="I try.", reward=0.5, seconds=0.1)
    text = Elements(page_of(episode(calls=[call], said="I am done."))).text
    assert "prompt Say hello. model calls run I try. code: a b run reward 0.5 100 ms 3 model I am done." in text


def test_page_shows_images_of_prompts_and_of_tools(page_of):
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    call = CallRecord(tool="look", output="", blocks=[image])
    page = page_of(episode(messages=[{"role": "user", "blocks": [image]}], calls=[call]))
    assert page.count(f'src="data:image/png;base64,{PNG}"') == 2


def test_attempt_that_was_made_again_counts_once(page_of):
    first = episode(0, None, status="failed: SessionLost", model="m", attempt=0)
    text = Elements(page_of(first, episode(0, 1.0, model="m", attempt=0))).text
    assert "1 attempt that was made again is left out" in text
    assert "100 % coverage: share scored" in text


def test_page_without_episodes_says_so(page_of, tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    assert "The record holds no episodes." in page_of()


# --- What it can't do ------------------------------------------------------------------------------------------------


def test_nothing_in_a_record_becomes_markup(page_of):
    evil = episode(
        environment=EVIL,
        split=EVIL,
        session_id=EVIL,
        prompt=EVIL,
        model=EVIL,
        target=EVIL,
        status=f"failed: {EVIL}",
        failure=EVIL,
        said=EVIL,
        usage={EVIL: 1},
        timing={EVIL: 1.0},
        calls=[
            CallRecord(tool=EVIL, arguments={EVIL: EVIL}, error=EVIL, kind=EVIL, said=EVIL, timing={EVIL: 1.0}),
            CallRecord(tool=EVIL, blocks=[{"type": EVIL}, {"type": "image", "data": EVIL, "mimeType": "image/png"}]),
            CallRecord(tool=EVIL, blocks=[{"type": "image", "data": PNG, "mimeType": 'image/png" onload="alert(1)'}]),
        ],
    )
    chat = episode(messages=[{"role": EVIL, "blocks": [{"type": "tool_call", "name": EVIL, "input": EVIL}]}])
    page = page_of(evil, evil, chat, title=EVIL)
    elements = Elements(page)
    assert elements.names.count("script") == 1  # the page's own
    assert "alert" not in "".join(elements.scripts)
    assert "img" not in elements.names
    assert not any(name.startswith("on") for name, _ in elements.attributes)
    assert elements.open == []
    assert "\u202e" not in page
    assert "\x1b" not in page


def test_image_of_a_type_that_can_hold_a_script_is_not_shown(page_of):
    image = {"type": "image", "data": PNG, "mimeType": "image/svg+xml"}
    page = page_of(episode(messages=[{"role": "user", "blocks": [image]}]))
    assert "[1 image not shown: image/svg+xml]" in page
    assert "data:image/svg" not in page


def test_page_names_no_other_place_and_runs_its_own_script_only(page_of):
    broken = episode(1, None, target="http://localhost:8000", status="failed: SessionLost")
    elements = Elements(page_of(episode(), broken))
    assert {"link", "iframe", "object", "form"}.isdisjoint(elements.names)
    assert not {"src", "srcset", "action"} & {name for name, _ in elements.attributes}
    assert all(value.startswith("#") for name, value in elements.attributes if name == "href")
    (script,) = elements.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert ("content", policy) in elements.attributes


def test_links_lead_to_transcripts_of_each_hardest_task_and_failure_kind(page_of):
    episodes = [episode(index % 60, float(index % 60 > 14)) for index in range(300)]
    episodes += [episode(70, None, status="failed: SessionLost"), episode(3, None, status="cut: turns")]
    page = page_of(*episodes)
    ids = set(re.findall(r'id="(line-\d+)"', page))
    links = re.findall(r'href="#(line-\d+)"', page)
    assert {*links} <= ids
    assert {"line-301", "line-302"} <= {*links}
    hardest = page.split("Hardest tasks")[1].split("Transcripts")[0]
    assert len(re.findall(r"<td>train/\d+</td>", hardest)) == 12
    assert all("#line-" in row for row in hardest.split("<td>train/")[1:])


def test_transcripts_tell_the_filters_model_status_and_task(page_of):
    page = page_of(episode(model="a"), episode(1, None, model='"b', status="cut: turns"))
    assert 'data-model="a" data-status="scored" data-task="train/0"' in page
    assert 'data-model="&quot;b" data-status="cut: turns" data-task="train/1"' in page
    assert '<div class="filters" hidden>' in page  # until the script shows it


def test_badge_is_green_from_the_passing_mark_on(page_of):
    page = page_of(episode(0, 0.5), episode(1, 0.1), passing=0.5)
    assert '<span class="pill good">reward 0.5</span>' in page
    assert '<span class="pill warn">reward 0.1</span>' in page
    assert '<span class="pill good">reward 0.1</span>' not in page


# --- Long records ----------------------------------------------------------------------------------------------------


def test_long_record_shows_some_of_each_kind_and_says_how_many(page_of):
    many = [episode(index, reward=(index % 10) / 10) for index in range(300)]
    many[150] = episode(150, None, status="failed: SessionLost", failure="gone")
    many[250] = episode(250, calls=[CallRecord(tool="echo")] * 30)
    page = page_of(*many, transcripts=20)
    assert page.count("<details>") == 20
    text = Elements(page).text
    assert "20 of 300 episodes: some of each kind of failure" in text
    shown = "train/150 failed: SessionLost", "train/250 reward 1", "train/299 reward 0.9"
    assert all(one in text for one in shown)


def test_long_text_is_shortened_and_says_by_how_much(page_of):
    page = page_of(episode(prompt="x" * 1_000_000))
    assert "994,000 more characters, in the record" in page
    assert len(page) < 100_000


def test_page_has_room_for_so_many_images_only(page_of):
    data = base64.b64encode(bytes(6_000_000)).decode()
    image = {"type": "image", "data": data, "mimeType": "image/png"}
    page = page_of(episode(messages=[{"role": "user", "blocks": [image] * 5}]))
    assert (page.count("<img"), page.count("no more room for")) == (3, 2)


# --- Figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "tried", "passed", "chance"),
    [(1, 4, 1, 0.25), (2, 4, 1, 0.5), (4, 4, 1, 1.0), (2, 3, 0, 0.0), (2, 4, 3, 1.0)],
)
def test_pass_at_k_is_the_chance_that_one_of_k_passes(k, tried, passed, chance):
    assert math.isclose(pass_at(k, tried=tried, passed=passed), chance)


def test_pass_at_k_takes_no_broken_episode_for_an_attempt(page_of, tmp_path):
    page_of(episode(0, 1.0), episode(0, None, status="failed: SessionLost"), episode(1, None), episode(1, 0.0))
    figures = summarise(tmp_path / "a.jsonl")
    assert figures.pass_at(1) == (0.5, 2)
    assert figures.pass_at(2) == (0.0, 1)


def test_tasks_are_counted_once_however_many_models_played_them(ors, page_of, tmp_path):
    page_of(*(episode(index, float(model == "a"), model=model) for model in "ab" for index in range(4)))
    told = json.loads(ors("report", tmp_path / "a.jsonl", "--json").stdout)
    assert told["pass_at"] == {"1": {"share": 0.5, "tasks": 4}}
    assert "episodes     8, of 4 tasks\n" in ors("report", tmp_path / "a.jsonl").stdout


def test_numbers_that_are_none_do_no_harm(page_of, tmp_path):
    page_of(episode(0, 1.0))
    line = json.loads((tmp_path / "a.jsonl").read_text())
    line |= {"reward": math.nan, "seconds": math.inf, "started": "0001-01-01T00:00:00Z"}
    line["calls"][0]["seconds"] = math.inf
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    figures = write_report(tmp_path / "a.jsonl", tmp_path / "a.html")
    assert (figures.episodes, figures.mean_reward, figures.coverage) == (2, 0.5, 0.5)  # NaN is no score


# The attempts of five tasks: some unscored, some cut with and without a score, one broken, and of unlike number.
FIXED = [
    *((0, reward, "scored") for reward in (1.0, 1.0, 0.0)),
    *((1, reward, "scored") for reward in (0.0, 0.25, 1.0)),
    *((2, None, "cut: turns"), (2, None, "unscored"), (2, 1.0, "cut: tokens")),
    *((3, 1.0, "scored"), (3, 1.0, "scored"), (3, None, "failed: SessionLost")),
    *((4, reward, "scored") for reward in (0.5, 0.75, 0.0)),
]


@pytest.mark.parametrize(
    ("unscored", "middle", "stderr", "low", "high"),
    [
        (0.0, 0.5357142857142857, 0.10227969488127274, 0.2517403275000522, 0.8196882439285191),
        (None, 0.625, 0.11410886614690961, 0.30818299712674263, 0.9418170028732573),
    ],
)
def test_mean_and_interval_equal_those_of_inspect(unscored, middle, stderr, low, high):
    # As inspect_ai 0.3.285 gives them with stderr(cluster="task"), and scipy's t with four degrees of freedom.
    figures = Figures(unscored=unscored)
    for index, reward, status in FIXED:
        figures.add(episode(index, reward, status=status))
    found = figures.reward()
    assert figures.mean_reward == found.mean
    assert (found.mean, found.stderr, *found.interval) == pytest.approx((middle, stderr, low, high), rel=1e-9)
    assert (figures.without_score, figures.broken, figures.scored) == (2, 1, 12)


@pytest.mark.parametrize(
    ("k", "every", "middle", "low", "high"),
    [
        (1, False, 0.4666666666666666, -0.00523825899409075, 0.938571592327424),
        (2, False, 0.6666666666666667, 0.15975946206945502, 1.1735738712638786),
        (2, True, 0.26666666666666666, -0.27297726156956786, 0.8063105949029012),
    ],
)
def test_pass_rates_have_intervals_over_tasks(k, every, middle, low, high):
    figures = Figures()
    for index, reward, status in FIXED:
        figures.add(episode(index, reward, status=status))
    found = figures.pass_rate(k, every=every)
    assert (found.mean, *found.interval) == pytest.approx((middle, low, high), rel=1e-9)


def test_model_that_never_passed_has_zero_percent_on_the_page_in_the_terminal_and_as_json(ors, page_of, tmp_path):
    never = [episode(index, None, model="weak", status="cut: turns") for index in range(2)]
    text = Elements(page_of(*never, *(episode(index, 1.0, model="strong") for index in range(2)))).text
    assert "weak 2 0 0 % 0 % " in text
    told = json.loads(ors("report", tmp_path / "a.jsonl", "--json").stdout)
    assert [(one["model"], one["mean_reward"], one["pass_at_1"]) for one in told["compared"]] == [
        ("weak", 0.0, 0.0),
        ("strong", 1.0, 1.0),
    ]
    assert told["mean_reward"] == told["pass_at"]["1"]["share"] == 0.5


def test_attempts_without_a_score_are_left_out_of_the_mean_where_asked_and_never_of_pass_at_k(ors, page_of, tmp_path):
    page_of(episode(0, 1.0), episode(1, None), episode(2, None, status="failed: SessionLost"))
    zero = json.loads(ors("report", tmp_path / "a.jsonl", "--json").stdout)
    left = json.loads(ors("report", tmp_path / "a.jsonl", "--json", "--unscored", "leave-out").stdout)
    assert [one["mean_reward"] for one in (zero, left)] == [0.5, 1.0]
    assert [one["pass_at"]["1"]["share"] for one in (zero, left)] == [0.5, 0.5]
    said = ors("report", tmp_path / "a.jsonl").stdout
    assert "mean reward  0.500\n" in said
    assert "1 attempt without a score, counted as 0\n" in said
    said = ors("report", tmp_path / "a.jsonl", "--unscored", "leave-out").stdout
    assert "mean reward  1.000\n" in said
    assert "1 attempt without a score, left out of the mean\n" in said


def test_one_task_has_no_interval(ors, page_of, tmp_path):
    assert "interval" not in Elements(page_of(episode(0, 1.0), episode(0, 0.0))).text
    told = json.loads(ors("report", tmp_path / "a.jsonl", "--json").stdout)
    assert (told["mean_reward"], told["mean_reward_interval"]) == (0.5, None)


def test_hardest_tasks_are_those_that_were_solved_least(page_of):
    half = [episode(0, reward) for reward in (1.0, 0.0)]
    unsolved = [episode(1, 0.9), episode(1, 0.9), episode(2, None, status="cut: turns")]
    text = Elements(page_of(*half, *unsolved, episode(3), episode(4, None, status="failed: SessionLost"))).text
    rows = re.findall(r"train/(\d) (\d) (\d) [\d.]+ line", text.split("Hardest tasks")[1].split("Slowest")[0])
    assert rows == [("2", "1", "0"), ("1", "2", "0"), ("0", "2", "1"), ("3", "1", "1")]


def test_rewards_near_the_largest_number_are_reported(ors, page_of, tmp_path):
    page_of(*(episode(index % 2, 1e308) for index in range(4)), episode(2, -1e308))
    result = ors("report", tmp_path / "a.jsonl", "--json")
    assert json.loads(result.stdout)["mean_reward"] == 6e307
    assert "mean reward  6e+307\n" in ors("report", tmp_path / "a.jsonl").stdout


# --- The command -----------------------------------------------------------------------------------------------------


def test_report_is_written_beside_the_record(ors, page_of, tmp_path):
    page_of(episode())
    (tmp_path / "a.html").unlink()
    result = ors("report", tmp_path / "a.jsonl")
    assert result.exit_code == 0
    assert "mean reward  1.000\n" in result.stdout
    assert (tmp_path / "a.html").exists()


def test_report_counts_one_as_one_and_says_what_is_ranked(ors, page_of, tmp_path):
    wrong = CallRecord(tool="echo", error="no", seconds=0.9999)
    page_of(episode(calls=[wrong], status="cut: turns"))
    said = ors("report", tmp_path / "a.jsonl").stdout
    assert "episodes     1, of 1 task\n" in said
    assert "slowest tools, by the time of all calls\n  1.0 s  echo, 1 call, 1 error, median 1.0 s\n" in said
    assert "  1  cut: turns\n     try: If episodes need more replies of the model: --max-turns N\n" in said


def test_page_and_terminal_rank_tools_alike(ors, page_of, tmp_path):
    often, long = CallRecord(tool="often", seconds=1.0), CallRecord(tool="long", seconds=5.0)
    page = page_of(episode(calls=[long, *[often] * 10]))
    said = ors("report", tmp_path / "a.jsonl").stdout
    assert re.findall(r"<td>(often|long)</td>", page) == ["often", "long"]
    assert re.findall(r"(\S+ s)  (often|long),", said) == [("10.0 s", "often"), ("5.0 s", "long")]


def test_report_as_json_is_one_object_for_programs(ors, page_of, tmp_path):
    page_of(episode())
    told = json.loads(ors("report", tmp_path / "a.jsonl", "-o", tmp_path / "b.html", "--json").stdout)
    assert (told["episodes"], told["report"]) == (1, str(tmp_path / "b.html"))


def test_report_of_no_record_is_misuse(ors, tmp_path):
    result = ors("report", tmp_path / "none.jsonl")
    assert result.exit_code == 2
    assert "No such file" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", '{"tool": "echo", "arguments": {"text": "hello"}}\n' * 9, "no\njson\n"])
def test_report_of_a_file_without_an_episode_is_misuse(ors, tmp_path, text):
    (tmp_path / "a.jsonl").write_text(text)
    result = ors("report", tmp_path / "a.jsonl")
    assert result.exit_code == 2
    assert "holds no episode" in result.stderr
    assert len(result.stderr.splitlines()) < 9
    assert not (tmp_path / "a.html").exists()


def test_report_never_takes_the_records_place(ors, page_of, tmp_path):
    page_of(episode())
    before = (tmp_path / "a.jsonl").read_bytes()
    assert ors("report", tmp_path / "a.jsonl", "-o", tmp_path / "a.jsonl").exit_code == 2
    assert (tmp_path / "a.jsonl").read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this device")
def test_report_writes_to_a_device_and_leaves_it_one(ors, page_of, tmp_path):
    page_of(episode())
    full = Path("/dev/full")
    result = ors("report", tmp_path / "a.jsonl", "-o", full)
    assert result.exit_code == 2
    assert "'/dev/full': No space left on device" in result.stderr
    assert full.is_char_device()


@pytest.mark.parametrize("redirected", [False, True])
def test_report_to_stdout_is_the_page_and_nothing_else(page_of, tmp_path, redirected):
    page_of(episode())
    command = [sys.executable, "-m", "ors_client.cli", "report", tmp_path / "a.jsonl", "-o", "/dev/stdout"]
    with (tmp_path / "out.html").open("w+") as out:
        run = subprocess.run(command, stdout=out if redirected else subprocess.PIPE, text=True, check=True, timeout=60)
        text = out.read() if redirected else run.stdout
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert Path("/dev/stdout").is_symlink()


def test_report_goes_where_a_link_leads(ors, page_of, tmp_path):
    page_of(episode())
    (tmp_path / "old.html").write_text("old")
    (tmp_path / "link.html").symlink_to(tmp_path / "old.html")
    assert ors("report", tmp_path / "a.jsonl", "-o", tmp_path / "link.html").exit_code == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "old.html").read_text().startswith("<!doctype html>")
