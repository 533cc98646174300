"""Slow cases of parametrised tests, which only `make slow` runs; the other cases stay in the default run."""

SLOW_CASES = {
    "tests/families/test_equal_leaves.py": ("test_natural_gradients_are_exact_for_functions_of_the_leaves[product]",),
    "tests/federation/test_dask.py": ("test_results_equal_those_of_one_process[sequential]",),
    "tests/federation/test_learning.py": (
        "test_a_federated_run_equals_the_run_in_one_process[sequential-collapsed]",
        "test_a_federated_run_equals_the_run_in_one_process[sequential-stochastic]",
    ),
    "tests/models/test_network.py": (
        "test_the_gradient_summed_draw_by_draw_is_that_of_the_sum[LocalReparameterisation(samples=2)]",
        "test_the_gradient_summed_draw_by_draw_is_that_of_the_sum[MonteCarlo(samples=1)]",
    ),
    "tests/solvers/test_alpha_divergence.py": ("test_it_ends_at_a_fixed_point_of_moment_matching[0.5-full]",),
    "tests/solvers/test_moment_matching.py": (
        "test_as_alpha_vanishes_it_is_the_damped_fixed_point_for_a_mixture[mean-field]",
    ),
    "tests/solvers/test_power_ep.py": (
        "test_as_alpha_vanishes_its_passes_are_the_fixed_points_steps[probit-mean-field-0.3]",
        "test_as_alpha_vanishes_its_passes_are_the_fixed_points_steps[logistic-full-0.3]",
        "test_as_alpha_vanishes_its_passes_are_the_fixed_points_steps[Poisson-mean-field-0.3]",
        "test_tilted_densities_are_integrated_accurately_for_wide_cavities[1.0 counted]",
        "test_tilted_densities_are_integrated_accurately_for_wide_cavities[50.0 counted]",
    ),
    "tests/test_double_loop.py": ("test_it_converges_without_damping_where_plain_power_ep_oscillates[0.5]",),
    "tests/test_learning.py": (
        "test_learning_never_lowers_the_bound[linear-coordinate]",
        "test_every_schedule_converges_to_the_same_hyperparameters[synchronous-collapsed]",
        "test_stochastic_learning_converges_from_a_tenth_and_from_ten_times_the_optimum[10.0]",
        "test_the_gradient_assembled_at_a_fixed_point_is_that_of_the_pooled_bound[asynchronous]",
    ),
    "tests/test_methods.py": ("test_global_vi_takes_the_steps_of_adam_on_pooled_rows_for_every_number_of_clients[3]",),
    "tests/test_noise.py": (
        "test_noise_has_the_requested_shape_and_dtype_for_every_key_type[shape2]",
        "test_noise_has_the_requested_shape_and_dtype_for_every_key_type[shape4]",
    ),
    "tests/test_snep.py": ("test_with_exact_moments_it_converges_to_the_double_loops_solution[two at a time]",),
    "experiments/tests/test_runner.py": (
        "test_interrupted_anywhere_and_run_again_ends_in_the_same_table[1]",
        "test_interrupted_anywhere_and_run_again_ends_in_the_same_table[3]",
    ),
}
