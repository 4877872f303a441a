//! The keys of `[replay]` and `[limits]`.

use super::bus::bus;
use super::key::Key;
use super::key::Kind::{Choice, Number, Path};
use crate::auth::{ANSWER_WITHIN, SharedConfig};
use crate::config::{LimitsConfig, ReplayConfig};
use crate::rpc::MAX_BATCH;

/// The largest `max_payload` that nats-server allows.
const MOST_PAYLOAD: u64 = 64 * 1024 * 1024;

pub(super) fn replay() -> Vec<Key> {
    let usual = ReplayConfig::default();
    let (shortest, longest) = (ANSWER_WITHIN.start().as_millis(), ANSWER_WITHIN.end().as_millis());
    let ms = |time: u128| u64::try_from(time).unwrap_or(u64::MAX);
    vec![
        Key::value(
            "guard",
            Choice(&["local", "shared"]),
            "local",
            "Where nonces are remembered: in this process, for one replica, or in a JetStream stream, for any number of them (docs/reliability.md).",
        ),
        Key::value(
            "window_s",
            Number("seconds", 30, Some(300)),
            usual.window_s,
            "The longest lifetime of a message. Clients sign for 30 s, so a shorter window would refuse all messages; for an earlier end, a caller sets a deadline.",
        ),
        Key::value(
            "skew_s",
            Number("seconds", 0, Some(30)),
            usual.skew_s,
            "The tolerated clock difference. The shared guard needs at least 1.",
        ),
        Key::none(
            "state",
            Path,
            "`<service>.floor`",
            "Local guard: where the latest time seen is kept across restarts. A service does not start if anybody else could \
             write the file or its folder.",
        ),
        Key::value("per_agent", Number("nonces", 1, None), usual.per_agent, "The most live nonces of one agent."),
        Key::value(
            "total",
            Number("nonces", 2, None),
            usual.total,
            "The most live nonces of all agents together, about 70 bytes each.",
        ),
        Key::value(
            "agents",
            Number("agents", 1, None),
            usual.agents,
            "The most agents with live nonces, and the most agents in the key ring. Each has a reserve that no other agent can use: 32 nonces, or fewer if half of `total` does not suffice for so many agents.",
        ),
        Key::none(
            "replicas",
            Number("copies", 1, Some(5)),
            "3 in a cluster, 1 on a single server",
            "Shared guard: how many copies its stream must have.",
        ),
        Key::value(
            "stream_messages",
            Number("nonces", 1, Some(u32::MAX.into())),
            SharedConfig::MAX_MESSAGES,
            "Shared guard: the most nonces that its stream holds; a million is enough for 10,000 messages a second.",
        ),
        Key::value(
            "outcomes",
            Number("outcomes", 2, Some(u32::MAX.into())),
            SharedConfig::MAX_OUTCOMES,
            "Shared guard: the most outcomes of idempotent calls that are kept; each method declares for how long. A single agent gets at most half of them. The same in all replicas.",
        ),
        Key::value(
            "outcome_bytes",
            Number("bytes", 1 << 20, Some(1 << 40)),
            SharedConfig::OUTCOME_BYTES,
            "Shared guard: the most bytes of those outcomes, reserved in the memory of each broker with a copy when the first service with an idempotent method starts. The same in all replicas. The memory that `sealwire setup cluster` grants a guard suffices for the default.",
        ),
        Key::value(
            "answer_within_ms",
            Number("milliseconds", ms(shortest), Some(ms(longest))),
            ms(SharedConfig::ANSWER_WITHIN.as_millis()),
            "Shared guard: how long the broker may take to answer a check. After that it is asked again, for up to 2 s.",
        ),
        Key::table(
            "nats",
            "that of `[nats]`",
            "Shared guard: how it logs in at the broker. With a user of its own, the user that publishes answers, to subjects that callers choose, needs no right on the guard's stream.",
            bus(),
        ),
    ]
}

pub(super) fn limits() -> Vec<Key> {
    let usual = LimitsConfig::default();
    let most = u32::MAX.into();
    vec![
        Key::value(
            "request_bytes",
            Number("bytes", 1_024, Some(MOST_PAYLOAD)),
            usual.request_bytes,
            "The largest payload of a request.",
        ),
        Key::value(
            "response_bytes",
            Number("bytes", 1_024, Some(MOST_PAYLOAD)),
            usual.response_bytes,
            "The largest payload of an answer; less if the broker's `max_payload` leaves less room.",
        ),
        Key::value("batch", Number("entries", 1, Some(MAX_BATCH as u64)), usual.batch, "The most entries of a batch."),
        Key::value(
            "batch_concurrency",
            Number("entries", 1, None),
            usual.batch_concurrency,
            "How many entries of one batch run at a time.",
        ),
        Key::value(
            "agent_per_second",
            Number("calls per second", 1, Some(most)),
            usual.agent_per_second,
            "An agent's sustained rate in each replica; each entry of a batch counts. The subjects that it acts for share this \
             limit and the next three: one of them may have one more only while it has fewer than are free.",
        ),
        Key::value(
            "agent_burst",
            Number("calls", 1, Some(most)),
            usual.agent_burst,
            "How many calls an agent may make at once.",
        ),
        Key::value(
            "agent_in_flight",
            Number("messages", 1, Some(most)),
            usual.agent_in_flight,
            "How many of an agent's messages may be in flight, not counting open streams.",
        ),
        Key::value(
            "agent_streams",
            Number("calls", 1, None),
            usual.agent_streams,
            "How many of an agent's calls that accept frames (streams, subscriptions) may be open in each replica.",
        ),
        Key::value(
            "streams",
            Number("calls", 1, None),
            usual.streams,
            "How many calls that accept frames may be open in each replica, for all agents together. An agent may have one more only while it has fewer than are free.",
        ),
        Key::value(
            "stream_bytes",
            Number("bytes", 2 << 20, None),
            usual.stream_bytes,
            "The memory for the requests of all streams together, and for frames that callers have not acknowledged; a stream has at most 1 MiB of frames. An agent gets more only if it then has no more than what is left free.",
        ),
        Key::value(
            "stream_response_bytes",
            Number("bytes", 1_024, None),
            usual.stream_response_bytes,
            "The largest response of a call that accepts frames; a response that does not fit one message is sent in pieces. Callers accept 16 MiB unless configured otherwise.",
        ),
        Key::value(
            "attachment_bytes",
            Number("bytes", 1_024, None),
            usual.attachment_bytes,
            "The largest attachment: an argument larger than a message, which a method fetches from its caller. Half of `attachment_memory_bytes` if that is less.",
        ),
        Key::value(
            "attachment_memory_bytes",
            Number("bytes", 1_024, None),
            usual.attachment_memory_bytes,
            "The memory for all attachments that are being fetched or that methods hold. An agent gets more only if it then has no more than what is left free; otherwise its methods wait, for up to 30 s.",
        ),
        Key::value(
            "hints_per_second",
            Number("answers per second", 1, Some(most)),
            usual.hints_per_second,
            "Unsigned refusals, for all callers together. Beyond that, the service stays silent.",
        ),
        Key::value(
            "queue",
            Number("messages", 1, None),
            usual.queue,
            "How many accepted messages may wait, in a queue for each agent. A message that finds no place is refused with a hint.",
        ),
        Key::value(
            "queue_bytes",
            Number("bytes", 1_024, None),
            usual.queue_bytes,
            "The total size of the messages that wait or are handled.",
        ),
        Key::value(
            "in_flight",
            Number("messages", 1, None),
            usual.in_flight,
            "How many messages are handled at a time, not counting open streams.",
        ),
        Key::value(
            "drain_s",
            Number("seconds", 0, Some(86_400)),
            usual.drain_s,
            "How long stopping may take before calls that are still running are given up.",
        ),
    ]
}
