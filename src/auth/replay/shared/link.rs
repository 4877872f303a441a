//! What the guard knows of its stream: that it is verified, over which connection and when, or why it is not.
//! Never up before a verification has passed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_nats::jetstream::Context;

use super::super::Outage;
use super::liveness::ConnectionEpoch;
use super::retention::ClockOffset;
use super::stream::StreamApi;

/// Whether the stream can be asked.
#[derive(Debug)]
pub(super) enum Link {
    Up(Box<VerifiedStream>),
    Down {
        outage: Outage,
        /// For people.
        detail: String,
    },
}

impl Link {
    pub(super) fn down(outage: Outage, detail: &str) -> Self {
        Self::Down { outage, detail: detail.to_owned() }
    }

    pub(super) fn up(&self) -> Result<&VerifiedStream, Outage> {
        match self {
            Self::Up(up) => Ok(up),
            Self::Down { outage, .. } => Err(*outage),
        }
    }
}

/// A verified way to the stream.
#[derive(Debug, Clone)]
pub(super) struct VerifiedStream {
    pub(super) jetstream: Context,
    pub(super) api: StreamApi,
    /// The stream whose memory was verified.
    pub(super) stream: Arc<str>,
    /// Of [`super::retention::Retention`].
    pub(super) generation: u64,
    pub(super) clock_offset: ClockOffset,
    /// When the stream was looked at, by the broker's clock.
    pub(super) looked_ms: u64,
    /// The highest sequence number of any answer in this generation.
    pub(super) highest: Arc<AtomicU64>,
    pub(super) epoch: ConnectionEpoch,
}

impl VerifiedStream {
    /// Whether the client has been connected without a break since the verification.
    pub(super) fn is_unbroken(&self) -> bool {
        self.epoch.is_unbroken()
    }

    /// Whether a check that began under `self` and ended under `other` saw one unbroken memory.
    pub(super) fn continues(&self, other: &Self) -> bool {
        self.generation == other.generation && self.epoch.is(&other.epoch)
    }
}
