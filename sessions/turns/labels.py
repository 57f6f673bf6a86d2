"""A session's labels: those that its client gives, and those that the operator takes from fields
of the protocols.

``keepwarm.labels`` are all of the session's own from then on. A field that the operator names
(``user``, ``metadata.NAME``) becomes a label of that name whenever a request brings it. A session
that is a part of another one begins with the other one's.

Always true: there are no more labels than a client may give and an operator may name.
"""

from collections.abc import Sequence

from sessions.durable.session import Session
from sessions.durable.usage_keys import Labels, kept_value, sorted_labels
from tools_api.requests import CreateRequest

METADATA = "metadata."


def label_of(source: str) -> str:
    """The name of the label that a field becomes."""
    return source.removeprefix(METADATA)


def labels_now(request: CreateRequest, session: Session, sources: Sequence[str]) -> Labels:
    """The session's labels from this request on.

    Args:
        sources: fields that become labels.
    """
    asked = request.keepwarm.labels
    taken = {label_of(source): text for source in sources if (text := _field(request, source))}
    if asked is None and not taken:
        begins = session.parent is not None and not (session.turns_begun or session.labels)
        return session.parent.labels if begins and session.parent is not None else session.labels
    if asked is None:
        own = dict(session.labels)
    else:
        fields = set(map(label_of, sources))
        own = asked | {name: value for name, value in session.labels if name in fields}
    return sorted_labels(own | {name: kept_value(text) for name, text in taken.items()})


def _field(request: CreateRequest, source: str) -> str | None:
    if source.startswith(METADATA):
        return request.metadata.get(label_of(source))
    return request.user
