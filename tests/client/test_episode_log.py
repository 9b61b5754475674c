"""The log of an episode: what counts for its status, and that nothing is entered once it is over."""

from types import SimpleNamespace

import pytest

from ors_client import CallTimes, ImageBlock, Message, TextBlock, ToolOutput
from ors_client._shared import BlockRecorder, CallEntry, EpisodeLog, Failure

TIMES = CallTimes(queued=0.5, setup=0.0, connecting=0.25, server=1.0)
PICTURE = ImageBlock(data="aGk=", mimeType="image/png")


def make_log(*rewards):
    log = EpisodeLog(split="train", index=3, block_recorder=BlockRecorder())
    for reward in rewards:
        enter(log, ToolOutput(blocks=[TextBlock(text="text")], reward=reward))
    return log


def enter(log, output, *, times=TIMES, waiting_since=None):
    session = SimpleNamespace(last_call=None)
    entry = CallEntry(log, session, "look", {"far": True}, waiting_since=waiting_since)
    session.last_call = times
    entry.add_output(output)


@pytest.mark.parametrize(
    ("rewards", "end", "status"),
    [
        ([], {}, "unscored"),
        ([None, None], {}, "unscored"),
        ([0.0, None], {}, "scored"),
        ([1.0], {"cut": "calls"}, "cut: calls"),
        ([1.0], {"failure": Failure("SessionLost", "gone")}, "failed: SessionLost"),
        ([1.0], {"failure": Failure("SessionLost", "gone"), "cut": "calls"}, "failed: SessionLost"),
    ],
)
def test_status_tells_what_broke_or_cut_an_episode_and_whether_it_was_scored(rewards, end, status):
    log = make_log(*rewards)
    assert log.end(1.0, **end)
    assert log.status == status
    episode = log.to_record(reward=None)
    assert (episode.status, episode.rewards, episode.index) == (status, rewards, 3)


def test_log_ends_once_and_takes_nothing_afterwards():
    log = make_log(1.0)
    entry = CallEntry(log, SimpleNamespace(last_call=None), "look", {})
    assert log.end(2.0, cut="seconds")
    assert not log.end(3.0, failure=Failure("SessionLost", "gone"))
    entry.add_output(ToolOutput(blocks=[], reward=0.0, finished=True))
    entry.add_error("too late")
    log.open([Message(role="user", blocks=[TextBlock(text="Hello.")])])
    log.show("too late")
    assert (log.seconds, log.status, log.rewards, log.finished) == (2.0, "cut: seconds", [1.0], False)
    assert (log.prompt, log.last_output, log.shown_chars) == ("", "", 0)


def test_call_takes_what_was_said_before_it_and_the_next_one_does_not():
    log = make_log()
    log.said = "I look."
    enter(log, ToolOutput(blocks=[]))
    enter(log, ToolOutput(blocks=[]))
    assert [call.said for call in log.calls] == ["I look.", None]


def test_call_that_was_not_sent_has_no_times_of_the_call_before_it():
    log = make_log()
    enter(log, ToolOutput(blocks=[]), times=None)
    enter(log, ToolOutput(blocks=[]))
    assert log.calls[0].timing is None
    assert log.calls[1].timing == {"queued": 0.5, "setup": 0.0, "connecting": 0.25, "server": 1.0}


def test_wait_before_a_call_counts_as_queued_whether_it_was_sent_or_not():
    log = make_log()
    enter(log, ToolOutput(blocks=[]), waiting_since=0.0)
    enter(log, ToolOutput(blocks=[]), times=None, waiting_since=0.0)
    sent, unsent = (call.timing for call in log.calls)
    assert sent["queued"] > 0.5
    assert set(unsent) == {"queued"}


def test_dropped_blocks_stay_in_the_record_that_was_made_before():
    log = make_log()
    log.open([Message(role="user", blocks=[PICTURE])])
    enter(log, ToolOutput(blocks=[PICTURE]))
    episode = log.to_record(reward=None)
    log.drop_blocks()
    assert (log.messages, log.calls[0].blocks) == (None, None)
    assert episode.calls[0].blocks == [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]
    assert episode.messages
