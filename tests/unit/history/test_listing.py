from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lapse.engine.safety.holds import HOLD, HOLD_UNTIL
from lapse.history.api.kinds import RETENTION_POLICY
from lapse.history.policy.policy import Policy
from lapse.history.retention.listing import ObjectReader
from lapse.kube.resources import Document, Json, ObjectMeta, PartialObject

TIMES = st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+01:00", "yesterday", ""])
TEXTS = st.sampled_from(["a", "b", ""])
METADATA = st.builds(
    ObjectMeta,
    name=st.just("thing"),
    namespace=st.sampled_from([None, "shop", "kube-system"]),
    uid=st.just("u"),
    resource_version=st.just("7"),
    generation=st.integers(0, 3),
    creation_timestamp=st.none() | TIMES,
    deletion_timestamp=st.sampled_from([None, None, None, "2026-01-01T00:00:00Z"]),
    labels=st.dictionaries(st.sampled_from(["x", "y", "when"]), TEXTS | TIMES),
    annotations=st.dictionaries(st.sampled_from([HOLD, HOLD_UNTIL, "x"]), TEXTS | TIMES),
)
PATHS = st.sampled_from(
    [
        *("metadata.labels.x", "metadata.labels['y']", "metadata.annotations.x", "metadata.namespace", "metadata.name"),
        *("metadata.generation", "metadata.labels", "metadata.labels.x.y", "metadata.labels[0]", "metadata.uid"),
    ]
)
FIELDS = st.fixed_dictionaries({"fieldPath": PATHS, "in": st.just(["a", "shop", "1"])})


@given(
    metadata=METADATA,
    group=st.lists(PATHS, max_size=3),
    age=st.sampled_from(["metadata.creationTimestamp", "metadata.labels.when", "metadata.generation"]),
    only_when=st.lists(FIELDS, max_size=2),
    keep=st.none() | FIELDS,
    count=st.integers(0, 1),
    labels=st.dictionaries(st.just("x"), TEXTS),
)
def test_metadata_as_it_came_and_a_document_are_read_the_same(
    metadata: ObjectMeta,
    group: list[str],
    age: str,
    only_when: list[Json],
    keep: Json | None,
    count: int,
    labels: dict[str, str],
) -> None:
    spec = {
        "selector": {"apiVersion": "v1", "kind": "Pod", "labels": labels},
        "groupBy": group,
        "ageFrom": age,
        "onlyWhen": only_when,
        "keepLast": {"count": count} | ({} if keep is None else {"where": keep}),
    }
    policy = Policy.read(RETENTION_POLICY.convert({"metadata": {"name": "p"}, "spec": spec}))
    reading = ObjectReader([policy], asked={}, left_alone={"kube-system"})
    document = Document({"metadata": msgspec.to_builtins(metadata)})
    assert reading.views(PartialObject(metadata=metadata)) == reading.views(document)
