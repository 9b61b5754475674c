"""ORS environments in TRL's trainers: a drop-in for `trl.experimental.openreward`."""

from ._environment import EnvironmentFactory, RolloutEnvironment
from ._failures import FailureRateExceeded
from ._multi import MultiEnvironmentSpec
from ._spec import OpenRewardSpec

__all__ = ["EnvironmentFactory", "FailureRateExceeded", "MultiEnvironmentSpec", "OpenRewardSpec", "RolloutEnvironment"]
