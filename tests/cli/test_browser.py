"""The page in a real browser: it fits a phone, filters, follows links, and runs nothing that is not its own."""

import html
import json
import re
import shutil
import subprocess

import pytest

from ors_client.record import CallRecord, EpisodeRecord, RecordWriter
from ors_client.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")]

# Shows the page in a frame of that width, asks it something, and writes the answer down.
_FRAME = """<!doctype html><body style="margin:0">
<iframe src="a.html{fragment}" style="width:{width}px;height:3000px;border:0"></iframe>
<pre id="answer"></pre><script>
document.querySelector("iframe").addEventListener("load", (event) => {{
  const page = event.target.contentDocument;
  document.querySelector("#answer").textContent = JSON.stringify(({question})(page));
}});
</script>"""


@pytest.fixture
def ask(tmp_path):
    """Write a page about episodes, show it, and return what a function of JavaScript says about the document."""

    def ask(question, *episodes, width=1200, fragment=""):
        writer = RecordWriter(tmp_path / "a.jsonl")
        for one in episodes:
            writer.append(one)
        write_report(tmp_path / "a.jsonl", tmp_path / "a.html")
        (tmp_path / "frame.html").write_text(_FRAME.format(fragment=fragment, width=width, question=question))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
        options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
        address = (tmp_path / "frame.html").as_uri()
        shown = subprocess.run(
            [CHROMIUM, *options, address], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        return json.loads(html.unescape(re.findall(r'<pre id="answer">(.*?)</pre>', shown, re.DOTALL)[0]))

    return ask


def episodes():
    kinds = ("scored", "cut: turns", "failed: SessionLost")
    calls = [CallRecord(tool="submit_answer", output="a needle" if n == 4 else "hay", seconds=n) for n in range(5)]
    return [
        EpisodeRecord(
            environment="owner/environment",
            split="train",
            index=index,
            model=model,
            attempt=0,
            status=kinds[index % 3],
            reward=0.12345 if index % 3 == 0 else None,
            failure="The session is gone." if index % 3 == 2 else None,
            calls=[calls[index % 5]],
            said="<tool_call>{}</tool_call>" if index == 1 else None,
            finish_reasons=["tool_calls", "content_filter: PROHIBITED_CONTENT"],
            seconds=1.0,
        )
        for model in ("a-model-with-quite-a-long-name", "gpt")
        for index in range(9)
    ]


def test_no_column_is_cut_off_on_a_phone(ask):
    question = """(page) => [...page.querySelectorAll(".wide, main, body")].map(
        (part) => [part.querySelector("th")?.textContent ?? part.tagName, part.scrollWidth - part.clientWidth])"""
    assert {over for _, over in ask(question, *episodes(), width=400)} == {0}


def test_filters_leave_the_episodes_that_were_asked_for(ask):
    question = """(page) => {
        const filters = page.querySelector(".filters");
        const shown = () => [...page.querySelectorAll("details")].filter((one) => !one.hidden).length;
        const counts = [filters.hidden, shown()];
        const set = (name, value) => {
            const field = filters.querySelector(name);
            field.value = value;
            field.dispatchEvent(new Event("input", { bubbles: true }));
            counts.push(shown());
        };
        set("[name=model]", "=gpt");
        set("[name=status]", "=cut: turns");
        set("[name=task]", "=train/4");
        set("[name=task]", "");
        set("[name=status]", "");
        set("input", "A NEEDLE");
        return [...counts, filters.querySelector("output").textContent];
    }"""
    assert ask(question, *episodes()) == [False, 18, 9, 3, 1, 3, 9, 1, "1 of 18 shown"]


def test_link_opens_the_transcript_that_it_names(ask):
    question = """(page) => [...page.querySelectorAll("details")].filter((one) => one.open)
        .map((one) => one.querySelector(".body").id)"""
    assert ask(question, *episodes(), fragment="#line-5") == ["line-5"]


def test_policy_keeps_the_browser_from_running_and_fetching_anything_else(ask):
    question = """(page) => {
        const script = page.createElement("script");
        script.textContent = "document.title = 'it ran'";
        page.body.append(script);
        page.body.insertAdjacentHTML("beforeend", "<b onclick=\\"document.title = 'it ran'\\">x</b>");
        page.body.lastChild.click();
        return page.title;
    }"""
    assert ask(question, *episodes()) == "a.jsonl"
