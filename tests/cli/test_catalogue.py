"""The commands before the platform's double: secrets and their hosts, the key, and advice that fits the catalogue."""

import json

import httpx
import pytest
from models import model_server
from platforms import KEY, NAME, platform, variables

from ors_client.record import read

CATALOGUE = "https://openreward.ai"
SECRET = "a-secret@of-mine"  # with what a shorter spelling would take for the mark before hosts


@pytest.fixture(scope="module")
def double():
    """A deployment with several environments."""
    with platform() as server:
        yield server


@pytest.fixture
def ask(ors, double):
    """Run a command about the catalogue, which is the double."""

    def run(command, *options, key=KEY, **settings):
        environment = {**variables(double, key=key), "COLUMNS": "80"}
        return ors(command, CATALOGUE, *options, env=environment, **settings)

    return run


def openings(double):
    return httpx.get(f"{double.urls[1]}/_platform", trust_env=False).json()["openings"]


RUN = ("--model", "right", "--base-url", "http://127.0.0.1:9/v1", "-n", 1)
IN_SESSIONS = {"check": (), "tools": ("--task", 0), "prompt": (), "play": ("--script", "-"), "run": RUN}


@pytest.mark.parametrize("command", IN_SESSIONS)
def test_secret_for_the_catalogue_without_hosts_is_misuse_that_says_how(ask, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = ask(command, "--env", NAME, "--secret", f"K={SECRET}", *IN_SESSIONS[command])
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "which hosts the secret 'K' may be sent to: --secret-hosts K=api.example.com" in said
    assert SECRET not in result.output


@pytest.mark.parametrize("command", ["check", "tools", "prompt", "play"])
def test_secret_with_hosts_reaches_the_catalogue(ask, double, command):
    secrets = ("--secret", f"K={SECRET}", "--secret-hosts", "K=a.example.com, b.example.com", "--secret", "L=v")
    variant = ("--variant", "alpha")
    ask(command, "--env", NAME, *variant, *secrets, "--secret-hosts", "L=", *IN_SESSIONS[command], input="")
    assert openings(double)[-1]["secrets"] == {"K": ["a.example.com", "b.example.com"], "L": []}


def test_run_hands_secrets_with_hosts_on_and_hides_them(ask, double, tmp_path):
    record = tmp_path / "a.jsonl"
    secrets = ("--secret", f"K={SECRET}", "--secret-hosts", "K=a.example.com")
    with model_server() as model:
        options = ("--model", "right", "--base-url", model.url, "-n", 1, "--record", record)
        ask("run", "--env", NAME, "--variant", "alpha", *secrets, *options)
    assert openings(double)[-1]["secrets"] == {"K": ["a.example.com"]}
    assert len(list(read(record))) == 1
    assert SECRET not in record.read_text()


def test_well_known_secret_needs_no_hosts(ask):
    result = ask("prompt", "--env", NAME, "--variant", "alpha", "--secret", "OPENAI_API_KEY=v", "--json")
    assert result.exit_code == 0


def test_hosts_of_no_secret_are_misuse(ask):
    result = ask("prompt", "--env", NAME, "--secret", "K=v", "--secret-hosts", "k=a.example.com")
    assert result.exit_code == 2
    assert "a secret 'k' that is not" in " ".join(result.stderr.split())


def test_hosts_do_no_harm_at_another_server(ors, ours):
    secrets = ("--secret", "K=v", "--secret-hosts", "K=a.example.com")
    result = ors("prompt", ours.url, "--env", "alpha", *secrets, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)


# --- Environments, keys and advice -----------------------------------------------------------------------------------


def test_environments_of_a_deployment_are_listed(ask):
    result = ask("envs", "--env", NAME, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)[:2] == ["alpha", "beta"]


@pytest.mark.parametrize(
    ("options", "key", "advice"),
    [
        ((), KEY, "The catalogue's hosts need a deployment: --env owner/name"),
        (
            ("--env", "owner/nam"),
            KEY,
            "Is 'owner/nam' spelt as in the catalogue, owner and name, and may the key's account use it?",
        ),
        (("--env", NAME), "", "The catalogue wants a key: set OPENREWARD_API_KEY, or pass --api-key KEY"),
        (
            ("--env", NAME),
            "wrong",
            "The key in OPENREWARD_API_KEY was refused: is it complete and valid? Or pass another: --api-key KEY",
        ),
        (
            ("--env", NAME, "--api-key", "wrong"),
            KEY,
            "The key that was given was refused: is it complete, not expired, and for this server?",
        ),
    ],
)
def test_advice_about_the_catalogue_leads_somewhere(ask, options, key, advice):
    result = ask("envs", *options, "--json", key=key)
    assert (result.exit_code, json.loads(result.stdout)["error"]["try"]) == (1, [advice])


@pytest.mark.parametrize(("variant", "advice"), [("alpa", "--variant alpha"), ("nope", "as in --variant alpha")])
def test_wrong_variant_is_advised_a_variant(ask, variant, advice):
    result = ask("splits", "--env", NAME, "--variant", variant)
    assert result.exit_code == 1
    assert advice in result.stderr
    assert "--env" not in result.stderr


# --- owner/name as the server's address ------------------------------------------------------------------------------


def test_deployment_as_the_address_is_of_the_catalogue(ors, double):
    environment = {**variables(double, key=KEY), "COLUMNS": "80"}
    result = ors("envs", NAME, "--json", env=environment)
    assert (result.exit_code, json.loads(result.stdout)[:2]) == (0, ["alpha", "beta"])
    result = ors("check", NAME, "--variant", "alpha", "--json", env=environment)
    assert (result.exit_code, json.loads(result.stdout)["problems"]) == (0, [])


@pytest.mark.parametrize("address", ["localhost/math", "envs.example.com/math", "localhost:8000"])
def test_host_without_a_scheme_is_no_deployment(ors, address):
    result = ors("envs", address)
    assert (result.exit_code, f"did you mean 'http://{address}'?" in result.stderr) == (2, True)
