"""What tests of several rooms use; a kit of one room lies beside its tests."""
