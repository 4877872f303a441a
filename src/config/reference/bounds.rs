//! The keys of `[replay]` and `[limits]`.

use super::bus::bus;
use super::key::Key;
use super::key::Kind::{Choice, Number, Path};
use crate::auth::{ANSWER_WITHIN, SharedConfig};
use crate::config::{LimitsConfig, ReplayConfig};
use crate::rpc::MAX_BATCH;

/// What nats-server lets `max_payload` be at most.
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
            "Who remembers nonces: this process, for one replica, or a JetStream stream, for any number of them (docs/reliability.md).",
        ),
        Key::value(
            "window_s",
            Number("seconds", 30, Some(300)),
            usual.window_s,
            "The longest life of a message. Clients sign for 30 s, so with less all messages would be refused; for one to end earlier, its caller sets a deadline.",
        ),
        Key::value(
            "skew_s",
            Number("seconds", 0, Some(30)),
            usual.skew_s,
            "The tolerated difference of clocks. The shared guard needs 1.",
        ),
        Key::none(
            "state",
            Path,
            "`<service>.floor`",
            "Where the latest time seen is kept across restarts, with the local guard. Nobody else may be able to write the \
             file or the folder that it lies in: a service does not start if somebody could.",
        ),
        Key::value("per_agent", Number("nonces", 1, None), usual.per_agent, "The most live nonces of one agent."),
        Key::value(
            "total",
            Number("nonces", 2, None),
            usual.total,
            "The most live nonces of all agents together, some 70 bytes each.",
        ),
        Key::value(
            "agents",
            Number("agents", 1, None),
            usual.agents,
            "The most agents with live nonces, and the most that the key ring may have. Each has a reserve that no other agent can take: 32 nonces, or fewer if half of `total` is not enough for so many agents.",
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
            "Shared guard: the most nonces that its stream holds; a million is 10,000 messages a second.",
        ),
        Key::value(
            "outcomes",
            Number("outcomes", 2, Some(u32::MAX.into())),
            SharedConfig::MAX_OUTCOMES,
            "Shared guard: the most outcomes of idempotent calls that are kept, for as long as their methods say; one agent alone gets half of them. The same in all replicas.",
        ),
        Key::value(
            "outcome_bytes",
            Number("bytes", 1 << 20, Some(1 << 40)),
            SharedConfig::OUTCOME_BYTES,
            "Shared guard: the most bytes of those outcomes, reserved in the memory of each broker with a copy when the first service with an idempotent method starts. The same in all replicas. What `sealwire setup cluster` grants a guard has room for the default.",
        ),
        Key::value(
            "answer_within_ms",
            Number("milliseconds", ms(shortest), Some(ms(longest))),
            ms(SharedConfig::ANSWER_WITHIN.as_millis()),
            "Shared guard: how long the broker may take to answer a check. Then it is asked again, for 2 s.",
        ),
        Key::table(
            "nats",
            "that of `[nats]`",
            "Shared guard: as whom it connects to the broker. With a user of its own, the one that publishes answers, to subjects that callers choose, needs no right on the guard's stream.",
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
            "The largest payload of an answer; less on a broker whose `max_payload` has no room for it.",
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
            "What an agent may call, sustained, in each replica; each entry of a batch counts. Those that it acts for share this \
             and the next three: one of them may have one more only while it has fewer than are free.",
        ),
        Key::value(
            "agent_burst",
            Number("calls", 1, Some(most)),
            usual.agent_burst,
            "How many of an agent's calls may come at once.",
        ),
        Key::value(
            "agent_in_flight",
            Number("messages", 1, Some(most)),
            usual.agent_in_flight,
            "How many of an agent's messages may be under way, open streams not counted.",
        ),
        Key::value(
            "agent_streams",
            Number("calls", 1, None),
            usual.agent_streams,
            "How many of an agent's calls that take frames (streams, subscriptions) may be under way in each replica.",
        ),
        Key::value(
            "streams",
            Number("calls", 1, None),
            usual.streams,
            "How many calls that take frames may be under way in each replica, of all agents together. An agent may have one more only while it has fewer than are free.",
        ),
        Key::value(
            "stream_bytes",
            Number("bytes", 2 << 20, None),
            usual.stream_bytes,
            "The bytes of the requests of all streams together, and of frames that callers have not acknowledged; one has 1 MiB of frames at most. An agent may have more kept only if it then has no more than what is left free.",
        ),
        Key::value(
            "stream_response_bytes",
            Number("bytes", 1_024, None),
            usual.stream_response_bytes,
            "The largest response of a call that takes frames; one that does not fit a message is sent in pieces. Callers take 16 MiB unless they say otherwise.",
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
            "The bytes of all attachments that are being fetched or that methods hold. An agent may have more only if it then has no more than what is left free; else its methods wait, for 30 s.",
        ),
        Key::value(
            "hints_per_second",
            Number("answers per second", 1, Some(most)),
            usual.hints_per_second,
            "Unsigned refusals, all callers together. Beyond it, silence.",
        ),
        Key::value(
            "queue",
            Number("messages", 1, None),
            usual.queue,
            "How many accepted messages may wait, in lines of their own for each agent. What finds no place is refused with a hint.",
        ),
        Key::value(
            "queue_bytes",
            Number("bytes", 1_024, None),
            usual.queue_bytes,
            "The bytes of messages that wait or are handled.",
        ),
        Key::value(
            "in_flight",
            Number("messages", 1, None),
            usual.in_flight,
            "How many messages are handled at a time, open streams not counted.",
        ),
        Key::value(
            "drain_s",
            Number("seconds", 0, Some(86_400)),
            usual.drain_s,
            "How long stopping may take before what is still running is given up.",
        ),
    ]
}
