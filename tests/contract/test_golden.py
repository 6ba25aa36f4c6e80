"""Every name that a job may use has a test against a case computed by hand, or from its text."""

import re
from pathlib import Path

import pytest

from edgeveil.evaluation.cluster_metrics import LABELLERS
from edgeveil.evaluation.clustering import EVALUATIONS, SILHOUETTES
from edgeveil.jobs.presets import PRESETS
from edgeveil.parts.aggregation import AGGREGATIONS
from edgeveil.parts.features import FEATURES
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import MODELS
from edgeveil.parts.partitions import PARTITIONS
from edgeveil.parts.sources import SOURCES
from edgeveil.parts.stages import STAGES
from edgeveil.privacy.mechanism_table import MECHANISMS

UNIT = Path(__file__).parents[1] / "unit" / "edgeveil"
SIZES = "parts/models/test_models_networks.py::test_its_weights_are_as_many_as_the_text_says"
PRESET = "jobs/test_config_presets.py::test_the_others_have_the_parameters_of_theirs"
DELM = "jobs/test_config_presets.py::test_delm_has_the_parameters_of_the_text"
CIFAR = "parts/sources/test_data_published.py::test_cifar_is_read_by_colour_row_and_column"
ROBUST = "parts/aggregation/test_aggregation_rules.py::"
UPDATES = "parts/methods/test_updates_"
CLUSTERING = "evaluation/test_clustering.py::"

GOLDEN = {
    "method": (
        METHODS,
        {
            "fm": "parts/methods/test_fm_rounds.py::test_one_record_by_hand",
            "fm_paper": "parts/methods/test_fm_paper.py::test_golden_values_of_one_answer",
            "sgd": f"{UPDATES}sgd.py::test_one_step_from_zero_is_the_gradient_by_hand",
            "fedprox": f"{UPDATES}sgd.py::test_fedprox_pulls_the_second_step_back_by_mu",
            "dp_sgd": f"{UPDATES}dp_sgd.py::test_a_clipped_gradient_by_hand",
            "output_perturbation": f"{UPDATES}dp_sgd.py::"
            "test_output_perturbation_noises_the_trained_weights_and_claims_the_budget",
            "pso_dp_sgd": f"{UPDATES}views.py::test_losses_are_cut_and_centred_as_by_hand",
            "pate": "parts/methods/test_pate.py::test_three_teachers_by_hand",
            "pso_dp_fl": f"{UPDATES}pso.py::test_two_particles_on_a_quadratic_move_as_by_hand",
            "gep": f"{UPDATES}views.py::test_embedding_and_rest_are_clipped_apart_as_by_hand",
            "rgp": f"{UPDATES}views.py::test_carriers_see_a_gradient_as_by_hand",
            "pca_residual": "parts/methods/test_pca_residual.py::test_one_record_by_hand",
            "noise_only": "parts/methods/test_noise_only.py::"
            "test_each_four_random_bytes_make_one_value",
        },
    ),
    "update stage": (
        STAGES,
        {
            "cast": "parts/stages/test_stage_cast.py::"
            "test_an_upload_has_half_the_bytes_and_the_rounded_values",
            "download_random": "parts/stages/test_stage_cases.py::"
            "test_a_share_is_the_global_weights_and_the_rest_the_device_s_own",
            "gradient_gaussian": "parts/stages/test_stages_noise.py::"
            "test_an_update_is_clipped_as_a_whole_and_never_past_the_norm",
            "ldp_fl": "parts/stages/test_stages_noise.py::"
            "test_every_weight_is_one_of_two_values_whose_mean_is_right",
            "upload_top_k": "parts/stages/test_stage_cases.py::"
            "test_top_k_keeps_the_largest_magnitudes_over_all_weights_together",
            "stc": "parts/stages/test_stage_cases.py::"
            "test_stc_sends_signs_times_the_mean_magnitude_and_keeps_the_rest",
        },
    ),
    "aggregation": (
        AGGREGATIONS,
        {
            "fedavg": "parts/aggregation/test_aggregation_rules.py::"
            "test_takes_the_plain_mean_per_segment",
            "min_divergence": "parts/aggregation/test_aggregation_min_divergence.py::"
            "test_the_draw_follows_equation_16",
            "secprobe": "parts/aggregation/test_aggregation_secprobe.py::"
            "test_a_draw_is_the_exponential_mechanism_on_the_accuracy",
            "median": f"{ROBUST}test_the_median_of_an_odd_and_an_even_number",
            "trimmed_mean": f"{ROBUST}test_the_trimmed_mean_leaves_its_share_out_at_either_end",
            "krum": f"{ROBUST}test_krum_is_the_nearest_upload_and_multi_krum_the_mean_of_k",
        },
    ),
    "model": (
        MODELS,
        {
            **dict.fromkeys(("mlp", "mlp_300_100", "cnn", "lenet", "alexnet", "resnet20"), SIZES),
            "autoencoder": "parts/models/test_models_autoencoder.py::test_one_record_by_hand",
            "low_rank_head": "parts/models/test_models_adapters.py::"
            "test_a_low_rank_change_of_features_by_hand",
            "python": "parts/models/test_models_python.py::"
            "test_its_first_weights_are_the_modules_and_the_same_everywhere",
        },
    ),
    "features": (
        FEATURES,
        {
            "identity": "parts/features/test_feature_maps.py::"
            "test_scales_shifts_and_brings_to_unit_norm",
            "random": "parts/features/test_feature_maps.py::"
            "test_features_are_the_rectified_products_at_unit_norm",
            "gabor": "parts/features/test_features_gabor.py::test_golden_features_of_two_strokes",
            "pictures": "parts/features/test_features_pictures.py::"
            "test_golden_features_of_two_strokes",
            "patches": "parts/features/test_features_patches.py::"
            "test_golden_features_of_two_strokes",
            "onnx": "parts/features/test_features_onnx.py::"
            "test_features_are_the_models_output_at_unit_norm",
            **dict.fromkeys(
                ("ldp_fpca", "ldp_pca"), "parts/methods/test_pca.py::test_one_record_by_hand"
            ),
            "local_pca": "parts/methods/test_pca.py::test_own_weights_are_for_local_pca_alone",
        },
    ),
    "mechanism": (
        MECHANISMS,
        {
            "gaussian": "privacy/test_privacy_sampler.py::"
            "test_the_discrete_gaussian_has_its_exact_probabilities",
            "laplace": "privacy/test_privacy_sampler.py::"
            "test_the_discrete_laplace_has_its_exact_probabilities",
            "softmax": "privacy/test_privacy_mechanisms.py::"
            "test_two_one_hot_vectors_reach_the_sensitivity",
            "two_value": "privacy/test_privacy_mechanisms.py::test_the_mean_is_the_value",
            **dict.fromkeys(
                ("exponential", "report_noisy_max"),
                "privacy/test_privacy_selection_mechanism.py::test_a_selection_has_its_exact_probabilities",
            ),
        },
    ),
    "partition": (
        PARTITIONS,
        {
            "iid": "parts/partitions/test_partition.py::test_iid_cuts_the_public_order_evenly",
            "n_class": "parts/partitions/test_partition.py::"
            "test_n_class_deals_whole_classes_where_they_fit",
            **dict.fromkeys(
                ("dirichlet", "quantity_skew"),
                "parts/partitions/test_partition.py::"
                "test_dirichlet_and_quantity_skew_cut_where_hand_counted_proportions_say",
            ),
        },
    ),
    "source": (
        SOURCES,
        {
            "digits": "parts/sources/test_sources.py::"
            "test_digits_are_the_real_ones_and_the_split_is_stratified",
            "mnist": "parts/sources/test_data_mnist.py::"
            "test_training_half_is_dealt_and_test_half_is_the_clouds",
            "emnist": "parts/sources/test_data_published.py::"
            "test_emnist_is_turned_upright_and_keeps_its_labels",
            "cifar10": CIFAR,
            "cifar100": CIFAR,
            "npz": "parts/sources/test_sources.py::test_npz_roundtrip",
            "csv": "parts/sources/test_sources.py::test_csv_under_a_header",
            "parquet": "parts/sources/test_data_parquet.py::"
            "test_numbers_of_every_kind_and_the_last_column_as_label",
            "idx": "parts/sources/test_sources.py::test_idx_is_big_endian",
            "images": "parts/sources/test_data_images.py::test_folders_and_files_are_taken_by_name",
            "python": "parts/sources/test_sources.py::test_python_source",
        },
    ),
    "evaluation": (
        [*EVALUATIONS, *SILHOUETTES, *LABELLERS],
        {
            "NOT_EVAL": "jobs/test_plan.py::test_a_job_without_evaluation_asks_for_no_inference",
            "MEAN_SOFTMAX": "../edgeveil_cloud/test_mean_softmax.py::test_the_mean_by_hand",
            "SILHOUETTE_SCORE": f"{CLUSTERING}test_silhouette_by_hand",
            "CALINSKI_HARABASZ_SCORE": f"{CLUSTERING}test_calinski_harabasz_by_hand",
            "DAVIES_BOULDIN_SCORE": f"{CLUSTERING}test_davies_bouldin_by_hand",
            "sklearn": f"{CLUSTERING}test_silhouette_by_hand",
            "text": f"{CLUSTERING}test_the_texts_silhouette_counts_the_point_itself",
            "argmax": f"{CLUSTERING}test_the_cluster_is_the_largest_entry",
            "kmeans": f"{CLUSTERING}test_kmeans_finds_clusters_that_share_their_largest_entry",
        },
    ),
    "preset": (
        PRESETS,
        {
            **dict.fromkeys(("delm_basic", "delm_enhanced", "delm_top_k"), DELM),
            "laplace_inference": "jobs/test_config_presets.py::"
            "test_the_text_of_noised_inference_stands_as_it_is",
            **dict.fromkeys(
                (
                    "anonymous_fl",
                    "pso_dp_fl",
                    "ldp_fl",
                    "fedavg",
                    "fedprox",
                    "secprobe",
                    "stc",
                ),
                PRESET,
            ),
        },
    ),
}


@pytest.mark.parametrize(("names", "tests"), GOLDEN.values(), ids=GOLDEN)
def test_every_name_of_a_table_has_its_test(names, tests):
    assert set(tests) == set(names)
    for where in set(tests.values()):
        file, _, function = where.partition("::")
        text = (UNIT / file).read_text("utf-8")
        assert re.search(rf"^def {function}\(", text, re.M), where
