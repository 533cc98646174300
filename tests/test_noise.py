"""Fast normal noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st

from partita.numerics.noise import sine_and_cosine, standard_normal, threefry, uniform

KEY = jax.random.key(3)
COUNT = 200_000


@pytest.mark.parametrize(
    ("key", "counter", "rounds", "expected"),
    [
        ((0, 0), (0, 0), 13, (0x9D1C5EC6, 0x8BD50731)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), 13, (0xFD36D048, 0x2D17272C)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), 13, (0xBA3E4725, 0xF27D669E)),
        ((0, 0), (0, 0), 20, (0x6B200159, 0x99BA4EFE)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), 20, (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_reproduces_the_published_test_vectors(key, counter, rounds, expected):
    """The known answers that come with Random123 (Salmon et al. 2011)."""
    words = threefry(
        tuple(jnp.uint32(word) for word in key), tuple(jnp.full(1, word, jnp.uint32) for word in counter), rounds
    )
    assert tuple(int(word[0]) for word in words) == expected


def test_angles_have_their_sine_and_cosine():
    words = jnp.concatenate([jnp.array([0, 2**31, 2**30, 3 * 2**30, 2**32 - 1]), jnp.arange(0, 2**32, 2**18 + 7)])
    sine, cosine = sine_and_cosine(words.astype(jnp.uint32))
    angles = np.asarray(words, np.int64).astype(np.uint32).view(np.int32) * 2.0**-32 * 2 * np.pi
    # single precision of numbers up to one, in which the angle itself is rounded by 2⁻²⁵ turns
    np.testing.assert_allclose(sine, np.sin(angles), atol=6e-7)
    np.testing.assert_allclose(cosine, np.cos(angles), atol=6e-7)


def test_uniform_numbers_never_reach_one():
    ends = uniform(jnp.array([0, 2**32 - 1], jnp.uint32))
    np.testing.assert_array_equal(ends, np.array([0, 1 - 2.0**-23], np.float32))


def test_noise_is_standard_normal():
    noise = np.asarray(standard_normal(KEY, (COUNT,), np.float32), float)
    assert st.kstest(noise, "norm").pvalue > 0.01
    # tails: about 630 of 200,000 lie beyond 3, with an sd of 23
    assert abs((np.abs(noise) > 3).sum() - 2 * st.norm.sf(3) * COUNT) < 4 * 23.2
    assert np.abs(noise).max() < 5.8


def test_noise_is_uncorrelated_within_and_between_streams():
    noise = np.asarray(standard_normal(KEY, (COUNT,), np.float32), float)
    other = np.asarray(standard_normal(jax.random.fold_in(KEY, 1), (COUNT,), np.float32), float)
    half = COUNT // 2
    pairs = [(noise[1:], noise[:-1]), (noise[:half], noise[half:]), (noise, other)]
    for first, second in pairs:
        # correlations of values and of squares, with an sd of 1/√n
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(len(first))
        assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 4 / np.sqrt(len(first))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,)])
def test_noise_has_the_requested_shape_and_dtype_for_every_key_type(shape):
    for kind in ("threefry2x32", "rbg"):
        for dtype in (np.float32, np.float64):
            noise = standard_normal(jax.random.key(0, impl=kind), shape, dtype)
            assert (noise.shape, noise.dtype) == (shape, dtype)
            assert len(np.unique(noise)) == noise.size
