"""Model evaluation: accuracy on test data, clustering of uploaded inferences."""
