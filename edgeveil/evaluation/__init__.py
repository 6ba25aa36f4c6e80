"""How good a model is: accuracy on test data, clustering of the uploaded inferences."""
