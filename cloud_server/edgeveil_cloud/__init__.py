"""The cloud: runs jobs, aggregates what the proxy hands over, never sees who sent what."""
