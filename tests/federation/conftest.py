import pytest


@pytest.fixture(scope="module")
def cluster():
    """A client of a Dask cluster with two workers, which are processes of their own."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local,
        distributed.Client(local) as client,
    ):
        yield client
