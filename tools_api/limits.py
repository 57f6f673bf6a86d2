"""Every bound on what a client may ask, in one typed object.

The numbers live here and nowhere else; each module enforces the ones that concern it and
has a test at the limit and one beyond. Where a number comes from the published service
(``metadata``, lanes, connection age) it is that service's; the others are ours.
"""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on one connection, one request, one tenant."""

    # One frame.
    max_frame_bytes: int = 16 * MIB
    """Larger request frames close the connection with 1009."""
    max_json_depth: int = 64
    """Nesting of arrays and objects in a frame."""
    max_json_values: int = 500_000
    """Commas and opening brackets in a frame, outside strings, and strings (keys included);
    bounds the memory that a frame of brackets can claim."""
    max_number_digits: int = 4300
    """Digits of a number in a frame, written without an exponent. Up to there numbers are kept to
    the last digit; Python reads no longer ones."""

    max_inline_bytes: int = 8 * 1024
    """A frame or body that is larger is read in a process of its own, its turn planned and its new
    text tokenised beside the event loop, so that other connections do not wait for it."""
    read_cpu_share: float = 0.5
    """The share of one core that reading a tenant's larger frames may take in the long run; its
    further ones wait."""
    read_cpu_burst_s: float = 4.0
    """The time that it may take at once, after a quiet time."""

    # One request.
    max_input_items: int = 8192
    """Items in ``input``."""
    max_content_parts: int = 1024
    """Parts in one message or tool output."""
    max_input_parts: int = 16_384
    """Parts in all items of ``input`` together: each costs some 10 us on the event loop."""
    max_list_entries: int = 64
    """Entries of ``include``, and of ``context_management``."""
    max_listed_responses: int = 64
    """Responses whose lists of items one ``input`` refers to; items with ids of their own are not
    counted."""
    max_deferred_tools: int = 2048
    """Tools with ``defer_loading`` beside those, and tools that the items of one input bring."""
    max_tools: int = 128
    """Tools of a request, those of namespaces among them."""
    max_tool_name: int = 64
    """Characters of a tool's name."""
    max_schema_bytes: int = 256 * 1024
    """One JSON schema (a tool's parameters, a text format) written compactly."""
    max_schema_depth: int = 32
    """Nesting of arrays and objects in a schema."""
    max_grammar_bytes: int = 64 * 1024
    """Definition of a custom tool's grammar."""
    max_format_description: int = 4096
    """Characters of ``text.format.description``, which every response repeats."""
    max_labels: int = 8
    """Labels of a session."""
    max_label_name: int = 64
    """Characters of a label's name."""
    max_label_value: int = 256
    """Characters of its value."""
    max_metadata_pairs: int = 16
    max_metadata_key: int = 64
    max_metadata_value: int = 512
    max_stop: int = 4
    """Stop strings of a request."""
    max_stop_chars: int = 256
    """Characters of one stop string."""
    max_resume_points: int = 16
    """Positions of a prompt at which a model with recurrent layers is asked to keep its state."""
    max_parallel_calls: int = 16
    """Calls in one response when ``parallel_tool_calls`` is on."""
    default_output_tokens: int = 4096
    """Output tokens of a turn that names no ``max_output_tokens``."""

    # One connection.
    max_stream_ids: int = 32
    """Distinct named lanes; the default lane is not counted and names are not released."""
    max_active_responses: int = 16
    """Responses that run at once; further ones wait."""
    max_pending_steers: int = 16
    """Inputs of ``response.steer`` that wait for one response; one more is refused."""
    max_steer_bytes: int = 64 * 1024
    """Bytes of the frame of one, and of all that wait for one response."""
    max_waiting_responses: int = 256
    """Creates that wait in the lanes of a connection; one more is ``server_is_overloaded``."""
    max_held_per_connection: int = 64 * MIB
    """Memory that its requests hold, as parsed, from their arrival to their answer; one more is
    ``server_is_overloaded``, and so with the two like it below."""
    max_arriving_per_connection: int = 40 * MIB
    """Bytes that have come and belong to messages that are not read yet; one more closes the
    connection with 1013, or is answered with 503, and so with the two like it below."""
    connection_age_s: float = 3600.0
    """Older connections answer a new create with ``websocket_connection_limit_reached``."""
    max_unsent_bytes: int = 8 * MIB
    """Bytes queued for a slow reader before its connection is closed with 1008."""
    max_stored_responses_per_connection: int = 1024
    max_stored_bytes_per_connection: int = 64 * MIB

    # One tenant, one server.
    max_stored_responses_per_tenant: int = 16_384
    max_stored_bytes_per_tenant: int = 512 * MIB
    max_sessions_per_tenant: int = 16_384
    """Sessions kept with their account; the longest idle one goes first."""
    max_conversations_per_tenant: int = 16_384
    """Conversations of a server without a journal; the one that was used longest ago goes first."""
    max_conversation_bytes_per_tenant: int = 64 * MIB
    """Bytes of the items in them that no turn has read."""
    stored_response_ttl_s: float = 3600.0
    """A response or session not used for so long is forgotten."""
    max_keys: int = 1024
    """Keys of a tenants file: a request's key is compared with every one of them."""
    max_tenants_file_bytes: int = MIB
    max_resume_bytes_per_turn: int = 1 * MIB
    """Events of one turn kept for a client that comes back; the oldest go first."""
    max_resume_bytes_per_tenant: int = 64 * MIB
    """Bytes of a tenant's ended turns together."""
    resume_s: float = 300.0
    """A turn that ended so long ago keeps its last event alone."""
    max_session_depth: int = 16
    """Sessions above each other by ``parent_session``."""
    max_held_per_tenant: int = 256 * MIB
    max_held_bytes: int = 1024 * MIB
    """Bytes of all tenants together."""
    max_arriving_per_tenant: int = 256 * MIB
    max_arriving_bytes: int = 1024 * MIB
    """Bytes of all tenants together."""
    max_unsent_per_tenant: int = 128 * MIB
    """Bytes queued for all slow readers of a tenant; the slowest are cut off."""
    max_unsent_of_all: int = 512 * MIB
    """Bytes of all tenants together."""
    max_open_connections: int = 1024
    """Sockets that have asked something; health checks are answered above it as well."""
    max_unread_connections: int = 512
    """Sockets beside those whose first request head is still unread; the oldest goes first."""
    max_connections_per_tenant: int = 768
    """Where there are several: a server without keys has one tenant, and no such bound."""
    max_connections_per_address: int = 768
    """Connections from one address, of IPv6 from its first 64 bits; loopback, where proxies are, is
    not bounded."""
    max_pages: int = 256
    """Pages of the dashboard that are open and kept true."""
    max_pages_per_tenant: int = 128
    max_queued_turns: int = 4096
    """Turns waiting in the engine; one more is ``server_is_overloaded``, unless its tenant has less
    than its share of them. There are at most twice as many."""


DEFAULT_LIMITS = Limits()


def takes_one_more(limit: int, *, total: int, held: int, tenants: int) -> bool:
    """Whether a tenant's next turn is taken where ``limit`` turns are, so that nobody who fills it
    locks others out: beyond it those are taken who hold less than their share.

    There are never more than twice the limit, however many tenants come one after the other: each
    that is beyond it held less than what was left, so that it takes more tenants than the limit
    has binary digits to leave nothing (the dynamic thresholds of Choudhury and Hahne, 1998).

    Args:
        total: turns that there are.
        held: those of the tenant.
        tenants: how many have work, this one included. One alone has no more than ``limit``.
    """
    if total < limit:
        return True
    return held * tenants < limit and held < 2 * limit - total
