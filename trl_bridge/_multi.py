"""`MultiEnvironmentSpec`: several specs as the slots of one trainer.

Knows how the tasks of different environments become rows of one dataset, and in which shares. Everything else, from the
tools to the rewards, stays with the specs; TRL picks a row's environment by the column of that name.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ors_client import ORSError, Task
from ors_client._shared import brief, checked

from ._datasets.tasks import build
from ._rollout.environment import EnvironmentFactory
from ._spec import OpenRewardSpec, RewardFunction, Rows, check_environment, dataset_rows, settings_of
from ._trainer.attachment import attach
from ._trainer.batch import check_batch, check_columns, check_trainer

if TYPE_CHECKING:
    from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs] - it has none


@checked
class MultiEnvironmentSpec:
    """Several environments for one run: a dataset with an `environment` column, and a factory for every name in it.

    Nothing is contacted until a property is read. It is a context manager; closing it closes its specs.

    Args:
        specs: Each environment's spec, by the name that rows, metrics and logs call it.
        weights: Each environment's share of the rows of `train_dataset`, relative to the others. The dataset then has
            as many rows as there are tasks: an environment with more rows than tasks has its tasks repeated, one with
            fewer trains on a sample of them. By default every task is one row.
        seed: For the order of the training rows, and for the samples.

    Raises:
        ValueError: There are no specs, a name is empty, weights and names do not match, or the specs do not go
            together.
        TypeError: A spec is something else.
    """

    def __init__(
        self, specs: Mapping[str, OpenRewardSpec], *, weights: Mapping[str, float] | None = None, seed: int = 0
    ) -> None:
        self._specs = _checked_specs(specs)
        self._weights = None if weights is None else _checked_weights(weights, list(self._specs))
        self._seed = seed

    @cached_property
    def train_dataset(self) -> Dataset:
        """The tasks of all environments in one order, mixed by the seed, each row with its `environment`.

        Columns are those of the specs' own datasets, `None` where an environment has none of that name. A column on
        whose type the environments disagree holds JSON text.
        """
        rows = self._ask(dict.fromkeys(self._specs))
        mixed = [
            (name, position)
            for name, positions in self._positions({name: len(each.tasks) for name, each in rows.items()}).items()
            for position in positions
        ]
        random.Random(self._seed).shuffle(mixed)  # noqa: S311 - the same order for the same seed is the point
        for name, spec in self._specs.items():
            _named(name, lambda spec=spec: check_environment(spec))
        return _dataset(rows, mixed)

    def dataset(self, split: str | Mapping[str, str]) -> Dataset:
        """Return the dataset of another split, for evaluation: every task once, one environment after the other.

        Args:
            split: The split of all environments, or one for each of those that are to be evaluated.

        Raises:
            ValueError: An environment has no such split, or there is no such environment.
        """
        splits = dict.fromkeys(self._specs, split) if isinstance(split, str) else dict(split)
        if unknown := [name for name in splits if name not in self._specs]:
            raise ValueError(f"No environment named {unknown[0]!r}; there are: {_listed(self._specs)}.")
        rows = self._ask(splits)
        return _dataset(rows, [(name, position) for name, each in rows.items() for position in range(len(each.tasks))])

    @cached_property
    def environment_factory(self) -> dict[str, EnvironmentFactory]:
        """The factory of every environment; TRL shows a rollout the tools of its own environment alone."""
        factories: dict[str, EnvironmentFactory] = {}
        for name, spec in self._specs.items():
            factory = _named(name, lambda spec=spec: spec.environment_factory)
            # TRL logs a reward that environments own under their class's name.
            factories[name] = factory.named(f"OpenRewardEnvironment_{re.sub('[^A-Za-z0-9_]', '_', name)}")
        return factories

    @property
    def reward_funcs(self) -> RewardFunction | list[RewardFunction]:
        """The reward function of all environments: every rollout's reward, as its own spec scores it.

        A list of two if any of the specs has `group_scoring`.

        Raises:
            ValueError: The environments own their reward, to which TRL would add this one.
        """
        specs = sorted(self._specs.values(), key=lambda spec: not settings_of(spec).group_scoring)
        return specs[0].reward_funcs  # both functions look at each rollout's own settings

    def check(self, args: Any) -> None:
        """Raise unless the training dataset fills at least one batch of a trainer with this configuration.

        Args:
            args: A `GRPOConfig`.

        Raises:
            ValueError: There are fewer rows than a batch has prompts.
        """
        check_columns(args)
        check_batch(len(self.train_dataset), args)

    def attach(self, trainer: Any) -> None:
        """Let a trainer's rollouts wait for their environments together, whichever these are; see `OpenRewardSpec`.

        Args:
            trainer: A `GRPOTrainer`, or one derived from it.

        Raises:
            ValueError: The trainer's dataset has fewer rows than a batch has prompts.
        """
        settings = [settings_of(spec) for spec in self._specs.values()]
        check_trainer(trainer, images=any(each.images for each in settings))
        for name, spec in self._specs.items():
            _named(name, lambda spec=spec: check_environment(spec))
        attach(
            trainer,
            look_ahead=any(each.look_ahead is not None for each in settings),
            stop_at_finish=any(each.stop_at_finish for each in settings),
        )

    def close(self) -> None:
        """Close all specs; may be called again."""
        for spec in self._specs.values():
            spec.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # As with a single spec, the dataset goes its own way.
        return {name: value for name, value in self.__dict__.items() if name != "train_dataset"}

    def __repr__(self) -> str:
        weights = "" if self._weights is None else f", weights={brief(self._weights)}"
        return f"MultiEnvironmentSpec({brief(self._specs)}{weights}, seed={self._seed!r})"

    def _ask(self, splits: Mapping[str, str | None]) -> dict[str, Rows]:
        return {
            name: _named(name, lambda name=name, split=split: dataset_rows(self._specs[name], split))
            for name, split in splits.items()
        }

    def _positions(self, tasks: Mapping[str, int]) -> dict[str, list[int]]:
        """Choose each environment's tasks, given how many there are of each."""
        if self._weights is None:
            return {name: list(range(count)) for name, count in tasks.items()}
        chosen: dict[str, list[int]] = {}
        for name, rows in _shares(self._weights, sum(tasks.values())).items():
            rounds, rest = divmod(rows, tasks[name])
            # A sample of its own for every name, so that one environment does not change another's.
            sample = random.Random(f"{self._seed} {name}").sample(range(tasks[name]), rest)  # noqa: S311 - see above
            chosen[name] = [*list(range(tasks[name])) * rounds, *sorted(sample)]
        return chosen


def _dataset(rows: Mapping[str, Rows], positions: Sequence[tuple[str, int]]) -> Dataset:
    """Make the dataset of the tasks at these places, each the name of an environment and a position in its rows."""

    def task(name: str, position: int) -> Task:
        found = rows[name].tasks[position]
        return found if rows[name].include_metadata else found.model_copy(update={"spec": {}})

    def prompt(name: str, position: int) -> Any:
        prompts = rows[name].prompts
        return "" if prompts is None else prompts[position]

    return build(
        [task(*position) for position in positions],
        split=None,
        include_metadata=any(each.include_metadata for each in rows.values()),
        environment=[name for name, _ in positions],
        prompts=[prompt(*position) for position in positions],
    )


def _shares(weights: Mapping[str, float], total: int) -> dict[str, int]:
    """Divide `total` rows in proportion to the weights; nobody gets none."""
    largest = max(weights.values())  # by which all are divided, as a sum of several 1e308 is no number
    whole = math.fsum(weight / largest for weight in weights.values())
    exact = {name: total * (weight / largest) / whole for name, weight in weights.items()}
    shares = {name: max(1, math.floor(share)) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: math.floor(exact[name]) - exact[name]):
        if sum(shares.values()) >= total:
            break
        shares[name] += 1
    return shares


def _named(name: str, ask: Callable[[], Any]) -> Any:
    """Ask a spec; say in what goes wrong whose it was."""
    try:
        return ask()
    except (ORSError, ValueError) as error:
        error.add_note(f"This is about the environment {name!r} of a MultiEnvironmentSpec.")
        raise


def _checked_specs(specs: Mapping[str, OpenRewardSpec]) -> dict[str, OpenRewardSpec]:
    if not specs:
        raise ValueError("A MultiEnvironmentSpec needs at least one spec, by name.")
    for name, spec in specs.items():
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise ValueError(f"An environment's name is a string that is not empty, not {name!r}.")
        if not isinstance(spec, OpenRewardSpec):  # pyright: ignore[reportUnnecessaryIsInstance] - see above
            raise TypeError(f"The environment {name!r} is an OpenRewardSpec, not {spec!r}.")
    names = {id(spec): name for name, spec in specs.items()}
    spelt: dict[str, str] = {}
    for name, spec in specs.items():
        if names[id(spec)] != name:
            raise ValueError(
                f"The environments {name!r} and {names[id(spec)]!r} are the same spec, whose rollouts could not be "
                "told apart; make a spec for each."
            )
        plain = re.sub("[^A-Za-z0-9]", "_", name).lower()
        if plain in spelt:
            raise ValueError(f"The names {spelt[plain]!r} and {name!r} look the same in metrics; rename one of them.")
        spelt[plain] = name
    owning = {name for name, spec in specs.items() if settings_of(spec).owns_reward}
    if owning and len(owning) < len(specs):
        others = [name for name in specs if name not in owning]
        raise ValueError(
            f"owns_reward=True holds for {_listed(sorted(owning))} and not for {_listed(others)}; it is one choice for "
            "the whole run, as the trainer takes reward functions or none."
        )
    return dict(specs)


def _checked_weights(weights: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    if unknown := [name for name in weights if name not in names]:
        raise ValueError(f"weights names {unknown[0]!r}, which is no environment here; there are: {_listed(names)}.")
    if missing := [name for name in names if name not in weights]:
        raise ValueError(f"weights leaves out {missing[0]!r}; give every environment a share.")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:  # pyright: ignore[reportUnnecessaryIsInstance] - see above
            raise ValueError(f"The weight of {name!r} is a positive number, not {weight!r}.")
    return {name: float(weights[name]) for name in names}


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(map(repr, names))
