"""Rounds of a job alone, over worker processes: plan, devices' answers, aggregation, price."""
