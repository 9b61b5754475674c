"""Tasks as datasets."""
