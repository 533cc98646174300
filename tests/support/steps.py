"""Steps of a run, one at a time."""

from partita.server import step as server


def step(method, model, engine, state, *arguments, **settings):
    """A step with an engine that is bound to the method, the model and the state's prior."""
    engine.bind(method.recipe(model), state.prior)
    return server.step(method, model, engine, state, *arguments, **settings)
