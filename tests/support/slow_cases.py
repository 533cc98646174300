"""Slow tests that only `make slow` runs; quicker cases, or tests of the same parts, stay in the default run."""

SLOW_CASES = {
    "tests/families/test_equal_leaves.py": ("test_natural_gradients_are_exact_for_functions_of_the_leaves[product]",),
    "tests/families/test_restricted.py": (
        "test_the_restricted_direction_keeps_the_gradient_in_the_free_leaves[normal\\u2013gamma]",
    ),
    "tests/federation/test_dask.py": (
        "test_results_equal_those_of_one_process[sequential]",
        "test_a_synchronous_round_of_a_hundred_clients_loses_nobody",
        "test_asynchronous_runs_converge_to_the_same_posterior_in_any_order_of_answers",
    ),
    "tests/federation/test_faults.py": (
        "test_random_network_faults_and_crashes_do_not_change_the_final_posterior[0-random]",
        "test_random_network_faults_and_crashes_do_not_change_the_final_posterior[0-subset]",
        "test_random_network_faults_and_crashes_do_not_change_the_final_posterior[0-residual]",
    ),
    "tests/federation/test_hospitals.py": ("test_answers_in_any_order_end_at_the_same_free_energy",),
    "tests/federation/test_learning.py": (
        "test_a_federated_run_equals_the_run_in_one_process[sequential-collapsed]",
        "test_a_federated_run_equals_the_run_in_one_process[sequential-stochastic]",
        "test_a_federated_run_equals_the_run_in_one_process[asynchronous-stochastic]",
    ),
    "tests/federation/test_serve.py": ("test_networks_and_methods_without_a_solver_run_too[incremental_vi]",),
    "tests/models/test_network.py": (
        "test_the_gradient_summed_draw_by_draw_is_that_of_the_sum[LocalReparameterisation(samples=2)]",
        "test_the_gradient_summed_draw_by_draw_is_that_of_the_sum[MonteCarlo(samples=1)]",
    ),
    "tests/models/test_unknown_noise.py": (
        "test_the_normal_gamma_of_many_rows_is_exact_in_single_precision[2000]",
        "test_closed_form_predictions_agree_with_monte_carlo[product]",
    ),
    "tests/solvers/test_alpha_divergence.py": (
        "test_it_ends_at_a_fixed_point_of_moment_matching[0.5-full]",
        "test_as_alpha_vanishes_it_is_the_maximum_of_the_free_energy",
    ),
    "tests/solvers/test_blockwise.py": ("test_natural_gradients_in_one_leaf_end_where_gradients_do[full-precision]",),
    "tests/solvers/test_fixed_point_solver.py": (
        "test_many_rows_in_single_precision_are_conjugate",
        "test_a_gaussian_process_is_conjugate[100-0.01]",
    ),
    "tests/solvers/test_gradient_solver.py": ("test_noisy_gradients_end_near_the_optimum[draws]",),
    "tests/solvers/test_moment_matching.py": (
        "test_as_alpha_vanishes_it_is_the_damped_fixed_point_for_a_mixture[mean-field]",
        "test_clients_of_one_row_each_converge_to_the_power_ep_solution_by_sites[1.0]",
    ),
    "tests/solvers/test_noisy_moments.py": ("test_small_steps_with_four_draws_per_visit_neither_fail_nor_overshoot",),
    "tests/solvers/test_power_ep.py": (
        "test_as_alpha_vanishes_its_passes_are_the_fixed_points_steps[probit-mean-field-0.3]",
        "test_as_alpha_vanishes_its_passes_are_the_fixed_points_steps[logistic-full-0.3]",
        "test_as_alpha_vanishes_its_passes_are_the_fixed_points_steps[Poisson-mean-field-0.3]",
        "test_tilted_densities_are_integrated_accurately_for_wide_cavities[1.0 counted]",
        "test_tilted_densities_are_integrated_accurately_for_wide_cavities[50.0 counted]",
        "test_clients_end_where_one_client_with_all_rows_does[sequential-full]",
        "test_as_alpha_vanishes_its_passes_are_the_fixed_points_steps[probit-full-0.3]",
    ),
    "tests/test_double_loop.py": ("test_it_converges_without_damping_where_plain_power_ep_oscillates[0.5]",),
    "tests/test_incremental.py": ("test_it_converges_where_stochastic_global_vi_keeps_fluctuating",),
    "tests/test_learning.py": (
        "test_learning_never_lowers_the_bound[linear-coordinate]",
        "test_every_schedule_converges_to_the_same_hyperparameters[synchronous-collapsed]",
        "test_stochastic_learning_converges_from_a_tenth_and_from_ten_times_the_optimum[10.0]",
        "test_the_gradient_assembled_at_a_fixed_point_is_that_of_the_pooled_bound[asynchronous]",
        "test_relevance_is_determined_feature_by_feature[coordinate]",
        "test_linear_regression_in_ten_clients_reaches_the_maximum_of_the_evidence[coordinate]",
        "test_the_prior_scale_of_logistic_regression_is_the_best_of_a_grid",
        "test_single_precision_stays_single_beside_a_model_in_double",
    ),
    "tests/test_mean_field.py": ("test_unknown_noise_has_independent_coefficients_too",),
    "tests/test_methods.py": (
        "test_global_vi_takes_the_steps_of_adam_on_pooled_rows_for_every_number_of_clients[3]",
        "test_global_vi_takes_the_steps_of_adam_on_pooled_rows_for_every_number_of_clients[10]",
    ),
    "tests/test_mistakes.py": ("test_a_solver_that_cannot_move_has_not_converged[solver0-FullGaussian]",),
    "tests/test_noise.py": (
        "test_noise_has_the_requested_shape_and_dtype_for_every_key_type[shape2]",
        "test_noise_has_the_requested_shape_and_dtype_for_every_key_type[shape4]",
    ),
    "tests/test_snep.py": ("test_with_exact_moments_it_converges_to_the_double_loops_solution[two at a time]",),
    "tests/test_stochastic_power_ep.py": (
        "test_as_alpha_vanishes_it_is_mini_batch_global_vi[FullGaussian]",
        "test_the_servers_memory_does_not_grow_with_the_number_of_clients",
        "test_its_fixed_point_for_small_alpha_is_that_of_global_vi",
        "test_as_alpha_vanishes_it_is_mini_batch_global_vi_for_a_mixture",
    ),
    "experiments/tests/test_first_visits.py": ("test_first_visits_with_other_inputs_are_computed[solver]",),
    "experiments/tests/test_runner.py": (
        "test_interrupted_anywhere_and_run_again_ends_in_the_same_table[1]",
        "test_interrupted_anywhere_and_run_again_ends_in_the_same_table[3]",
    ),
}
