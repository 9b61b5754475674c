"""All features, in the order of the tables."""

from . import episodes, looking

FEATURES = (*looking.FEATURES, *episodes.FEATURES)
