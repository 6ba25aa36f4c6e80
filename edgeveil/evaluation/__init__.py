"""How good a model is: accuracy on test data, clustering of the uploaded inferences."""

from edgeveil.evaluation.clustering import EVALUATIONS, ClusterScores, Noise, cluster_scores
from edgeveil.evaluation.projection import project_2d

__all__ = ["EVALUATIONS", "ClusterScores", "Noise", "cluster_scores", "project_2d"]
