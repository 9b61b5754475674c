"""Which requests a rule hits."""

import pytest
from raw_peers import client

from fixtures.proxy import FaultProxy, Rule, Status


@pytest.fixture
def statuses(proxy):
    """Give a function that sends requests, and gives the status of each answer."""
    with client(proxy.url) as pool:
        yield lambda count=5, path="/ping", **more: [pool.post(path, **more).status_code for _ in range(count)]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, [503, 200, 200, 200, 200]),
        ({"times": 2}, [503, 503, 200, 200, 200]),
        ({"times": None}, [503, 503, 503, 503, 503]),
        ({"skip": 2}, [200, 200, 503, 200, 200]),
        ({"skip": 1, "times": 2}, [200, 503, 503, 200, 200]),
        ({"times": None, "probability": 0.0}, [200, 200, 200, 200, 200]),
    ],
)
def test_rule_hits_as_often_as_it_says(proxy, statuses, counts, expected):
    proxy.add(Rule("POST", "/ping", Status(503), **counts))
    assert statuses() == expected


@pytest.mark.parametrize(
    ("matcher", "expected"),
    [
        (("POST", "/ping", None), 503),
        (("post", None, None), 503),
        ((None, None, None), 503),
        (("GET", "/ping", None), 200),
        ((None, "/call", None), 200),
        ((None, None, lambda request: request.json()["name"] == "echo"), 503),
        ((None, None, lambda request: request.json()["name"] == "other"), 200),
    ],
)
def test_rule_hits_what_it_matches(proxy, statuses, matcher, expected):
    method, path, when = matcher
    proxy.add(Rule(method, path, Status(503), when=when))
    assert statuses(1, json={"name": "echo"}) == [expected]


def test_rules_act_in_the_order_they_were_added(proxy, statuses):
    for code in (503, 429):
        proxy.add(Rule("POST", "/ping", Status(code)))
    assert statuses(3) == [503, 429, 200]


def test_request_is_not_counted_by_the_rules_behind_the_one_that_hit_it(proxy, statuses):
    proxy.add(Rule("POST", "/ping", Status(503)))
    proxy.add(Rule("POST", "/ping", Status(429), skip=1))
    assert statuses(4) == [503, 200, 429, 200]


def test_rule_ends_with_its_block(proxy, statuses):
    with proxy.injecting(Rule("POST", "/ping", Status(503), times=None)) as injection:
        assert statuses(2) == [503, 503]
    assert statuses(1) == [200]
    assert (injection.seen, injection.acted) == (2, 2)


def test_rule_that_was_removed_acts_no_more(proxy, statuses):
    injection = proxy.add(Rule("POST", "/ping", Status(503)))
    proxy.remove(injection)
    proxy.remove(injection)
    assert statuses(1) == [200]


def test_rule_that_acted_is_on_the_record(proxy, statuses):
    rule = Rule("POST", "/ping", Status(503))
    proxy.add(rule)
    statuses(2)
    assert [made.rule for made in proxy.requests] == [rule, None]


def test_probability_is_drawn_from_the_seed(upstream):
    def draw(seed):
        with FaultProxy(upstream.url, seed=seed) as proxy, client(proxy.url) as pool:
            proxy.add(Rule("POST", "/ping", Status(503), times=None, probability=0.5))
            return [pool.post("/ping").status_code for _ in range(30)]

    first = draw(1)
    assert first == draw(1) != draw(2)
    assert set(first) == {200, 503}
