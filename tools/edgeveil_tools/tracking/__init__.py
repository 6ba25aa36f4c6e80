"""A job's course and outcome in MLflow, TensorBoard or Weights & Biases; see docs/adr/0039."""
