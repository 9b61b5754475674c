"""ORS environments in TRL's trainers: a drop-in for `trl.experimental.openreward`."""

from ._multi import MultiEnvironmentSpec
from ._rollout.environment import EnvironmentFactory, RolloutEnvironment
from ._runtime.failure_rate import FailureRateExceeded
from ._spec import OpenRewardSpec

__all__ = ["EnvironmentFactory", "FailureRateExceeded", "MultiEnvironmentSpec", "OpenRewardSpec", "RolloutEnvironment"]
