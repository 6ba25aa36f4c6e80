"""The cloud: runs jobs and aggregates shuffled batches, never knowing the sender of a segment."""
