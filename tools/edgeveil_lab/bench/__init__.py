"""Throughput of frequent operations."""
