"""A site's brokers, keys, rules and files."""
