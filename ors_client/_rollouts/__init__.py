"""Uploads rollouts to the catalogue."""
