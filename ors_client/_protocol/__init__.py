"""What the standard says and what a failure means: judgement without I/O and without a clock."""
