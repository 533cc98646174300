"""Cases of parametrised tests that `make slow` runs: they take long, and their siblings stay in the default run."""

SIBLINGS = {
    "tests/families/test_equal_leaves.py": (
        "test_natural_gradients_of_what_takes_leaves_for_natural_parameters_are_exact[product]",
    ),
    "tests/federation/test_dask.py": ("test_numbers_are_those_of_one_process[sequential]",),
    "tests/federation/test_learning.py": (
        "test_it_is_the_run_in_one_process[sequential-collapsed]",
        "test_it_is_the_run_in_one_process[sequential-stochastic]",
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
        "test_tilted_densities_are_integrated_however_wide_their_cavities_are[1.0 counted]",
        "test_tilted_densities_are_integrated_however_wide_their_cavities_are[50.0 counted]",
    ),
    "tests/test_double_loop.py": ("test_it_converges_without_damping_where_plain_power_ep_oscillates[0.5]",),
    "tests/test_learning.py": (
        "test_learning_never_lowers_the_bound[linear-coordinate]",
        "test_other_schedules_lead_there_too[synchronous-collapsed]",
        "test_stochastic_steps_lead_there_from_a_tenth_and_from_ten_times_of_it[10.0]",
        "test_the_gradient_assembled_at_a_fixed_point_is_that_of_the_pooled_bound[asynchronous]",
    ),
    "tests/test_methods.py": ("test_global_vi_takes_the_steps_of_adam_on_pooled_rows_for_every_number_of_clients[3]",),
    "tests/test_noise.py": (
        "test_any_shape_kind_of_key_and_dtype_will_do[shape2]",
        "test_any_shape_kind_of_key_and_dtype_will_do[shape4]",
    ),
    "tests/test_snep.py": ("test_with_exact_moments_it_ends_where_the_double_loop_does[two at a time]",),
    "experiments/tests/test_runner.py": (
        "test_interrupted_anywhere_and_run_again_ends_in_the_same_table[1]",
        "test_interrupted_anywhere_and_run_again_ends_in_the_same_table[3]",
    ),
}
