"""A session on its server, from its id to its deletion."""
