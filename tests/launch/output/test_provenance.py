"""What every output of the project carries."""

import hashlib

from launch.output.provenance import revision


def test_the_revision_is_a_digest_of_sources_and_not_of_nothing() -> None:
    assert revision() != hashlib.sha256().hexdigest()[:12]
