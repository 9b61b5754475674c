"""A client for the Open Reward Standard."""
