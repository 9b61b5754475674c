"""One episode behind what TRL holds."""
