"""All I/O: URLs, credentials, connections, limits on waiting, and the transport that sends requests."""
