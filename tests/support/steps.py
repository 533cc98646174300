"""Steps of a run, one at a time."""

from partita.server import step as server


def step(method, model, engine, state, *arguments, **settings):
    """Binds the engine to the method, the model and the state's prior, and takes one step."""
    engine.bind(method.recipe(model), state.prior)
    return server.step(method, model, engine, state, *arguments, **settings)
