"""ORS environments in TRL's trainers: a drop-in for `trl.experimental.openreward`, and datasets from records."""

from ._datasets.profile import tasks_between
from ._datasets.records import kto_dataset, preference_dataset, sft_dataset
from ._multi import MultiEnvironmentSpec
from ._rollout.environment import EnvironmentFactory, RolloutEnvironment
from ._runtime.failure_rate import FailureRateExceeded
from ._spec import OpenRewardSpec

__all__ = [
    "EnvironmentFactory",
    "FailureRateExceeded",
    "MultiEnvironmentSpec",
    "OpenRewardSpec",
    "RolloutEnvironment",
    "kto_dataset",
    "preference_dataset",
    "sft_dataset",
    "tasks_between",
]
