import pytest

pytest.importorskip("flwr")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with certificates and keys, and a free port."""
    from support.fleet import Place

    return Place(tmp_path_factory.mktemp("place"))
