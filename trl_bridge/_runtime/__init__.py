"""What one process shares: a loop, clients, servers, the failure rate, the record."""
