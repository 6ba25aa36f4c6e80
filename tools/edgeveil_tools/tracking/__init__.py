"""`--track`: jobs in MLflow or TensorBoard (whose files Weights & Biases reads); docs/adr/0039."""
