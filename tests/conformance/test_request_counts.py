"""Ours needs few requests, and fewer than the openreward SDK needs for the same work on the same server."""

import pytest
from benchmarks.request_counts import SERVER, measure, redirects, table
from servers import serve


@pytest.fixture(scope="module")
def rows():
    with serve(*SERVER) as server:
        rows = measure(server)
    print(table(rows))  # noqa: T201 - what the README quotes
    return rows


def test_tasks_of_a_dataset_cost_at_most_four_requests(rows):
    for row in rows[:2]:
        assert len(row.ours) <= 4
        assert len(row.sdk) > len(row.ours)
        assert redirects(row.ours) == 0


def test_episode_costs_at_most_eight_requests(rows):
    *_, episode = rows
    assert len(episode.ours) <= 8
    assert len(episode.sdk) > len(episode.ours)
    assert redirects(episode.ours) == 0


def test_table_has_a_line_for_each_piece_of_work(rows):
    lines = table(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    assert all(f"| {len(row.ours)} | {len(row.sdk)}" in line for row, line in zip(rows, lines[2:], strict=True))
