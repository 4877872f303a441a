//! The options that only a relay sets: whose a request is, and what is captured of it.

use std::sync::Arc;

use super::observe::Observer;
use super::sent::{MessageId, Receipt};
use super::token::Tokens;
use crate::trace::TraceContext;

/// The options that only a relay sets.
#[derive(Debug, Clone, Default)]
pub(super) struct RelayOptions {
    pub(super) id: Option<MessageId>,
    pub(super) receipt: Option<Receipt>,
    pub(super) tokens: Option<Tokens>,
    /// The principal whose stream it is, among those of the client.
    pub(super) share: Option<Arc<str>>,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) trace: TraceContext,
    /// Whether somebody else has made the request.
    pub(super) is_relayed: bool,
}
