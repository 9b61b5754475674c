"""The only place that knows TRL's private names: concurrency, prefetching, rewards."""
