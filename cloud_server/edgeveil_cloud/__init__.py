"""The cloud: runs jobs, opens and aggregates what the proxy hands over, never sees who sent what."""
