"""`--track`: jobs in MLflow or TensorBoard (whose files Weights & Biases reads); docs/adr/0039."""

import os

# MLflow reports its use to its makers by default; the user's own setting takes precedence.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
