"""Runs the conformance tests against an older release of a server: a plugin of pytest.

    python -m pytest -p tests.matrix.conformance --server-release openreward-0.1.105 tests/conformance

The release takes the place of the one that is installed beside the tests, in every test that uses that kind of server;
the other tests are deselected, since a release changes nothing for them. A test of something that the release does not
have is skipped, and the table below says since when it is there.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "tests", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from servers import PYTHONS  # noqa: E402 - found through the path above

from .subjects import SUBJECTS, Subject  # noqa: E402

RELEASES = {subject.name: subject for subject in SUBJECTS if subject.requirement is not None}


@dataclass(frozen=True)
class Gap:
    """What older releases do not have, and the tests that need it.

    Attributes:
        since: N of the first release 0.1.N of openreward that has it, as far as releases were tried.
        reason: What is not there.
        tests: Names of test functions, or of one case of theirs as pytest writes it: `test_x[a-b]`.
    """

    since: int
    reason: str
    tests: tuple[str, ...]


GAPS = (
    Gap(
        70,
        "no /task_tools: the environment's tools stand for a session's, and an empty call tells a failed setup",
        (
            "test_no_request_is_redirected",
            "test_failed_setup_is_told_once_and_the_session_deleted",
            "test_first_call_tells_that_the_setup_failed",
            "test_first_episode_learns_what_later_ones_know",
            "test_two_names_of_one_server_cost_no_more_than_one_but_for_giving_the_id_back",
            "test_session_lists_the_tools_of_its_task",
            "test_session_asks_for_its_tools_once",
            "test_tools_of_a_lost_session_are_an_error_and_not_the_environments",
        ),
    ),
    Gap(
        141,
        "no teardown of an environment whose setup failed, or was under way when it was deleted",
        (
            "test_failed_setup_is_told_once_and_the_session_deleted",
            "test_first_call_tells_that_the_setup_failed",
            "test_entering_does_not_wait_for_the_setup",
            "test_environment_that_shouts_its_secret_is_not_quoted[openreward-setup]",
        ),
    ),
    Gap(
        70,
        "no /task_range",
        (
            "test_tasks_without_a_list_are_had_by_range",
            "test_range_costs_one_request_and_the_list_of_environments",
        ),
    ),
    Gap(
        70,
        "secrets are read from the body",
        (
            "test_header_is_the_only_place_on_a_server_that_reads_it",
            "test_server_that_hides_its_version_and_refuses_the_body_is_asked_again_without_it",
        ),
    ),
    Gap(
        141,
        "no toolsets before 0.1.105, and then an unknown one is told of by the setup alone",
        ("test_toolset_is_named_to_the_server",),
    ),
    Gap(
        132,
        "no reason of a refusal",
        ("test_refused_call_says_why_and_the_session_goes_on",),
    ),
    Gap(
        141,
        "no terminal tool",
        ("test_terminal_tool_is_told_apart_and_takes_the_message",),
    ),
    Gap(
        156,
        "a slow constructor holds up the server, a deletion too",
        ("test_opening_whose_answer_was_not_waited_for_is_deleted_when_the_client_closes",),
    ),
    Gap(
        157,
        "no messages, no scoring of groups",
        (
            "test_conversation_arrives_with_every_kind_of_block",
            "test_conversation_is_ended_and_scored",
            "test_conversation_of_a_task_can_be_sent_back_as_a_candidate",
            "test_description_of_a_newer_server_is_complete",
            "test_environment_without_group_scoring_refuses",
            "test_judge_that_raised_is_a_failure_in_its_own_words",
            "test_scores_are_those_of_the_candidates_in_order",
            "test_server_is_described",
        ),
    ),
    Gap(
        162,
        "calls run after the end",
        ("test_end_that_only_the_server_knows_of_is_the_same_rejection",),
    ),
    Gap(
        167,
        "another version",
        ("test_version_is_told_where_there_is_one",),
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the command line name a release."""
    parser.addoption("--server-release", choices=sorted(RELEASES), help="the release of a server to test against")


def pytest_configure(config: pytest.Config) -> None:
    """Have the release started wherever a test starts a server of its kind."""
    subject = _chosen(config)
    if subject is not None:
        subject.install()
        os.environ[PYTHONS] = json.dumps({subject.kind: subject.python})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that use the release, and skip those of what it does not have."""
    subject = _chosen(config)
    if subject is None:
        return
    kept = [item for item in items if _uses(item, subject.kind)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    for item in kept:
        gap = gap_of(item.name, subject.level)
        if gap is not None:
            item.add_marker(pytest.mark.skip(reason=f"{subject.title}: {gap.reason} (since 0.1.{gap.since})"))


def gap_of(test: str, level: int) -> Gap | None:
    """Return why a release does not have what a test is about."""
    names = {test, test.partition("[")[0]}
    return next((gap for gap in GAPS if level < gap.since and names & {*gap.tests}), None)


def _uses(item: pytest.Item, kind: str) -> bool:
    values = getattr(item, "callspec", None)
    named = {str(value).replace("_", "-") for value in values.params.values()} if values is not None else set[str]()
    return kind in named or kind.replace("-", "_") in getattr(item, "fixturenames", ())


def _chosen(config: pytest.Config) -> Subject | None:
    name = config.getoption("--server-release")
    return None if name is None else RELEASES[name]
