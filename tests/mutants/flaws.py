"""The flaws that `make mutants` plants, by the decision that they break.

A new mechanism, method or update stage adds its own (`docs/extending.md`)."""

from tests.mutants.planting import Mutant

MUTANTS = {
    # --- noise scale ---
    "gaussian-half-noise": Mutant(
        "edgeveil.privacy.gaussian_mechanism:gaussian",
        "discrete_gaussian(event.sigma_squared, total.shape, random_bytes)"
        " -> discrete_gaussian(event.sigma_squared // 4, total.shape, random_bytes)",
        "tests/unit/edgeveil/privacy/test_privacy_mechanisms.py::test_gaussian_noise_has_the_events_spread",
        of=("gaussian",),
    ),
    "gaussian-diagonal-as-the-rest": Mutant(
        "edgeveil.privacy.gaussian_mechanism:gaussian",
        "discrete_gaussian(event.sigma_squared, diagonal.shape, random_bytes)"
        " -> discrete_gaussian(event.finest_sigma_squared, diagonal.shape, random_bytes)",
        "tests/unit/edgeveil/privacy/test_privacy_mechanisms.py::test_a_symmetric_matrix_gets_less_noise_off_the_diagonal",
        of=("gaussian",),
    ),
    "laplace-half-noise": Mutant(
        "edgeveil.privacy.laplace_mechanism:laplace",
        "scale_of(event) -> scale_of(event) / 2",
        "tests/unit/edgeveil/privacy/test_privacy_mechanisms.py::test_laplace_states_its_exact_epsilon",
        of=("laplace",),
    ),
    "softmax-half-noise": Mutant(
        "edgeveil.privacy.laplace_mechanism:_noised",
        "scale_of(event) -> scale_of(event) / 2",
        "tests/unit/edgeveil/privacy/test_privacy_mechanisms.py::test_softmax_upload_stands_on_the_grid_and_is_centred_on_the_truth",
        of=("softmax",),
    ),
    "two-value-tilt-of-twice-the-epsilon": Mutant(
        "edgeveil.privacy.duchi_mechanism:_tilt",
        "each / 2 -> each",
        "tests/unit/edgeveil/privacy/test_privacy_mechanisms.py::test_no_two_values_are_told_apart_by_more_than_epsilon",
        of=("two_value",),
    ),
    "selection-half-the-scale": Mutant(
        "edgeveil.privacy.selection_mechanism:exponential_mechanism",
        "(best - exact[index]) / scale -> 2 * (best - exact[index]) / scale",
        "tests/unit/edgeveil/privacy/test_privacy_selection_mechanism.py::test_a_selection_has_its_exact_probabilities",
        of=("exponential",),
    ),
    "minus-zero-kept": Mutant(
        "edgeveil.privacy.sampler:_laplace_candidates",
        "signed[~minus_zero] -> signed",
        "tests/unit/edgeveil/privacy/test_privacy_sampler.py::test_discrete_noise_has_its_exact_probabilities",
    ),
    "gaussian-sampler-wrong-peak": Mutant(
        "edgeveil.privacy.sampler:_gaussian_law",
        "float(variance / scale) -> 0.0",
        "tests/unit/edgeveil/privacy/test_privacy_sampler.py::test_discrete_noise_has_its_exact_probabilities",
    ),
    "gaussian-boxes-without-the-curve": Mutant(
        "edgeveil.privacy.sampler:boxed_gaussian",
        "excess >= 0 -> excess >= 1.5",
        "tests/unit/edgeveil/privacy/test_privacy_sampler.py::test_discrete_noise_has_its_exact_probabilities",
    ),
    "gaussian-boxes-above-the-curve": Mutant(
        "edgeveil.privacy.sampler:_boxes",
        "low - ACCEPT_MARGIN -> high",
        "tests/unit/edgeveil/privacy/test_privacy_sampler.py::test_boxes_cover_the_curve_and_those_taken_unasked_lie_below_it",
    ),
    "large-seeds-of-no-chance": Mutant(
        "edgeveil.privacy.sampler:os_random",
        "keystream(os.urandom(32)) -> keystream(bytes(32))",
        "tests/unit/edgeveil/privacy/test_privacy_sampler.py::test_bytes_of_the_operating_system_are_new_in_each_call",
    ),
    "sampled-half-noise": Mutant(
        "edgeveil.privacy.gaussian_mechanism:noised_step",
        "one.sigma_squared -> one.sigma_squared // 4",
        "tests/unit/edgeveil/privacy/test_privacy_sampled.py::test_noise_has_the_deviation_that_is_priced",
        of=("dp_sgd", "pso_dp_sgd"),
    ),
    "fm-half-noise": Mutant(
        "edgeveil.parts.methods.fm:FmDevice.answer",
        "fm_sums.noised(total, self.budget.events[round.phase], random_bytes)"
        " -> fm_sums.noised(2 * total, self.budget.events[round.phase], random_bytes) // 2",
        "tests/contract/test_method_noise.py::test_a_sum_over_devices_has_the_noise_that_its_price_counts_on",
        of=("fm", "pca_residual"),
    ),
    "pate-half-noise": Mutant(
        "edgeveil.parts.methods.pate:PateDevice.answer",
        "noised(total, event, random_bytes) -> total + noised(0 * total, event, random_bytes) // 2",
        "tests/contract/test_method_noise.py::test_a_sum_over_devices_has_the_noise_that_its_price_counts_on",
        of=("pate",),
    ),
    "update-half-noise": Mutant(
        "edgeveil.parts.stages.noise:GradientGaussian.steps",
        "gaussian(total, event, task.random_bytes)"
        " -> ((gaussian(0 * total, event, task.random_bytes)[0] // 2) + total, event)",
        "tests/unit/edgeveil/parts/methods/test_updates_sgd.py::test_the_noise_of_parts_has_the_variance_that_was_promised",
        of=("gradient_gaussian", "pso_dp_fl"),
    ),
    "swarm-update-without-noise": Mutant(
        "edgeveil.parts.methods.pso:PsoDpFl.train",
        "self._noise.apply(task, shaped(task.weights, best - origin))"
        " -> shaped(task.weights, best - origin)",
        "tests/unit/edgeveil/parts/methods/test_updates_pso.py::test_the_whole_update_is_clipped_and_priced_once_for_the_device",
        of=("pso_dp_fl",),
    ),
    "evaluation-half-noise": Mutant(
        "edgeveil.jobs.federated_evaluation:FederatedEvaluation._released",
        "gaussian(within, self._own, random_bytes)"
        " -> (within + gaussian(0 * within, self._own, random_bytes)[0] // 2, None)",
        "tests/unit/edgeveil/jobs/test_evaluation_plans.py::test_the_noise_of_one_count_is_what_the_accountant_asks_for",
    ),
    "fm-paper-half-noise": Mutant(
        "edgeveil.parts.methods.fm_paper:FmPaperDevice._noised",
        "self._scale / NOISE_STEPS -> self._scale / NOISE_STEPS / 2",
        "tests/unit/edgeveil/parts/methods/test_fm_paper.py::test_the_noise_is_laplace_at_the_text_s_scale",
        of=("fm_paper",),
    ),
    "fm-paper-noise-drawn-once": Mutant(
        "edgeveil.parts.methods.fm_paper:FmPaperDevice.answer",
        "bound(random_bytes, law, total)"
        " -> __import__('edgeveil.privacy.sampler').privacy.sampler.SeededRandom(0)",
        "tests/unit/edgeveil/parts/methods/test_fm_paper.py::test_the_noise_is_drawn_anew_at_each_step",
        of=("fm_paper",),
    ),
    "output-perturbation-half-noise": Mutant(
        "edgeveil.parts.methods.sgd:OutputPerturbation.train",
        "self.sigma_steps**2 -> self.sigma_steps**2 // 4",
        "tests/unit/edgeveil/parts/methods/test_updates_dp_sgd.py::test_output_perturbation_noises_the_trained_weights_and_claims_the_budget",
        of=("output_perturbation",),
    ),
    "noise-only-sends-a-record": Mutant(
        "edgeveil.parts.methods.noise_only:NoiseOnlyDevice.answer",
        "uniform(self.parameters.values, random_bytes)"
        " -> uniform(self.parameters.values, random_bytes) + float(records.x.sum())",
        "tests/contract/test_methods.py::test_what_has_no_price_reads_no_record",
        of=("noise_only",),
    ),
    # --- sensitivity ---
    "statistics-weights-left-out-of-the-sensitivity": Mutant(
        "edgeveil.statistics.blocks:BlockVector.sensitivity_squared",
        "(weight * one.whole) ** 2 -> one.whole**2",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_one_record_adds_no_more_than_is_said",
        of=("statistics",),
    ),
    "statistics-of-numbers-beyond-their-range": Mutant(
        "edgeveil.statistics.blocks:Scaled.of",
        "np.clip((values - self.middle) / self.half, -1.0, 1.0)"
        " -> (values - self.middle) / self.half",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_one_record_adds_no_more_than_is_said",
        of=("statistics",),
    ),
    "statistics-record-in-two-cells": Mutant(
        "edgeveil.statistics.blocks:Counts.of",
        "np.bincount(at, minlength=self.cells)"
        " -> np.bincount(np.repeat(at, 2), minlength=self.cells)",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_one_record_adds_no_more_than_is_said",
        of=("statistics",),
    ),
    "statistics-brightness-of-other-pictures": Mutant(
        "edgeveil.parts.sources.arrays:array_parts",
        "one.astype(np.float64) -> (one - x.mean()).astype(np.float64)",
        "tests/unit/edgeveil/statistics/test_parts.py::test_an_array_adds_no_more_than_is_said_and_its_parts_are_its_own",
        of=("statistics",),
    ),
    "statistics-unreadable-date-as-the-one-before": Mutant(
        "edgeveil.data.encoding:_ColumnReader._date_part",
        "found.get(self._column.part or '', math.nan)"
        " -> found.get(self._column.part or '', self._cells[-1] if self._cells else math.nan)",
        "tests/unit/edgeveil/statistics/test_parts.py::test_a_record_with_a_date_adds_no_more_than_is_said",
        of=("statistics",),
    ),
    "statistics-broken-picture-as-large-as-others-are-many": Mutant(
        "edgeveil.parts.sources.images:encode_files",
        "np.full(shape, np.nan, np.float32) -> np.full(shape, len(files), np.float32)",
        "tests/unit/edgeveil/statistics/test_parts.py::test_a_picture_adds_no_more_than_is_said",
        of=("statistics",),
    ),
    "statistics-exchanges-paid-once": Mutant(
        "edgeveil.parts.methods.statistics:Asking.events",
        "sum(bound**2 for bound in bounds) -> max(bounds) ** 2",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_all_exchanges_together_cost_what_the_job_says",
        of=("statistics",),
    ),
    "statistics-person-with-every-record": Mutant(
        "edgeveil.statistics.blocks:_mean",
        "np.divmod(sums, of) -> np.divmod(sums, 1)",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_a_device_or_person_adds_no_more_than_its_event_says",
        of=("statistics",),
    ),
    "statistics-missing-in-a-bin-too": Mutant(
        "edgeveil.statistics.blocks:Counts.of",
        "np.bincount(at, minlength=self.cells) -> "
        "np.bincount(np.append(at, at[at == self.cells - 1] - 1), minlength=self.cells)",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_one_record_adds_no_more_than_is_said",
        of=("statistics",),
    ),
    "statistics-squares-not-centred": Mutant(
        "edgeveil.statistics.blocks:Moments.parts",
        "np.square(z) - 0.5 -> np.square(z)",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_one_record_adds_no_more_than_is_said",
        of=("statistics",),
    ),
    "statistics-squares-for-the-price-of-a-mean": Mutant(
        "edgeveil.statistics.blocks:Moments.bound",
        "1.25 if self.squares else 1.0 -> 1.0",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_one_record_adds_no_more_than_is_said",
        of=("statistics",),
    ),
    "statistics-records-of-a-product-for-nothing": Mutant(
        "edgeveil.statistics.blocks:Product.bound",
        "1.25 -> 1.0",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_a_record_at_the_ends_of_its_ranges_adds_as_much_as_is_said",
        of=("statistics",),
    ),
    "statistics-filter-left-out": Mutant(
        "edgeveil.statistics.blocks:BlockVector.of",
        "self._asked(x) -> slice(None)",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_a_filter_leaves_out_what_does_not_meet_it",
        of=("statistics",),
    ),
    "statistics-filter-left-out-of-means": Mutant(
        "edgeveil.statistics.blocks:BlockVector.means",
        "self._asked(x) -> np.ones(len(x), np.bool_)",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_a_persons_part_is_the_mean_of_its_records",
        of=("statistics",),
    ),
    "statistics-half-noise": Mutant(
        "edgeveil.parts.methods.statistics:StatisticsDevice.answer",
        "gaussian(steps, noise_of(event), random_bytes)"
        " -> (steps + gaussian(0 * steps, noise_of(event), random_bytes)[0] // 2, event)",
        "tests/contract/test_method_noise.py::test_a_sum_over_devices_has_the_noise_that_its_price_counts_on",
        of=("statistics",),
    ),
    "softmax-sensitivity-one": Mutant(
        "edgeveil.privacy.laplace_mechanism:softmax_event",
        "2 * steps -> steps",
        "tests/unit/edgeveil/privacy/test_privacy_mechanisms.py::test_any_two_vectors_stand_within_the_stated_sensitivity",
        of=("softmax",),
    ),
    "record-of-a-mean-softmax-half-as-far": Mutant(
        "edgeveil.privacy.laplace_mechanism:record_steps",
        "2 << SOFTMAX_BITS -> 1 << SOFTMAX_BITS",
        "tests/unit/edgeveil_edge/test_mean_softmax_record.py::test_no_record_moves_the_vector_by_more_than_its_price_counts",
        nth=1,
        of=("softmax",),
    ),
    "products-half-sensitivity": Mutant(
        "edgeveil.parts.methods.fm_sums:products_sum",
        "1.0 -> 0.5",
        "tests/unit/edgeveil/parts/methods/test_fm_options.py::test_one_record_changes_no_sum_by_more_than_its_event_says",
        of=("fm", "pca_residual"),
    ),
    "features-half-sensitivity": Mutant(
        "edgeveil.parts.methods.fm_sums:features_sum",
        "1.0 -> 0.5",
        "tests/unit/edgeveil/parts/methods/test_fm_options.py::test_one_record_changes_no_sum_by_more_than_its_event_says",
        of=("fm", "pca_residual"),
    ),
    "linear-half-sensitivity": Mutant(
        "edgeveil.parts.methods.fm_sums:priced_sum",
        "parameters.clip -> parameters.clip / 2",
        "tests/unit/edgeveil/parts/methods/test_fm_options.py::test_one_record_changes_no_sum_by_more_than_its_event_says",
        nth=2,
        of=("fm",),
    ),
    "linear-half-laplace-sensitivity": Mutant(
        "edgeveil.parts.methods.fm_sums:priced_sum",
        "min(by_factors, by_norm) -> min(by_factors, by_norm) // 2",
        "tests/unit/edgeveil/parts/methods/test_fm_options.py::test_one_record_changes_no_sum_by_more_than_its_event_says",
        of=("fm",),
    ),
    "intercept-outside-the-bound": Mutant(
        "edgeveil.parts.methods.fm_sums:shrunk",
        "(1 << 2 * GRID_BITS) - intercept**2 -> 1 << 2 * GRID_BITS",
        "tests/unit/edgeveil/parts/methods/test_fm_head.py::test_no_record_is_beyond_norm_one_with_any_intercept",
        of=("fm",),
    ),
    "intercept-not-what-the-features-are-shrunk-for": Mutant(
        "edgeveil.parts.methods.fm_sums:with_intercept",
        "intercept -> 2 * intercept",
        "tests/unit/edgeveil/parts/methods/test_fm_head.py::test_no_record_is_beyond_norm_one_with_any_intercept",
        nth=2,
        of=("fm",),
    ),
    "votes-counted-once": Mutant(
        "edgeveil.parts.methods.pate:vote_event",
        "2 * m << 2 * VOTE_BITS -> m << 2 * VOTE_BITS",
        "tests/unit/edgeveil/parts/methods/test_pate.py::test_no_two_data_sets_have_votes_further_apart_than_the_price_says",
        of=("pate",),
    ),
    "record-of-an-update-moves-it-once": Mutant(
        "edgeveil.privacy.events:for_one",
        "2 if isinstance(event, GaussianEvent) else 1 -> 1",
        "tests/unit/edgeveil/privacy/test_privacy_shared.py::test_of_a_devices_update_one_record_costs_twice_in_both",
    ),
    "person-bounded-by-record": Mutant(
        "edgeveil.parts.methods.fm_sums:Rows.clipped_sum",
        "clip_sum(of(self._at(group)), limit) -> of(self._at(group))",
        "tests/unit/edgeveil/parts/methods/test_units.py::test_a_unit_of_fifty_records_moves_each_sum_of_fm_no_further_than_its_price",
        of=("fm",),
    ),
    "persons-gradients-bounded-by-record": Mutant(
        "edgeveil.parts.methods.dp_sgd:NoisedSums._by_unit",
        "clip_sum(own, 1 << NOISE_BITS) -> own",
        "tests/unit/edgeveil/parts/methods/test_units.py::test_a_person_and_a_record_of_one_move_the_gradients_no_further_than_a_record",
        of=("dp_sgd",),
    ),
    "persons-gradients-clipped-as-coarsely-as-may-be": Mutant(
        "edgeveil.parts.methods.dp_sgd:noised_steps",
        "clipped_slack(coordinates, sensitivity) > MARGIN_STEPS -> False",
        "tests/unit/edgeveil/parts/methods/test_units.py::test_a_model_too_large_to_clip_a_persons_gradients_finely_is_refused",
        of=("dp_sgd",),
    ),
    "a-record-of-a-sampled-person-as-the-person": Mutant(
        "edgeveil.privacy.events:for_one",
        "event.unit != unit and event.sampling_probability < 1 -> False",
        "tests/unit/edgeveil/privacy/test_privacy_sampled.py::test_a_record_of_a_sampled_person_costs_more_than_its_person",
    ),
    "persons-evaluation-counts-by-record": Mutant(
        "edgeveil.jobs.federated_evaluation:FederatedEvaluation._steps",
        "len(own) -> 1",
        "tests/unit/edgeveil/parts/methods/test_units.py::test_a_person_moves_the_counts_of_an_evaluation_no_further_than_a_record",
    ),
    "gradients-against-a-quarter-of-the-noise": Mutant(
        "edgeveil.parts.methods.dp_sgd:NoisedSums.sampled",
        "self.total(rows, chosen, norm) -> self.total(rows, chosen, norm) << 2",
        "tests/unit/edgeveil/parts/methods/test_updates_dp_sgd.py::test_a_step_is_the_sum_over_the_public_batch_and_only_that",
        of=("dp_sgd", "pso_dp_sgd"),
    ),
    "confusion-counted-once": Mutant(
        "edgeveil.evaluation.record_counts:Confusion",
        "2 -> 1",
        "tests/unit/edgeveil/evaluation/test_figures.py::test_one_record_changes_no_more_than_is_said",
        nth=1,
    ),
    "statistics-of-the-batch": Mutant(
        "edgeveil.evaluation.graph_check:GraphNode._trains",
        "number(a, _ATTRIBUTE_INT) != 0 -> False",
        "tests/unit/edgeveil/evaluation/test_graph_check.py::test_batch_normalisation_uses_the_statistics_it_holds",
    ),
    "adaptive-clip-with-a-bit-beside": Mutant(
        "edgeveil.parts.stage:AdaptiveClip.update_steps",
        "self.sensitivity_steps**2 - self.bit_steps**2 -> self.sensitivity_steps**2",
        "tests/unit/edgeveil/parts/methods/test_updates_sgd.py::test_one_device_moves_the_sum_by_the_sensitivity_at_most",
        of=("gradient_gaussian",),
    ),
    "choice-before-the-noise": Mutant(
        "edgeveil.jobs.compile:_chosen_before_noise",
        "stage.chooses and later -> False",
        "tests/unit/edgeveil/jobs/test_config_refusals.py::test_what_cannot_work_is_refused_with_file_line_key_and_reason",
    ),
    "cluster-sums-half-the-square": Mutant(
        "edgeveil.evaluation.cluster_sums:ClusterSums",
        "12 * STEP**2 -> 6 * STEP**2",
        "tests/unit/edgeveil/evaluation/test_cluster_sums.py::test_a_record_can_change_as_much_as_is_said",
    ),
    "cluster-distances-twice-as-long": Mutant(
        "edgeveil.evaluation.cluster_sums:ClusterSums.of",
        "np.rint(distance / 2) -> np.rint(distance)",
        "tests/unit/edgeveil/evaluation/test_cluster_sums.py::test_a_record_can_change_as_much_as_is_said",
    ),
    # --- unit ---
    "record-of-a-mean-softmax-half-the-price": Mutant(
        "edgeveil.privacy.events:for_one",
        "event.record_sensitivity_steps -> event.record_sensitivity_steps // 2",
        "tests/unit/edgeveil_edge/test_mean_softmax_record.py::test_both_units_are_priced_printed_and_limited_together",
        of=("softmax",),
    ),
    "softmax-of-a-device-priced-a-record": Mutant(
        "edgeveil.privacy.laplace_mechanism:softmax_event",
        "samples is None -> False",
        "tests/unit/edgeveil/privacy/test_privacy_mechanisms.py::test_softmax_noise_prices_what_is_proven_not_what_was_assumed",
        nth=2,
    ),
    "a-mean-beside-counts-costs-its-device-nothing": Mutant(
        "edgeveil.privacy.policy:_composed",
        "UNITS.index(e.unit) >= inside -> e.unit == 'record'",
        "tests/unit/edgeveil/privacy/test_privacy_mixed_units.py::test_what_is_counted_of_records_lets_no_mean_pass_the_limit_of_a_device",
    ),
    # --- clip ---
    "mean-softmax-beyond-mass-one": Mutant(
        "edgeveil.privacy.laplace_mechanism:mean_steps",
        "max(nominal << RECORD_BITS, sum(map(int, total))) -> nominal << RECORD_BITS",
        "tests/unit/edgeveil_edge/test_mean_softmax_record.py::test_no_record_moves_the_vector_by_more_than_its_price_counts",
        of=("softmax",),
    ),
    "centroids-outside-of-the-simplex": Mutant(
        "edgeveil.evaluation.cluster_sums:ClusterSums.of_broadcast",
        "min(row) < 0 or sum(row) > ONE -> min(row) < 0",
        "tests/unit/edgeveil/evaluation/test_cluster_sums.py::test_centroids_that_are_none_are_refused",
    ),
    "outputs-that-are-no-distribution": Mutant(
        "edgeveil.evaluation.cluster_sums:_in_steps",
        "np.abs(sums - 1) < _SUM_ERROR -> sums > 0",
        "tests/unit/edgeveil/evaluation/test_cluster_sums.py::test_what_is_no_distribution_adds_nothing_and_its_label_is_not_looked_at",
    ),
    "evaluation-counts-not-cut-off": Mutant(
        "edgeveil.jobs.federated_evaluation:FederatedEvaluation._released",
        "np.clip(steps, 0, self._room << self._own.grid_bits) -> steps",
        "tests/unit/edgeveil/jobs/test_evaluation_plans.py::test_a_device_counts_no_more_than_there_is_room_for",
    ),
    "feature-rows-of-norm-two": Mutant(
        "edgeveil.parts.methods.fm_sums:bounded",
        "quantise(clip_rows(centred, radius) / radius, 1.0)"
        " -> quantise(clip_rows(centred, 2 * radius) / radius, 2.0)",
        "tests/unit/edgeveil/parts/methods/test_fm_options.py::test_one_record_changes_no_sum_by_more_than_its_event_says",
    ),
    "intercept-beside-a-whole-z": Mutant(
        "edgeveil.parts.methods.fm_sums:with_intercept",
        "np.abs(given) * factor >> GRID_BITS -> np.abs(given)",
        "tests/unit/edgeveil/parts/methods/test_fm_head.py::test_one_record_with_a_number_by_hand",
    ),
    "softmax-over-sum-kept": Mutant(
        "edgeveil.privacy.laplace_mechanism:_probability_steps",
        "max(1.0, math.fsum(p)) -> 1.0",
        "tests/unit/edgeveil/privacy/test_privacy_mechanisms.py::test_a_vector_that_is_no_distribution_is_made_one",
    ),
    "update-not-clipped": Mutant(
        "edgeveil.privacy.gaussian_mechanism:clipped_steps",
        "whole if within else np.zeros_like(whole)"
        " -> np.trunc(values * 2.0**grid_bits).astype(np.int64)",
        "tests/unit/edgeveil/parts/stages/test_update_stages.py::test_an_update_is_clipped_as_a_whole_and_never_past_the_norm",
    ),
    "linear-terms-not-clipped": Mutant(
        "edgeveil.parts.methods.fm_sums:_linear",
        "np.where(within[:, None], factors, 0) -> quantise(residual, 2.0)",
        "tests/unit/edgeveil/parts/methods/test_fm_options.py::test_one_record_changes_no_sum_by_more_than_its_event_says",
    ),
    "gradient-factors-not-clipped": Mutant(
        "edgeveil.parts.methods.dp_sgd:_squared_norms",
        "left * right / left_unit**2 -> 0.0 * left",
        "tests/unit/edgeveil/parts/methods/test_updates_dp_sgd.py::test_no_product_of_factors_is_longer_than_the_clip_whatever_their_size_and_scale",
    ),
    "gradient-rows-not-clipped": Mutant(
        "edgeveil.parts.methods.dp_sgd:to_steps",
        "one.masked_fill_(~kept.to(one.device)[:, None], 0.0) -> one.mul_(4.0)",
        "tests/unit/edgeveil/parts/methods/test_updates_dp_sgd.py::test_a_gradient_that_is_no_number_counts_nothing_and_harms_nobody",
    ),
    # --- Poisson sampling ---
    "one-sample-for-all-steps": Mutant(
        "edgeveil.parts.methods.dp_sgd:NoisedSums.sampled",
        "self.total(rows, chosen, norm)"
        " -> self.total(rows, self.__dict__.setdefault('first', chosen), norm)",
        "tests/contract/test_method_noise.py::test_a_round_of_dp_sgd_has_the_spread_of_fresh_samples_and_of_the_noise_that_is_paid",
        of=("dp_sgd",),
    ),
    "sampled-twice-as-often": Mutant(
        "edgeveil.privacy.gaussian_mechanism:poisson_sample",
        "int(Fraction(probability) * 2**64) -> min(2**64, int(Fraction(probability) * 2**65))",
        "tests/unit/edgeveil/privacy/test_privacy_sampled.py::test_a_record_is_in_where_its_bits_are_below_the_rate",
        of=("dp_sgd",),
    ),
    "dp-sgd-sums-quarter-of-the-noise": Mutant(
        "edgeveil.parts.methods.dp_sgd_sums:SummedGradients.steps",
        "noised_step(np.clip(total, -self.room, self.room), own, task.random_bytes)"
        " -> total + noised_step(0 * total, own, task.random_bytes) // 4",
        "tests/contract/test_method_noise.py::test_a_sum_over_devices_has_the_noise_that_its_price_counts_on",
        of=("dp_sgd_sums",),
    ),
    "dp-sgd-sums-twice-the-clip": Mutant(
        "edgeveil.parts.methods.dp_sgd_sums:SummedGradients.steps",
        "sums.sampled(rows, self.parameters.clip_norm)"
        " -> 2 * sums.sampled(rows, 2 * self.parameters.clip_norm)",
        "tests/unit/edgeveil/parts/methods/test_updates_dp_sgd_sums.py::test_one_record_moves_an_upload_by_no_more_than_is_priced",
        of=("dp_sgd_sums",),
    ),
    "dp-sgd-sums-one-sample-for-all-rounds": Mutant(
        "edgeveil.parts.methods.dp_sgd_sums:SummedGradients.steps",
        "NoisedSums(task, own)"
        " -> NoisedSums(replace(task, random_bytes=__import__('random').Random(1).randbytes), own)",
        "tests/unit/edgeveil/parts/methods/test_updates_dp_sgd_sums.py::test_each_round_has_a_sample_of_its_own_and_a_repeated_question_the_same",
        of=("dp_sgd_sums",),
    ),
    "dp-sgd-sums-without-room": Mutant(
        "edgeveil.parts.methods.dp_sgd_sums:SummedGradients.steps",
        "np.clip(total, -self.room, self.room) -> total",
        "tests/unit/edgeveil/parts/methods/test_updates_dp_sgd_sums.py::test_values_stay_within_the_public_bound_however_many_records_a_device_has",
        of=("dp_sgd_sums",),
    ),
    "sampled-alone-in-half-as-many-samples": Mutant(
        "edgeveil.privacy.accountant:epsilon_on_any_grid",
        "times(gaussian_moments(one.mu), most) -> times(gaussian_moments(one.mu), most // 2)",
        "tests/unit/edgeveil/privacy/test_privacy_sampled.py::test_a_part_with_hardly_any_noise_costs_no_more_than_the_samples_that_a_record_is_in",
    ),
    "dp-sgd-pays-one-step": Mutant(
        "edgeveil.parts.methods.dp_sgd:DpSgd.event",
        "p.local_steps -> 1",
        "tests/contract/test_method_noise.py::test_every_step_is_paid_for_and_takes_a_sample_of_its_own",
        of=("dp_sgd",),
    ),
    "swarm-pays-one-particle": Mutant(
        "edgeveil.parts.methods.pso:PsoDpSgd.event",
        "PARTICLES * p.local_steps + 1 -> p.local_steps + 1",
        "tests/unit/edgeveil/parts/methods/test_updates_pso.py::test_the_price_counts_every_particles_steps_and_the_losses",
        of=("pso_dp_sgd",),
    ),
    "moment-of-half-the-rate": Mutant(
        "edgeveil.privacy.moments:_whole",
        "math.log(probability) -> math.log(probability / 2)",
        "tests/unit/edgeveil/privacy/test_privacy_sampled.py::test_one_step_lies_above_both_divergences_and_close_to_the_larger",
    ),
    # --- composition ---
    "evaluations-priced-as-one": Mutant(
        "edgeveil.jobs.plan:Plan._evaluation",
        "max(1, self._times(phase)) -> 1",
        "tests/unit/edgeveil/jobs/test_evaluation_plans.py::test_all_sums_together_cost_what_the_job_says",
    ),
    "weights-of-an-upload-paid-once": Mutant(
        "edgeveil.parts.stages.noise:LdpFl.event",
        "self.parameters.composition == 'sequential' -> False",
        "tests/unit/edgeveil/parts/stages/test_update_stages.py::test_all_weights_and_rounds_share_the_budget",
        of=("ldp_fl",),
    ),
    "gaussian-releases-counted-once": Mutant(
        "edgeveil.privacy.accountant:_epsilon",
        "n * _squared_mu(event) -> _squared_mu(event)",
        "tests/unit/edgeveil/privacy/test_privacy_accountant.py::test_one_record_of_a_device_has_a_price_where_the_grid_has_none",
    ),
    "pure-releases-counted-once": Mutant(
        "edgeveil.privacy.accountant:_epsilon",
        "e * n -> e",
        "tests/unit/edgeveil/privacy/test_privacy_accountant.py::test_pure_epsilon_is_summed_exactly",
    ),
    "grid-costs-nothing": Mutant(
        "edgeveil.privacy.accountant:least_epsilon",
        "(1 + math.exp(candidate)) * tv -> 0",
        "tests/unit/edgeveil/privacy/test_privacy_accountant.py::test_the_discreteness_of_the_noise_costs",
    ),
    "grid-of-one-coordinate": Mutant(
        "edgeveil.privacy.accountant:discreteness_tv",
        "one.coordinates * steps -> steps",
        "tests/unit/edgeveil/privacy/test_privacy_accountant.py::test_the_discreteness_of_the_noise_costs",
    ),
    "gaussian-delta-too-small": Mutant(
        "edgeveil.privacy.accountant:gaussian_delta",
        "-epsilon / mu + mu / 2 -> -epsilon / mu + mu / 3",
        "tests/unit/edgeveil/privacy/test_privacy_accountant.py::test_delta_is_the_hockey_stick_divergence",
    ),
    "fm-pays-one-round": Mutant(
        "edgeveil.parts.methods.fm_sums:_share_out",
        "min(context.max_participations, parameters.rounds) -> 1",
        "tests/unit/edgeveil/parts/methods/test_fm_options.py::test_the_whole_job_costs_what_was_asked_whatever_the_options",
        of=("fm",),
    ),
    "pca-residual-pays-one-round": Mutant(
        "edgeveil.parts.methods.pca_residual:budget",
        "min(context.max_participations, parameters.rounds) -> 1",
        "tests/unit/edgeveil/parts/methods/test_pca_residual.py::test_the_whole_job_costs_what_was_asked",
        of=("pca_residual",),
    ),
    "sampled-rounds-paid-once": Mutant(
        "edgeveil.parts.methods.dp_sgd:noised_steps",
        "min(context.max_participations, parameters.rounds) -> 1",
        "tests/unit/edgeveil/parts/methods/test_updates_dp_sgd.py::test_all_steps_of_all_rounds_cost_what_the_job_asks",
        of=("dp_sgd", "pso_dp_sgd"),
    ),
    "two-values-paid-once": Mutant(
        "edgeveil.privacy.events:TwoValueEvent.epsilon",
        "self.coordinates * self.epsilon_numerator -> self.epsilon_numerator",
        "tests/unit/edgeveil/privacy/test_privacy_mechanisms.py::test_every_value_of_the_unit_counts",
        of=("two_value", "ldp_fl"),
    ),
    "selection-paid-as-monotonic": Mutant(
        "edgeveil.privacy.events:SelectionEvent.epsilon",
        "1 if self.monotonic else 2 -> 1",
        "tests/unit/edgeveil/privacy/test_privacy_selection_mechanism.py::test_neighbours_stay_within_the_priced_epsilon",
        of=("exponential",),
    ),
    "shuffled-rounds-counted-once": Mutant(
        "edgeveil.privacy.amplification:composed",
        "times * epsilon -> epsilon",
        "tests/unit/edgeveil/privacy/test_privacy_amplification.py::test_rounds_add_up_and_never_cost_more_than_without_a_shuffle",
        nth=1,
    ),
    "clones-of-twice-as-many": Mutant(
        "edgeveil.privacy.amplification:_clones",
        "devices - 1 -> 2 * devices",
        "tests/unit/edgeveil/privacy/test_privacy_amplification.py::test_values_of_the_numerical_bound_at_delta_1e_6",
    ),
    # --- correlated noise ---
    "correlated-low-bits-in-the-answer": Mutant(
        "edgeveil.protocol.tensors:correlated_mask_sums",
        "packed_vectors(sums) -> packed_vectors(sums) + before",
        "tests/unit/edgeveil_cloud/test_correlated_rounds.py::test_a_sum_is_less_its_share_of_the_noise_before_within_one_step",
    ),
    "correlated-half-not-rounded": Mutant(
        "edgeveil.crypto.masking:taken_back",
        "np.uint64(NOISE_BITS) -> np.uint64(0)",
        "tests/unit/edgeveil/protocol/test_correlated_sums.py::test_low_bits_of_what_is_opened_do_not_show_an_earlier_update",
    ),
    "correlated-noise-left-out-of-the-update": Mutant(
        "edgeveil.parts.stages.noise:GradientGaussian.steps",
        "np.concatenate([noised, noise]) -> np.concatenate([total, noise])",
        "tests/unit/edgeveil_edge/test_correlated_answers.py::test_the_noise_that_is_taken_back_is_that_of_the_update",
        of=("gradient_gaussian",),
    ),
    "correlated-price-of-one-participation": Mutant(
        "edgeveil.privacy.correlation:Correlation._shifts",
        "number < self.participations -> number < 1",
        "tests/unit/edgeveil_lab/audit/test_audit_correlated_attacks.py::test_the_price_is_that_of_all_participations_and_little_more",
        of=("gradient_gaussian",),
    ),
    "correlated-noise-for-one-participation": Mutant(
        "edgeveil.privacy.gaussian_mechanism:correlated_event",
        "meeting(of, epsilon_, delta, k) -> meeting(of, epsilon_, delta, 1)",
        "tests/unit/edgeveil_lab/audit/test_audit_correlated_attacks.py::test_the_price_is_that_of_all_participations_and_little_more",
        of=("gradient_gaussian",),
    ),
    "correlated-rounds-too-near": Mutant(
        "edgeveil_edge.round_work:check_separation",
        "ledger.released(job_id, near) -> False",
        "tests/unit/edgeveil_edge/test_correlated_answers.py::test_rounds_nearer_than_the_separation_are_declined_before_a_record_is_read",
    ),
    "correlated-facts-other-than-the-job-s": Mutant(
        "edgeveil_edge.round_work:check_package",
        "manifest.correlated != context.correlated -> False",
        "tests/unit/edgeveil_edge/test_correlated_answers.py::test_noise_other_than_the_job_s_is_refused_before_a_record_is_read",
    ),
    "correlated-seeds-of-any-manifest": Mutant(
        "edgeveil.protocol.sealed:_seed_info",
        "msgspec.msgpack.encode(facts) -> b''",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_correlated.py::test_seeds_open_only_under_the_manifest_that_the_device_has_checked",
    ),
    "correlated-half-deleted-before-its-use": Mutant(
        "edgeveil.protocol.proxy_rounds:ProxyRounds.drop",
        "own is not None and own.at == at -> True",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_correlated.py::test_a_half_lives_until_the_next_round_is_over",
    ),
    # --- mask ---
    "a-device-of-before-takes-checks-away": Mutant(
        "edgeveil_cloud.host:CloudHost._lacks_checks",
        "not self.checks_masks(task.cells) -> False",
        "tests/unit/edgeveil_cloud/test_secure_rounds.py::test_a_masked_job_begins_no_round_while_a_device_of_before_could_end_it",
    ),
    "masks-checked-by-any-factors": Mutant(
        "edgeveil.protocol.sealed:check_factors",
        "key.commitment(_names(manifest.at)) != manifest.check -> False",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_masks.py::test_factors_that_the_round_did_not_commit_to_are_refused_for_good",
    ),
    "device-answers-under-any-factors": Mutant(
        "edgeveil_edge.round_work:RoundWork.answer",
        "manifest.check -> b''",
        "tests/unit/edgeveil_edge/test_masked_answers.py::test_factors_that_the_round_does_not_commit_to_are_refused_before_a_record_is_read",
    ),
    "seed-sealed-for-any-factors": Mutant(
        "edgeveil.protocol.sealed:_seed_info",
        "[manifest.check] if manifest.check else [] -> []",
        "tests/unit/edgeveil/protocol/test_protocol_sealed.py::test_a_seed_is_sealed_for_one_key_of_checks",
    ),
    "bits-beyond-the-ring-leave-the-proxy": Mutant(
        "edgeveil.crypto.masking:Factors.__init__",
        "1 << ring.bits -> 1 << 64",
        "tests/unit/edgeveil/protocol/test_protocol_sealed.py::test_no_bit_beyond_the_ring_leaves_the_proxy",
    ),
    "mask-check-skipped": Mutant(
        "edgeveil_cloud.validate_batch:MaskedUploads.compare",
        "checks[index * size : (index + 1) * size] == own -> True",
        "tests/unit/edgeveil_cloud/test_secure_rounds.py::test_uploads_that_do_not_fit_are_left_out_of_sum_choice_and_record",
    ),
    "misfit-stays-in-the-choice": Mutant(
        "edgeveil_cloud.validate_batch:MaskedUploads.compare",
        "[index for index in result.chosen if index not in out] -> result.chosen",
        "tests/unit/edgeveil_cloud/test_secure_rounds.py::test_too_few_that_fit_keep_nothing_and_are_told",
    ),
    "choice-spent-before-the-checks": Mutant(
        "edgeveil_cloud.commit_round:RoundCommitter.commit",
        "not checks -> True",
        "tests/unit/edgeveil_cloud/test_secure_rounds.py::test_too_few_that_fit_keep_nothing_and_are_told",
    ),
    "one-seed-for-every-attempt": Mutant(
        "edgeveil_edge.sealing:Masks.of",
        "MaskSeed.generate() -> MaskSeed(bytes(range(32)))",
        "tests/unit/edgeveil_edge/test_masked_answers.py::test_another_attempt_brings_the_same_numbers_under_other_masks",
    ),
    "second-choice-answered": Mutant(
        "edgeveil.protocol.proxy_rounds:ProxyMasks._task",
        "known is not None and (known.at != at or not same) -> False",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_masks.py::test_the_choice_follows_the_checks_and_its_floor_holds",
    ),
    "who-counts-no-answers-knows-less-again": Mutant(
        "edgeveil.protocol.proxy:ProxyMachine._answers",
        "hello.answered < 0 and hello.knows < m.KNOWS_CHECKS -> hello.answered < 0",
        "tests/unit/edgeveil/protocol/test_protocol_pieces.py::test_who_knew_checks_of_masks_once_does_not_know_less_again",
    ),
    # --- floor ---
    "floor-of-the-job-alone": Mutant(
        "edgeveil.protocol.proxy_rounds:ProxyRounds._collection",
        "max(manifest.min_batch, settings.min_batch_floor, 1) -> max(manifest.min_batch, 1)",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_batches.py::test_below_either_floor_nothing_is_handed_over",
    ),
    "deadline-below-the-floor": Mutant(
        "edgeveil.protocol.proxy_rounds:Collection.verdict",
        "len(self.uploads) >= self.floor -> True",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_batches.py::test_below_either_floor_nothing_is_handed_over",
    ),
    "quorum-below-the-floor": Mutant(
        "edgeveil.protocol.proxy_rounds:Collection.verdict",
        "max(self._quorum(), self.floor) -> self._quorum()",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_batches.py::test_a_quorum_below_the_floor_does_not_end_a_round_early",
    ),
    "choice-below-the-floor": Mutant(
        "edgeveil.protocol.proxy_rounds:ProxyMasks._task",
        "min(map(len, sets)) < collection.floor // len(sets) or len(chosen) < collection.floor"
        " -> False",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_masks.py::test_the_choice_follows_the_checks_and_its_floor_holds",
    ),
    # --- h and groups ---
    "h-of-all-groups": Mutant(
        "edgeveil.jobs.plan:honest_devices",
        "job.round.min_batch // (sets or job.aggregation.groups) -> job.round.min_batch",
        "tests/unit/edgeveil_lab/audit/test_audit_shared_attacks.py::test_the_sum_of_a_group_has_the_share_of_its_own_uploads_honest",
    ),
    "sum-of-parts-priced-as-twice": Mutant(
        "edgeveil.privacy.events:SharedGaussian.together",
        "self.honest * one.sigma_squared -> 2 * self.honest * one.sigma_squared",
        "tests/unit/edgeveil/privacy/test_privacy_shared.py::test_a_device_draws_its_part_and_sums_of_parts_have_the_whole_noise",
    ),
    "part-of-half-the-variance": Mutant(
        "edgeveil.privacy.gaussian_mechanism:shared_gaussian",
        "2 * honest -> 4 * honest",
        "tests/unit/edgeveil/privacy/test_privacy_shared.py::test_parts_are_the_least_even_ones_that_add_up_to_the_noise",
    ),
    "smaller-batch-than-the-jobs": Mutant(
        "edgeveil_edge.round_work:check_package",
        "manifest.min_batch < context.min_batch -> False",
        "tests/unit/edgeveil_edge/test_answer.py::test_a_round_that_departs_from_its_job_is_refused",
    ),
    "groups-of-one-upload": Mutant(
        "edgeveil.jobs.compile:_groups",
        "job.round.min_batch < 2 * groups -> False",
        "tests/unit/edgeveil/jobs/test_config_secure.py::test_what_cannot_be_summed_is_refused_with_its_key",
    ),
    "groups-below-the-floor": Mutant(
        "edgeveil.protocol.proxy_rounds:ProxyMasks.why_not",
        "header.min_batch < header.sets * floor -> False",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_masks.py::test_sets_below_the_proxys_own_floor_are_refused_with_the_round",
    ),
    "set-of-few-is-summed": Mutant(
        "edgeveil.protocol.proxy_rounds:ProxyMasks._task",
        "min(map(len, sets)) < collection.floor // len(sets) -> False",
        "tests/unit/edgeveil/protocol/test_protocol_proxy_masks.py::test_each_set_has_masks_of_its_own_and_keeps_its_part_of_the_floor",
    ),
    # --- epsilon totals ---
    "early-end-counts-what-was-released": Mutant(
        "edgeveil.privacy.policy:JobRequest.counted",
        "event.purpose in fixed -> False",
        "tests/unit/edgeveil/privacy/test_privacy_ledger.py::test_what_was_committed_survives_a_new_process",
    ),
    "early-end-leaves-out-questions": Mutant(
        "edgeveil.privacy.policy:JobRequest.counted",
        "{TRAIN, INFER} if ASK in fixed else {ASK} -> {TRAIN, INFER} if ASK in fixed else set()",
        "tests/unit/edgeveil/privacy/test_privacy_composition.py::test_an_early_end_counts_questions_with_all_else_that_reads_the_same_records",
    ),
    "open-job-counts-what-was-released": Mutant(
        "edgeveil.privacy.ledger_chain:JobAccount.counting",
        "self.is_open -> False",
        "tests/unit/edgeveil/privacy/test_privacy_ledger.py::test_an_open_job_holds_its_reservation_and_a_closed_one_without_releases_nothing",
    ),
    "release-without-room": Mutant(
        "edgeveil.privacy.policy:JobRequest.admit",
        "used[event] + count -> count",
        "tests/unit/edgeveil/privacy/test_privacy_ledger.py::test_the_release_past_the_reserved_participations_is_refused",
    ),
    "taint-forgotten": Mutant(
        "edgeveil.privacy.ledger_chain:spent",
        "weakest([result.status, taint]) -> result.status",
        "tests/unit/edgeveil/privacy/test_privacy_ledger.py::test_unproven_events_need_consent_and_taint_the_data_set_for_good",
    ),
    "epsilon-rounded-down": Mutant(
        "edgeveil.privacy.guarantee:up",
        "ROUND_CEILING -> ROUND_FLOOR",
        "tests/unit/edgeveil/privacy/test_privacy_guarantee.py::test_figures_are_rounded_up",
    ),
    "answers-of-a-copy-not-counted": Mutant(
        "edgeveil.privacy.ledger_chain:JobAccount.counted",
        "self.elsewhere -> False",
        "tests/unit/edgeveil/privacy/test_privacy_ledger.py::test_a_job_that_a_copy_answered_counts_with_all_that_it_reserved",
    ),
    # --- policy limits ---
    "claims-let-in-unasked": Mutant(
        "edgeveil.jobs.compile:_claims",
        "unproven and (not plan.job.privacy.accept_unproven) -> False",
        "tests/unit/edgeveil/jobs/test_config_refusals.py::test_what_cannot_work_is_refused_with_file_line_key_and_reason",
    ),
    "lifetime-of-this-job-alone": Mutant(
        "edgeveil.privacy.policy:check_job",
        "training.limited -> priced.training.limited",
        "tests/unit/edgeveil/privacy/test_privacy_ledger.py::test_an_open_job_holds_its_reservation_and_a_closed_one_without_releases_nothing",
    ),
    "collusion-of-this-job-alone": Mutant(
        "edgeveil.privacy.policy:check_job",
        "training.limited_if_colluding -> priced.training.limited_if_colluding",
        "tests/unit/edgeveil/privacy/test_privacy_shared.py::test_the_owner_bounds_both_prices",
    ),
    "fewer-devices-than-the-owner-asks-for": Mutant(
        "edgeveil_edge.consent:consent",
        "manifest.selected -> None",
        "tests/unit/edgeveil_edge/test_consent.py::test_each_key_refuses_before_a_record_is_read",
    ),
    "unshuffled-although-not-accepted": Mutant(
        "edgeveil_edge.consent:refusals",
        "job.proxy.shuffle == 'none' -> False",
        "tests/unit/edgeveil_edge/test_consent.py::test_uploads_in_their_order_need_the_owners_word",
    ),
    "claimed-although-not-accepted": Mutant(
        "edgeveil.privacy.policy:_check_status",
        "not allowed -> False",
        "tests/unit/edgeveil/privacy/test_privacy_ledger.py::test_unproven_events_need_consent_and_taint_the_data_set_for_good",
    ),
    # --- receipt ---
    "answer-at-another-price": Mutant(
        "edgeveil_edge.round_work:check_price",
        "sorted(map(repr, events)) != sorted(map(repr, price)) -> False",
        "tests/unit/edgeveil_edge/test_answer.py::test_what_was_computed_at_another_price_than_the_job_says_is_not_sent",
    ),
    "receipt-made-by-anybody": Mutant(
        "edgeveil.privacy.ledger:Receipt.__post_init__",
        "self.token is not _MADE_BY_LEDGER -> False",
        "tests/unit/edgeveil/privacy/test_privacy_ledger.py::test_a_receipt_comes_only_from_the_ledger",
    ),
    "sealed-under-another-receipt": Mutant(
        "edgeveil_edge.sealing:seal_release",
        "not receipt.covers(payload) -> False",
        "tests/unit/edgeveil_edge/test_answer.py::test_nothing_is_sealed_without_the_ledgers_receipt_for_these_tensors",
    ),
    "second-draw-published": Mutant(
        "edgeveil_edge.round_work:release",
        "receipt.covers(payload) -> True",
        "tests/unit/edgeveil_edge/test_answer.py::test_what_is_released_is_what_the_ledger_held_first",
    ),
    "receipt-for-a-second-draw": Mutant(
        "edgeveil.privacy.ledger:Ledger.commit",
        "self._receipt(job_id, round, stored) -> self._receipt(job_id, round, payload)",
        "tests/unit/edgeveil/privacy/test_privacy_ledger.py::test_a_retry_returns_the_first_payload_and_costs_nothing",
    ),
    # --- split by record ---
    "halves-follow-from-the-others": Mutant(
        "edgeveil.data.split:split_once",
        "row.tobytes() -> row.tobytes() + str(len(x)).encode()",
        "tests/unit/edgeveil/parts/partitions/test_partition.py::test_split_is_disjoint_stable_and_one_record_moves_no_other",
    ),
    "halves-without-the-owners-key": Mutant(
        "edgeveil.data.split:split_once",
        'hmac.digest(split_key, row.tobytes(), "sha256")'
        ' -> hmac.digest(bytes(32), row.tobytes(), "sha256")',
        "tests/unit/edgeveil/parts/partitions/test_partition.py::test_the_share_is_about_kept_and_depends_on_the_key",
    ),
    "halves-follow-from-the-schema": Mutant(
        "edgeveil.parts.own_records:halves",
        "records.places -> records.x",
        "tests/unit/edgeveil/data/test_encoding.py::test_two_schemas_split_and_deal_alike_where_labels_are_alike",
    ),
    "persons-parted-between-training-and-evaluation": Mutant(
        "edgeveil.data.encoding:RowEncoder._places",
        "self._digests if self._person is None else self._persons -> self._digests",
        "tests/unit/edgeveil/data/test_persons.py::test_all_records_of_a_person_have_one_fate_and_a_person_removed_moves_no_other",
    ),
    "slots-by-record-beside-persons": Mutant(
        "edgeveil.data.split:sample_slots",
        "choosing is not None -> False",
        "tests/unit/edgeveil/data/test_persons.py::test_a_persons_records_share_a_slot_and_one_at_most_counts",
    ),
    "another-jobs-share-moves-records": Mutant(
        "edgeveil_edge.round_work:RoundWork._check_split",
        "float(fixed) != share -> False",
        "tests/unit/edgeveil_edge/test_device_host.py::test_records_split_once_are_not_split_elsewhere",
    ),
    "a-question-is-free-for-evaluation-records": Mutant(
        "edgeveil.privacy.policy:of_account",
        "(purpose, ASK) -> (purpose, ASK if purpose == TRAIN else None)",
        "tests/unit/edgeveil/privacy/test_privacy_composition.py::test_a_question_is_in_the_accounts_of_training_and_of_evaluation_records",
    ),
    "slots-follow-from-the-order": Mutant(
        "edgeveil.data.split:sample_slots",
        "rank < ranks[slot] -> True",
        "tests/unit/edgeveil/parts/partitions/test_partition.py::test_the_order_of_the_records_does_not_matter",
    ),
    "held-back-by-index": Mutant(
        "edgeveil.parts.partitions.dealing:hold_back_share",
        "record_words(records.places, SPLIT_SEED, RECORD_HELD)"
        " -> record_words(np.arange(len(records) * 1.0)[:, None], SPLIT_SEED, RECORD_HELD)",
        "tests/contract/test_own_records.py::test_nor_does_it_in_another_form",
    ),
    "dealt-by-index": Mutant(
        "edgeveil.parts.partitions.dealing:deal_own",
        "record_words(records.places, seed, RECORD_DEALT)"
        " -> record_words(np.arange(len(records) * 1.0)[:, None], seed, RECORD_DEALT)",
        "tests/contract/test_own_records.py::test_nor_does_it_in_another_form",
    ),
    "inferences-of-both-halves": Mutant(
        "edgeveil_edge.compute:Computer.compute",
        "evaluation.x -> np.concatenate([training.x, evaluation.x])",
        "tests/unit/edgeveil_edge/test_answer.py::test_training_records_change_nothing_of_what_evaluation_records_give",
    ),
    "counts-of-training-records": Mutant(
        "edgeveil_edge.compute:Computer.compute",
        "asked.answer(session, weights, evaluation, noise, row_s)"
        " -> asked.answer(session, weights, training, noise, row_s)",
        "tests/unit/edgeveil_edge/test_answer.py::test_training_records_change_nothing_of_what_evaluation_records_give",
    ),
    "training-on-evaluation-records": Mutant(
        "edgeveil_edge.compute:Computer.compute",
        "plan.device.answer(one.round, tensors, training, noise, self._site.device)"
        " -> plan.device.answer(one.round, tensors, evaluation, noise, self._site.device)",
        "tests/unit/edgeveil_edge/test_answer.py::test_evaluation_records_change_nothing_of_what_training_records_give",
    ),
    # --- deadline moment ---
    "answer-leaves-as-its-work-ends": Mutant(
        "edgeveil.protocol.device_round:DeviceRound.sealed",
        "self._moment.wait_s(now_s) -> 0.0",
        "tests/unit/edgeveil/protocol/test_protocol_device_moment.py::test_the_length_of_the_work_does_not_show",
    ),
    "moment-counts-from-the-works-end": Mutant(
        "edgeveil.protocol.device_round:Moment.wait_s",
        "self.leaves_s - now_s -> self.leaves_s - self.begun_s",
        "tests/unit/edgeveil/protocol/test_protocol_device_moment.py::test_the_length_of_the_work_does_not_show",
    ),
    "work-goes-on-past-the-moment": Mutant(
        "edgeveil.protocol.device_round:AnswerWindow.moment",
        "span_s * WORK_SHARE -> span_s",
        "tests/unit/edgeveil/protocol/test_protocol_device_moment.py::test_work_always_ends_before_the_moment_and_the_moment_within_the_budget",
    ),
    "turn-ends-as-its-work-ends": Mutant(
        "edgeveil.protocol.device_round:DeviceRounds.worked",
        "not isinstance(result, SealedAnswer) or result.at_once -> True",
        "tests/unit/edgeveil/protocol/test_protocol_device_several_jobs.py::test_one_computes_after_the_other_and_begins_when_the_time_of_the_first_has_passed",
    ),
    "trial-begins-as-an-answer-is-there": Mutant(
        "edgeveil_edge.compute_process:ComputeProcess._let_answers_end",
        "self._answers_until_s -> 0.0",
        "tests/unit/edgeveil_edge/test_compute_process.py::test_a_trial_waits_for_the_time_of_an_answer_and_not_for_the_answer",
    ),
    "reading-shows-how-long-it-took": Mutant(
        "edgeveil_edge.compute_process:ComputeProcess.read_ahead",
        "self.shared == 1 -> False",
        "tests/unit/edgeveil_edge/test_compute_process.py::test_reading_by_a_schema_takes_a_public_time_whatever_there_is_to_read",
    ),
    "late-answers-are-taken": Mutant(
        "edgeveil_edge.compute_process:ComputeProcess._receive",
        "left_s > 0 -> True",
        "tests/unit/edgeveil_edge/test_compute_process.py::test_a_box_that_is_late_with_the_empty_answer_sends_that_late",
    ),
    # --- derived noise ---
    "same-noise-in-all-rounds": Mutant(
        "edgeveil.privacy.derived:noise_context_key",
        'context.round.to_bytes(8, "big") -> bytes(8)',
        "tests/unit/edgeveil/privacy/test_privacy_derived.py::test_a_question_is_all_of_its_parts",
    ),
    "same-noise-under-another-model": Mutant(
        "edgeveil.privacy.derived:noise_context_key",
        "context.package_digest -> bytes(32)",
        "tests/unit/edgeveil/privacy/test_privacy_derived.py::test_a_question_is_all_of_its_parts",
    ),
    "same-noise-in-all-jobs": Mutant(
        "edgeveil.privacy.derived:noise_context_key",
        'context.job_id.encode() -> b""',
        "tests/unit/edgeveil/privacy/test_privacy_derived.py::test_a_question_is_all_of_its_parts",
    ),
    "all-draws-of-an-answer-alike": Mutant(
        "edgeveil.privacy.derived:DerivedRandom.bound",
        'self._draws.to_bytes(_NUMBER_BYTES, "big") -> bytes(_NUMBER_BYTES)',
        "tests/unit/edgeveil/privacy/test_privacy_derived.py::test_streams_of_neighbouring_sums_and_draws_are_independent",
    ),
    "noise-of-another-sum-alike": Mutant(
        "edgeveil.privacy.derived:DerivedRandom.bound",
        'little.tobytes() -> b""',
        "tests/unit/edgeveil/privacy/test_privacy_derived.py::test_every_mechanism_binds_its_noise_to_its_values",
    ),
    "two-halves-draw-alike": Mutant(
        "edgeveil.privacy.derived:_first_head",
        'named.encode() -> b""',
        "tests/unit/edgeveil/privacy/test_privacy_derived.py::test_a_draw_is_bound_to_law_values_shape_and_type",
    ),
    "samples-repeat": Mutant(
        "edgeveil.privacy.derived:DerivedRandom.__call__",
        "self._samples(count) -> keystream(self._key)(count)",
        "tests/unit/edgeveil/privacy/test_privacy_derived.py::test_the_samples_go_on_and_do_not_repeat",
    ),
    # --- grid rounding ---
    "records-rounded-to-nearest": Mutant(
        "edgeveil.privacy.grid:quantise",
        "np.trunc(clip_rows(rows, bound) * 2.0**bits)"
        " -> np.rint(clip_rows(rows, bound) * 2.0**bits)",
        "tests/unit/edgeveil/privacy/test_privacy_grid.py::test_quantising_rounds_toward_zero",
    ),
    "sums-beyond-exact-floats": Mutant(
        "edgeveil.privacy.grid:exact_matmul",
        "_piece(left.shape[1], max(1, _largest(left) * _largest(right))) -> max(1, left.shape[1])",
        "tests/unit/edgeveil/privacy/test_privacy_grid.py::test_a_sum_past_two_to_the_53_is_cut_into_exact_pieces",
    ),
    "norm-follows-from-the-batch": Mutant(
        "edgeveil.privacy.grid:row_norms",
        "range(0, len(padded), BLOCK_ROWS) -> range(0, len(padded), max(1, len(padded)))",
        "tests/unit/edgeveil/privacy/test_privacy_grid.py::test_a_norm_does_not_depend_on_the_batch",
    ),
    # --- shuffle ---
    "groups-in-one-order": Mutant(
        "edgeveil_proxy.shuffle:_places",
        "not task.keep_order -> not task.keep_order and group == 0",
        "tests/unit/edgeveil_proxy/test_proxy_shuffle.py::test_every_group_is_permuted_alone",
    ),
    "masked-uploads-as-they-came": Mutant(
        "edgeveil_proxy.shuffle:MaskedStream._add",
        "not task.keep_order -> False",
        "tests/unit/edgeveil_proxy/test_proxy_shuffle.py::test_each_lot_has_an_order_of_its_own_behind_those_before",
    ),
    "other-groups-beside-their-masks": Mutant(
        "edgeveil_proxy.shuffle:MaskedStream.finish",
        "_places(task, shuffle, but=task.together)"
        " -> _places(task, lambda places: None, but=task.together)",
        "tests/unit/edgeveil_proxy/test_proxy_shuffle.py::test_other_groups_wait_are_permuted_alone_and_stand_apart",
    ),
    "order-of-arrival-accepted": Mutant(
        "edgeveil_edge.round_work:check_package",
        "manifest.shuffled != context.shuffled -> False",
        "tests/unit/edgeveil_edge/test_answer.py::test_a_round_that_departs_from_its_job_is_refused",
    ),
    # --- composition over a life ---
    "delta-not-shared-out": Mutant(
        "edgeveil.privacy.composition:least_limit",
        "GAUSSIAN_SHARE * delta -> delta",
        "tests/unit/edgeveil/privacy/test_privacy_composition.py::test_the_regions_share_delta",
    ),
    "each-order-with-the-delta-of-all": Mutant(
        "edgeveil.privacy.composition:least_limit",
        "MOMENTS_SHARE * delta / len(FILTER_ORDERS) -> MOMENTS_SHARE * delta",
        "tests/unit/edgeveil/privacy/test_privacy_composition.py::test_the_regions_share_delta",
    ),
    "equal-jobs-counted-once": Mutant(
        "edgeveil.privacy.composition:_by_gaussians",
        "count * event.mu ** 2 -> event.mu ** 2",
        "tests/unit/edgeveil/privacy/test_privacy_composition.py::test_twenty_jobs_cost_what_their_noise_composes_to",
    ),
    "a-coin-for-half-its-mu": Mutant(
        "edgeveil.privacy.composition:pure_mu",
        "1 / (1 + math.exp(value)) -> 1 / (1 + math.exp(value / 2))",
        "tests/unit/edgeveil/privacy/test_privacy_composition.py::test_a_pair_of_gaussians_dominates_each_coin",
    ),
    "coarse-noise-composed-as-gaussian": Mutant(
        "edgeveil.privacy.composition:_by_gaussians",
        "grid > MOST_GRID -> False",
        "tests/unit/edgeveil/privacy/test_privacy_composition.py::test_noise_on_a_coarse_grid_is_admitted_by_its_moments",
    ),
    "a-total-below-one-job": Mutant(
        "edgeveil.privacy.policy:_composed",
        "max(own, default=0.0) -> 0.0",
        "tests/unit/edgeveil/privacy/test_privacy_composition.py::test_a_wider_limit_refuses_no_job_and_no_total_is_below_one_job",
    ),
    # --- mixed totals ---
    "devices-and-records-added-up": Mutant(
        "edgeveil.privacy.policy:_composed",
        "len(units) > 1 -> False",
        "tests/unit/edgeveil/privacy/test_privacy_mixed_units.py::test_if_all_others_collude_a_total_is_what_it_costs_one_record",
    ),
    "colluding-as-if-they-did-not": Mutant(
        "edgeveil.privacy.policy:_total",
        "_mapped(as_single, counts) -> _mapped(as_summed, counts)",
        "tests/unit/edgeveil/privacy/test_privacy_mixed_units.py::test_if_all_others_collude_a_total_is_what_it_costs_one_record",
    ),
    "record-of-a-colluding-device-unpriced": Mutant(
        "edgeveil.privacy.accountant:epsilon",
        "_among_others(single, delta) -> None",
        "tests/unit/edgeveil/privacy/test_privacy_shared.py::test_of_a_devices_update_one_record_costs_twice_in_both",
    ),
    # --- trial ---
    "tried-at-the-jobs-own-count": Mutant(
        "edgeveil_edge.compute:trial_seconds",
        "site.policy.max_records -> data.nominal_records",
        "tests/unit/edgeveil_edge/test_planned_overruns.py::test_every_kind_of_round_is_tried_on_as_many_records_as_the_owner_allows",
    ),
    "trial-without-a-margin": Mutant(
        "edgeveil_edge.round_work:RoundWork._too_slow",
        "TRIAL_MARGIN * trial.needed_s -> trial.needed_s",
        "tests/unit/edgeveil_edge/test_planned_overruns.py::test_a_job_whose_answer_fits_once_and_not_twice_is_declined",
        nth=1,
    ),
    "more-records-than-were-tried": Mutant(
        "edgeveil.parts.own_records:at_most",
        "len(training) + len(evaluation) <= most -> True",
        "tests/unit/edgeveil_edge/test_planned_overruns.py::test_of_more_records_than_the_owner_says_so_many_are_used",
    ),
    "most-by-index": Mutant(
        "edgeveil.data.split:kept_places",
        'hmac.digest(key, context(RECORD_RANK, row.tobytes()), "sha256")'
        ' -> hmac.digest(key, context(RECORD_RANK, str(index).encode()), "sha256")',
        "tests/unit/edgeveil_edge/test_planned_overruns.py::test_of_more_records_than_the_owner_says_so_many_are_used",
    ),
    "slow-runs-not-ended": Mutant(
        "edgeveil_edge.compute:Computer.compute",
        "one.allowed_s / (2 * SLOW_RECORDS) -> math.inf",
        "tests/unit/edgeveil_edge/test_planned_overruns.py::test_a_run_has_the_same_time_however_many_records_the_owner_allows",
    ),
    "overruns-without-end": Mutant(
        "edgeveil_edge.round_work:RoundWork._follow",
        "trial.overruns >= MOST_OVERRUNS -> False",
        "tests/unit/edgeveil_edge/test_planned_overruns.py::test_overruns_first_lengthen_the_budget_and_in_the_end_decline_the_job",
    ),
    # --- form ---
    "reading-ends-what-keeps-records": Mutant(
        "edgeveil_edge.compute_worker:ComputeServer.change_state",
        "read_in_fork(lambda: computer.records(*reading), limit_s) -> computer.records(*reading)",
        "tests/unit/edgeveil_edge/test_compute_process.py::test_records_that_cannot_be_read_make_no_answer_wait",
    ),
    "a-record-decides-how-texts-are-packed": Mutant(
        "edgeveil.parts.sources.tables:_once",
        "_AS_DICTIONARY.issuperset(one.column(at).encodings) -> True",
        "tests/unit/edgeveil/parts/sources/test_data_parquet.py::test_how_a_writer_packs_its_texts_changes_no_record",
    ),
    "what-cannot-be-read-is-tried-again": Mutant(
        "edgeveil_edge.compute:Computer.records",
        "self._records.pop(reading, None) -> None",
        "tests/unit/edgeveil_edge/test_compute_process.py::test_records_that_cannot_be_read_make_no_answer_wait",
    ),
    "a-record-that-ends-its-process-counts-as-late": Mutant(
        "edgeveil_edge.compute_process:ComputeProcess._with_records",
        "(without, late) -> (without, bool(missing) and in_time)",
        "tests/unit/edgeveil_edge/test_compute_process.py::test_whatever_a_record_makes_the_computation_do_the_answer_is_that_without_records",
    ),
    "graph-steered-by-a-record": Mutant(
        "edgeveil.evaluation.graph_check:GraphNode.check",
        "steering not in constants -> False",
        "tests/unit/edgeveil/evaluation/test_graph_check.py::test_places_and_shapes_come_from_constants",
    ),
    "records-become-whole-numbers": Mutant(
        "edgeveil.evaluation.graph_check:GraphNode._check_values",
        "self._cast_to() not in _CAST_TO -> False",
        "tests/unit/edgeveil/evaluation/test_graph_check.py::test_values_never_become_whole_numbers",
    ),
    "rows-beyond-a-table": Mutant(
        "edgeveil.evaluation.graph_check:GraphNode.check_lookup",
        "highest < rows.get(table, 0) -> True",
        "tests/unit/edgeveil/evaluation/test_graph_check.py::test_a_lookup_that_misses_the_safe_pattern_is_refused",
    ),
    "rows-of-no-number": Mutant(
        "edgeveil.evaluation.graph_check:GraphNode.cast_indices",
        "nan.inputs == where.inputs[2:] -> True",
        "tests/unit/edgeveil/evaluation/test_graph_check.py::test_a_lookup_that_misses_the_safe_pattern_is_refused",
    ),
    "rows-below-zero": Mutant(
        "edgeveil.evaluation.graph_check:GraphNode.cast_indices",
        "0 <= low <= high -> low <= high",
        "tests/unit/edgeveil/evaluation/test_graph_check.py::test_a_lookup_that_misses_the_safe_pattern_is_refused",
    ),
    "statistics-of-batches-under-noise": Mutant(
        "edgeveil.jobs.compile:_model",
        "METHODS[method].privacy != 'none' -> False",
        "tests/unit/edgeveil/parts/models/test_models_trained.py::test_statistics_that_would_bear_noise_or_mix_records_are_refused",
    ),
    "power-of-any-time": Mutant(
        "edgeveil.evaluation.graph_check:GraphNode._check_values",
        "float(values[0]) not in _EXPONENTS -> False",
        "tests/unit/edgeveil/evaluation/test_graph_check.py::test_other_powers_are_refused",
    ),
    "record-run-where-it-lies": Mutant(
        "edgeveil.evaluation.onnx_session:OnnxModel.answers",
        "aligned(given[start : start + BATCH_RECORDS])"
        " -> given[start : start + BATCH_RECORDS].astype(np.float32, copy=False)",
        "tests/unit/edgeveil/evaluation/test_evaluation_inference.py::test_neither_a_records_nor_a_weights_place_in_memory_changes_a_bit",
    ),
    "text-makes-a-column-unreadable": Mutant(
        "edgeveil.parts.sources.tables:column_numbers",
        "holds_numbers(column.type) -> True",
        "tests/contract/test_forms.py::test_one_text_among_numbers_makes_no_table_unreadable",
    ),
    "text-makes-an-array-unreadable": Mutant(
        "edgeveil.data.records:plain_numbers",
        "number_in_text(str(text)) -> float(str(text))",
        "tests/contract/test_forms.py::test_one_text_among_numbers_makes_no_table_unreadable",
    ),
    "line-of-another-width-ends-the-reading": Mutant(
        "edgeveil.parts.sources.tables:_row",
        "[missing] * len(named) -> [missing]",
        "tests/unit/edgeveil/parts/sources/test_sources.py::test_a_line_out_of_form_drops_its_record_alone",
    ),
    "row-of-another-width-ends-the-reading": Mutant(
        "edgeveil.data.encoding:RowEncoder.add",
        'cells[at].strip() if whole else "" -> cells[at].strip()',
        "tests/unit/edgeveil/data/test_encoding.py::test_what_is_not_as_the_schema_says_is_counted_and_never_shown",
    ),
    "names-of-a-job-before-the-files": Mutant(
        "edgeveil.parts.sources.tables:encode_csv",
        "None if origin.header else encoding(list(schema.header or ()), str(file))"
        " -> None if schema.header is None else encoding(list(schema.header), str(file))",
        "tests/contract/test_forms.py::test_a_file_s_own_names_stand_before_those_that_a_job_makes_up",
    ),
    "a-record-taken-for-names": Mutant(
        "edgeveil.parts.sources.tables:_require_no_number",
        "cell and _number(cell, read) is not None -> False",
        "tests/contract/test_forms.py::test_a_record_that_an_owner_wrongly_calls_a_line_of_names_is_taken_for_none",
    ),
    "header-read-off-the-file": Mutant(
        "edgeveil.parts.sources.tables:encode_csv",
        "origin.header -> schema.header is None"
        " or schema.header[0] in next(text_rows(file, form))[1]",
        "tests/contract/test_forms.py::test_a_job_that_names_a_file_s_columns_by_cells_is_answered_alike",
        nth=2,
    ),
    "a-quote-reaches-other-records": Mutant(
        "edgeveil.data.table_form:rows_in",
        "form.multiline -> True",
        "tests/unit/edgeveil/data/test_table_form.py::test_a_quote_spans_lines_only_where_the_owner_says_so",
    ),
    "header-not-asked-for": Mutant(
        "edgeveil.parts.sources.tables:require_columns",
        "header is None -> False",
        "tests/contract/test_forms.py::test_a_job_that_names_a_file_s_columns_by_cells_is_answered_alike",
    ),
    "owners-code-that-fails-declines": Mutant(
        "edgeveil.parts.sources.arrays:read_python",
        "RecordsError -> DataError",
        "tests/contract/test_forms.py::test_owner_s_code_that_fails_for_a_record_is_answered_for_as_without_records",
    ),
    "too-many-records-decline": Mutant(
        "edgeveil.data.records:require_room",
        "RecordsError -> DataError",
        "tests/contract/test_forms.py::test_records_past_the_limit_of_memory_change_not_whether_a_device_answers_and_pays",
    ),
    "a-width-tells-how-many-records": Mutant(
        "edgeveil.parts.own_records:own_records",
        "limit if whole else None -> None",
        "tests/contract/test_forms.py::test_however_wide_a_schema_makes_records_those_of_least_rank_are_read",
    ),
    "rows-drawn-by-how-many-there-are": Mutant(
        "edgeveil.data.encoding:RowEncoder._keep_limit",
        "limit.kept(places)"
        " -> np.random.default_rng(len(digests)).permutation(len(digests))[: limit.count]",
        "tests/contract/test_forms.py::test_however_wide_a_schema_makes_records_those_of_least_rank_are_read",
    ),
    "pictures-drawn-by-how-many-there-are": Mutant(
        "edgeveil.parts.sources.images:_read",
        "origin.limit.kept(places)"
        " -> np.sort(np.random.default_rng(len(places)).permutation(len(places))[:origin.limit"
        ".count])",
        "tests/contract/test_forms.py::test_however_wide_a_schema_makes_records_those_of_least_rank_are_read",
    ),
    "one-name-makes-names-of-all-labels": Mutant(
        "edgeveil.parts.sources.arrays:_by_name",
        "_label(str(text), value)"
        " -> _label(str(text), value if y.dtype.kind in 'biuf' else math.nan)",
        "tests/unit/edgeveil/data/test_encoding.py::test_no_label_of_an_array_changes_what_another_means",
    ),
    "bytes-are-no-names": Mutant(
        "edgeveil.parts.sources.arrays:_by_name",
        "y.dtype.kind == 'S' -> False",
        "tests/unit/edgeveil/data/test_encoding.py::test_no_label_of_an_array_changes_what_another_means",
    ),
    "whole-numbers-past-what-floats-tell-apart": Mutant(
        "edgeveil.data.encoding:cell_text",
        "isinstance(value, int) and abs(value) >= _WHOLE -> False",
        "tests/unit/edgeveil/data/test_encoding.py::test_no_cell_of_a_column_changes_the_text_of_another",
    ),
    "decimals-as-long-as-the-longest": Mutant(
        "edgeveil.data.encoding:cell_text",
        "places.rstrip('0') -> places",
        "tests/unit/edgeveil/data/test_encoding.py::test_no_cell_of_a_column_changes_the_text_of_another",
    ),
    # --- values that nobody listed ---
    "heavy-hitters-threshold-of-one-value": Mutant(
        "edgeveil.statistics.heavy_hitters:threshold",
        "FALSE_POSITIVES / (KEPT + 1) -> FALSE_POSITIVES",
        "tests/unit/edgeveil/statistics/test_heavy_hitters.py::test_a_false_value_is_as_rare_as_is_said",
    ),
    "heavy-hitters-threshold-of-single-counts": Mutant(
        "edgeveil.statistics.heavy_hitters:HeavyHitters.answer",
        "sums[:KEPT] > least -> sums[:KEPT] > 0",
        "tests/unit/edgeveil/statistics/test_heavy_hitters.py::test_a_false_value_is_as_rare_as_is_said",
    ),
    "heavy-hitters-record-under-two-prefixes": Mutant(
        "edgeveil.statistics.heavy_hitters:HeavyHitters.of",
        "np.minimum(at[once], self.cells)"
        " -> np.minimum(np.append(at[once], at[once] ^ 1), self.cells)",
        "tests/unit/edgeveil/statistics/test_heavy_hitters.py::test_one_record_adds_no_more_than_is_priced",
    ),
    "heavy-hitters-word-counted-twice": Mutant(
        "edgeveil.statistics.heavy_hitters:_once",
        "np.unique(records << 32 | cells, return_index=True)[1] -> np.arange(len(cells))",
        "tests/unit/edgeveil/statistics/test_heavy_hitters.py::test_a_record_of_several_words_adds_no_more_than_is_priced",
    ),
    "heavy-hitters-price-of-one-byte": Mutant(
        "edgeveil.statistics.heavy_hitters:HeavyHitters.bound",
        "float(most * _SIGNS * self.length) -> float(most * _SIGNS)",
        "tests/unit/edgeveil/statistics/test_heavy_hitters.py::test_one_record_adds_no_more_than_is_priced",
    ),
    "heavy-hitters-any-broadcast": Mutant(
        "edgeveil.statistics.heavy_hitters:HeavyHitters.about",
        "ordered.all() -> True",
        "tests/unit/edgeveil/statistics/test_heavy_hitters.py::test_another_broadcast_is_refused_before_a_record_is_read",
    ),
    "heavy-hitters-record-among-others-too": Mutant(
        "edgeveil.statistics.heavy_hitters:HeavyHitters.of",
        "np.append(found, [np.count_nonzero(present), missing])"
        " -> np.append(found, [np.count_nonzero(there.any(axis=1)), missing])",
        "tests/unit/edgeveil/statistics/test_heavy_hitters.py::test_one_record_adds_no_more_than_is_priced",
    ),
    "heavy-hitters-words-without-their-record": Mutant(
        "edgeveil.statistics.heavy_hitters:HeavyHitters.bound",
        "most + 1 if self.words and self.level == CANDIDATES else most -> most",
        "tests/unit/edgeveil/statistics/test_heavy_hitters.py::test_a_record_of_several_words_adds_no_more_than_is_priced",
    ),
    "shuffled-gaussians-of-one-neighbour": Mutant(
        "edgeveil.jobs.shuffle_amplification:_in_place",
        "2 * event.sensitivity_steps -> event.sensitivity_steps",
        "tests/unit/edgeveil/jobs/test_shuffle_amplification.py::test_gaussian_uploads_of_whole_devices_gain_in_large_fleets",
    ),
    "shuffled-gaussians-grow-as-one-upload": Mutant(
        "edgeveil.privacy.amplification:approximate_epsilon",
        "(1 + math.exp(most)) * 1.5 * devices -> (1 + math.exp(most)) * 1.5",
        "tests/unit/edgeveil/jobs/test_shuffle_amplification.py::test_gaussian_uploads_of_whole_devices_gain_in_large_fleets",
    ),
    "statistics-groups-are-free": Mutant(
        "edgeveil.statistics.blocks:Counts.bound",
        "self.group == 1 -> True",
        "tests/unit/edgeveil/statistics/test_statistics.py::test_one_record_adds_no_more_than_is_said",
    ),
    "statistics-missing-in-a-group-of-cells": Mutant(
        "edgeveil.statistics.blocks:Counts.starts",
        "np.append(np.arange(0, self.size - 1, self.group), self.size - 1)"
        " -> np.arange(0, self.size, self.group)",
        "tests/unit/edgeveil/statistics/test_coverage.py::test_missing_records_are_as_certain_beside_empty_cells_as_beside_full_ones",
    ),
    "statistics-groups-known-without-noise": Mutant(
        "edgeveil.statistics.blocks:Counts.covariance",
        "(1 / (sizes + 1)) -> (1 / sizes)",
        "tests/unit/edgeveil/statistics/test_coverage.py::test_counts_from_cells_and_groups_are_those_of_least_squares",
    ),
    "questions-beside-training-of-one-half": Mutant(
        "edgeveil.jobs.job:Job.reading",
        "0.0 -> self.data.evaluation_share",
        "tests/unit/edgeveil/jobs/test_statistics_beside.py::test_records_are_read_raw_to_ask_and_encoded_to_learn",
    ),
    "questions-beside-training-priced-once": Mutant(
        "edgeveil.jobs.plan:Plan.question",
        "max(1, self._times(ASK)) -> 1",
        "tests/unit/edgeveil/jobs/test_statistics_beside.py::test_all_questions_cost_their_epsilon_in_both_accounts",
    ),
    "an-owners-budget-of-questions-ignored": Mutant(
        "edgeveil.privacy.policy:asked_in",
        "event.purpose == ASK -> False",
        "tests/unit/edgeveil_edge/test_consent.py::test_questions_have_a_budget_of_their_own",
    ),
    "statistics-released-as-a-model": Mutant(
        "edgeveil.jobs.plan:Plan.releases",
        "not self.job.data.asks -> True",
        "tests/unit/edgeveil_edge/test_device_host.py::test_a_job_of_statistics_leaves_the_model_in_use_as_it_is",
    ),
    # --- audit in one run ---
    "one-run-audit-without-delta": Mutant(
        "edgeveil.privacy.one_run_audit:_chance",
        "2 * canaries * delta -> 0 * canaries * delta",
        "tests/unit/edgeveil/privacy/test_privacy_one_run_audit.py::test_luck_and_leaks_within_delta_show_nothing",
    ),
    "one-run-audit-without-abstaining": Mutant(
        "edgeveil.privacy.one_run_audit:_chance",
        "guesses(canaries) -> right",
        "tests/unit/edgeveil/privacy/test_privacy_one_run_audit.py::test_luck_and_leaks_within_delta_show_nothing",
    ),
    "refuted-guarantees-complete": Mutant(
        "edgeveil_tools.local.fleet:Simulation._judge",
        "audit.epsilon > printed.epsilon -> False",
        "tests/unit/edgeveil_tools/test_audited_run.py::test_sound_noise_holds_and_nearly_none_fails_the_run[updates]",
    ),
    "an-array-of-objects-declines": Mutant(
        "edgeveil.parts.sources.arrays:_read_npy",
        "RecordsError -> DataError",
        "tests/contract/test_forms.py::test_one_value_that_makes_objects_of_an_array_changes_not_whether_a_device_answers",
    ),
}
