"""Test helpers shared by several rooms; helpers of one room are beside its tests."""
